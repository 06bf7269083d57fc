"""Public training scripts, unchanged, under `stalloc run`: memory and exactness of whole runs."""
