from __future__ import annotations

import os
import sys
from pathlib import Path

# Shared with the other tests.
sys.path.append(str(Path(__file__).parent.parent / "python"))
# No plan of another test or of the developer's own runs.
os.environ["STALLOC_CACHE"] = "0"
