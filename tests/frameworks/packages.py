"""Where `make test-frameworks` puts the frameworks, apart from the environment of all other tests.

A framework is imported in processes of its own, from one of two folders: `stable` has what
requirements/frameworks.txt pins, `newest` other versions of the same packages.
"""

from __future__ import annotations

import sys
from pathlib import Path

FRAMEWORKS = Path(sys.prefix) / "frameworks"


def folders(name: str) -> list[str]:
    """What to put at the front of `sys.path`."""
    names = {"stable": ["stable"], "newest": ["newest", "stable"]}[name]
    return [str(FRAMEWORKS / folder) for folder in names]
