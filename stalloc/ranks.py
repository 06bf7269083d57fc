"""Which rank this process is, and the files that are its own.

Every rank of a job plans for itself, in files of its own, and never waits for another: ranks may
differ in what they ask for, and one that dies leaves nobody hanging. A file is named by the rank
and by the layout, which is whatever decides the sizes of a rank's tensors: how many ways each kind
of parallelism splits the model, the length of a sequence. So plans for several layouts share a
folder, and one is never taken for another's.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from stalloc.planfile import Plan

Layout = Mapping[str, int]
"""Sizes by name, such as `{"tp": 2, "pp": 4, "seq": 4096}`; the names are lower-case letters."""

_NAME = re.compile(r"[a-z]+")


def rank() -> int:
    """This process's rank in the job; 0 where there is no other."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return _from_environment("RANK", 0)


def world_size() -> int:
    """How many ranks the job has."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return _from_environment("WORLD_SIZE", 1)


@dataclass(frozen=True)
class RankFiles:
    """The trace and the plan of one rank of one layout.

    Attributes:
        folder: Where they are; it need not exist yet.
        rank: Whose they are.
        layout: What decides the sizes of its tensors; sizes of 1 are not part of the name.

    Raises:
        ValueError: A name in the layout is not made of lower-case letters, or a size is negative.
    """

    folder: Path
    rank: int = field(default_factory=rank)
    layout: Layout = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, size in self.layout.items():
            if not _NAME.fullmatch(name) or size < 0:
                raise ValueError(
                    f"layout {name}={size}: a name is made of lower-case letters, and a size is "
                    "not negative"
                )

    @property
    def trace(self) -> Path:
        """What was recorded."""
        return self.folder / f"{self._stem}.trace.json"

    @property
    def plan(self) -> Path:
        """What was planned."""
        return self.folder / f"{self._stem}.plan.json"

    def others(self) -> list[Path]:
        """The plans in the folder that are for this rank and other layouts."""
        endings = (f"rank{self.rank}.plan.json", f".rank{self.rank}.plan.json")
        try:
            found = sorted(self.folder.iterdir())
        except OSError:
            return []
        return [
            path
            for path in found
            if (path.name == endings[0] or path.name.endswith(endings[1]))
            and not path.name.startswith(".")
            and path != self.plan
        ]

    @property
    def _stem(self) -> str:
        prefix = describe_layout(self.layout)
        return f"{prefix}.rank{self.rank}" if prefix else f"rank{self.rank}"


def describe_layout(layout: Layout) -> str:
    """The layout as file names have it: `tp2-pp4-seq4096`; empty when all sizes are 1."""
    return "-".join(f"{name}{size}" for name, size in layout.items() if size != 1)


def rank_info(layout: Layout) -> dict[str, str]:
    """What a trace and its plan note of the rank they come from."""
    return {
        "rank": str(rank()),
        "world_size": str(world_size()),
        "layout": json.dumps(dict(layout)),
    }


def rank_mismatch(plan: Plan, info: Mapping[str, str]) -> str | None:
    """Why the plan is not for the rank that `rank_info` describes; None when it is.

    A plan that does not say where it comes from is taken to fit.
    """
    for key, now in info.items():
        profiled = plan.info.get(key, now)
        if profiled != now:
            return f"it was profiled with {key} {profiled} and this is {now}; profile again"
    return None


def use_own_device(name: str | None) -> str:
    """Makes this rank's own GPU the current one, if a GPU is meant, and says what is.

    That is the device named, or else the GPU where there is one, or the CPU. Which GPU is a rank's
    own the launcher says (`LOCAL_RANK`), and the script, later; "cuda" means the current one.
    """
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    local = _from_environment("LOCAL_RANK", 0)
    if name == "cuda" and torch.cuda.is_available() and 0 < local < torch.cuda.device_count():
        torch.cuda.set_device(local)
    return name


def _from_environment(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default
