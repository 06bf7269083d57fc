"""The rank of this process, and its files.

Every rank of a job plans for itself, in its own files, and never waits for another rank: ranks may
have different requests, and a rank that dies blocks no other. The file name contains the rank and
the parallelism: all numbers that decide the sizes of a rank's tensors, such as the degree of tensor
parallelism or the sequence length. So plans for several settings share a folder. A plan for lengths
that change serves all of them, whatever length its run began with.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from stalloc.plans import Plan

Parallelism = Mapping[str, int]
"""Sizes by name, such as `{"tp": 2, "pp": 4, "seq": 4096}`. Names are lower-case letters."""

_NAME = re.compile(r"[a-z]+")
_LENGTH = "seq"
_LENGTH_IN_NAME = re.compile(rf"\b{_LENGTH}\d+\b")


def rank() -> int:
    """This process's rank in the job; 0 if it is the only one."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return _from_environment("RANK", 0)


def world_size() -> int:
    """The number of ranks in the job."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return _from_environment("WORLD_SIZE", 1)


@dataclass(frozen=True)
class RankFiles:
    """The trace and the plan of one rank, and those of its pinned memory.

    Attributes:
        folder: The folder of the files; it need not exist yet.
        rank: The rank.
        parallelism: The sizes in the file names; sizes of 1 are left out.

    Raises:
        ValueError: A name is not made of lower-case letters, or a size is negative.
    """

    folder: Path
    rank: int = field(default_factory=rank)
    parallelism: Parallelism = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, size in self.parallelism.items():
            if not _NAME.fullmatch(name) or size < 0:
                raise ValueError(
                    f"parallelism {name}={size}: a name is made of lower-case letters, and a size "
                    "is not negative"
                )

    @property
    def trace(self) -> Path:
        """Path of the trace."""
        return self.folder / f"{self._stem}.trace.json"

    @property
    def plan(self) -> Path:
        """Path of the plan."""
        return self.folder / f"{self._stem}.plan.json"

    @property
    def pinned_trace(self) -> Path:
        """Path of the trace of pinned memory, if that is recorded."""
        return self.folder / f"{self._stem}.pinned.trace.json"

    def pinned_plan(self, plan: Path | None = None) -> Path:
        """Path of the plan of pinned memory beside a plan; None: beside `self.plan`."""
        plan = plan or self.plan
        return plan.with_name(plan.name.removesuffix(".plan.json") + ".pinned.plan.json")

    def drop_pinned(self) -> None:
        """Deletes the files of pinned memory, which belong to a profile that is replaced."""
        for path in (self.pinned_trace, self.pinned_plan()):
            path.unlink(missing_ok=True)

    def find_plan(self) -> Path:
        """Path of the plan; if there is none, of the newest one that another length began."""
        if self.plan.exists():
            return self.plan
        name = _LENGTH_IN_NAME.sub("", self.plan.name)
        alike = [path for path in self.others() if _LENGTH_IN_NAME.sub("", path.name) == name]
        return max(alike, key=lambda path: path.stat().st_mtime, default=self.plan)

    def others(self) -> list[Path]:
        """Plans of this rank in the folder with another parallelism."""
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
        prefix = described(self.parallelism)
        return f"{prefix}.rank{self.rank}" if prefix else f"rank{self.rank}"


def described(parallelism: Parallelism) -> str:
    """The text in file names: `tp2-pp4-seq4096`; empty when all sizes are 1."""
    return "-".join(f"{name}{size}" for name, size in parallelism.items() if size != 1)


def rank_info(parallelism: Parallelism) -> dict[str, str]:
    """The entries that a trace and its plan record about their rank."""
    return {
        "rank": str(rank()),
        "world_size": str(world_size()),
        "layout": json.dumps(dict(parallelism)),
    }


def rank_mismatch(plan: Plan, info: Mapping[str, str]) -> str | None:
    """The reason why the plan is not for the rank that `rank_info` describes; None if it is.

    A plan without these entries fits. One for changing batches fits any length.
    """
    for key, now in info.items():
        profiled = plan.info.get(key, now)
        fits_any = key == "layout" and plan.extents and _but_length(profiled) == _but_length(now)
        if profiled != now and not fits_any:
            return f"it was profiled with {key} {profiled} and this is {now}; profile again"
    return None


def _but_length(layout: str) -> object:
    """The sizes without the length; the text itself if it is damaged."""
    try:
        sizes = json.loads(layout)
    except ValueError:
        return layout
    if isinstance(sizes, dict):
        sizes.pop(_LENGTH, None)
    return sizes


def use_own_device(name: str | None) -> str:
    """Makes this rank's own GPU the current one, if the device is a GPU, and returns the device.

    The device is the one named, else the GPU if there is one, else the CPU. The launcher
    (`LOCAL_RANK`) tells the rank's GPU; the script may choose another later. "cuda" means the
    current one.
    """
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    local = _from_environment("LOCAL_RANK", 0)
    if name == "cuda" and torch.cuda.is_available() and 0 < local < torch.cuda.device_count():
        torch.cuda.set_device(local)
    return name


def _from_environment(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default
