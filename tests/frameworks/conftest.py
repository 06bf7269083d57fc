from __future__ import annotations

import sys
from pathlib import Path

# Shared with the other tests.
sys.path.append(str(Path(__file__).parent.parent / "python"))
