"""Programs as practitioners write them, whose memory changes from iteration to iteration."""
