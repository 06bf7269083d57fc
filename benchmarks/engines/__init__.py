"""A trainer and an engine on one device, and the memory that both reserve."""
