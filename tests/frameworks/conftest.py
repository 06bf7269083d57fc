from __future__ import annotations

import sys
from pathlib import Path

# What these tests share with the others.
sys.path.append(str(Path(__file__).parent.parent / "python"))
