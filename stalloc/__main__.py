"""The command line as `python -m stalloc`."""

from __future__ import annotations

import sys

from stalloc.cli import main

if __name__ == "__main__":
    sys.exit(main())
