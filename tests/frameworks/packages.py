"""The folders of the frameworks, which `make test-frameworks` fills.

They lie apart from the environment of all other tests. A framework is imported in processes of its
own, from one of the folders that are sections of requirements/frameworks.txt: `stable` has the
versions that most people run, `newest` other versions of the same packages, `trainers` the trainers
that people use.
"""

from __future__ import annotations

import sys
from pathlib import Path

FRAMEWORKS = Path(sys.prefix) / "frameworks"


def folders(name: str) -> list[str]:
    """The folder to put at the front of `sys.path`."""
    names = {
        "newest": ["newest", "stable", "trainers"],
        "trainers": ["trainers", "newest"],  # for triton
    }.get(name, [name])
    return [str(FRAMEWORKS / folder) for folder in names]
