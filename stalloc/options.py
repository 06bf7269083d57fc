"""The options of a driver, which every integration takes as keyword arguments and passes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import torch

from stalloc.planner import Streams

MODES = ("auto", "profile", "plan", "off")

Dynamic = Iterable[str | type] | None


@dataclass(frozen=True)
class Options:
    """The behaviour of a driver.

    Raises:
        ValueError: A value is not one of those below, or the mode needs a folder and has none.
    """

    mode: str | None = None
    """One of `MODES`. None reads `STALLOC_MODE`, or else means "auto".

    - "auto" serves from the plan in the folder if there is one that fits. Otherwise it profiles,
      plans, writes to the folder if there is one, and serves from the new plan.
    - "profile" profiles, plans and writes.
    - "plan" serves from a plan in the folder.
    - "off" does nothing.
    """
    folder: str | os.PathLike[str] | None = None
    """Holds the trace and plan of each rank; existing files are replaced. None reads `STALLOC_DIR`.
    The modes "profile" and "plan" need it."""
    _: KW_ONLY
    warmup: int = 3
    """Iterations to skip before profiling, at least 0: they allocate what later ones keep. Choose
    more if more of the first iterations are special, such as while CUDA graphs are captured."""
    iterations: int = 4
    """Iterations to profile, at least 2, because they are compared. The first is a warm-up. Three
    more show the step from one to the next twice, so one evaluation in between does no harm."""
    serve_from: int = 2
    """The first iteration, counted from 0, that is served from a plan in the folder. The first one
    makes the optimizer's states, which have no place in the plan; in the second
    DistributedDataParallel rebuilds its buckets."""
    device: torch.device | str | None = None
    """The device, as for `stalloc.profile`."""
    dynamic: Dynamic | Callable[[], Dynamic] = None
    """Modules with dynamic requests, as for `stalloc.profile`, or a function that returns them when
    profiling begins."""
    time_limit: float | None = None
    """Seconds to search for a better plan than the first one, as for `stalloc.Trace.plan`."""
    streams: Streams | str | None = None
    """The addresses of several streams, as for `stalloc.Trace.plan`. None reads `STALLOC_STREAMS`,
    or else means "auto". A plan in the folder stays as it is."""
    pinned: bool | None = None
    """Record, plan and serve pinned host memory, too; on a GPU in native mode only. None reads
    `STALLOC_PINNED`, 0 or 1, or else means False. A plan in the folder is served with the plan of
    pinned memory that is there."""
    strict: bool = False
    """Raise errors. Otherwise an error ends in a warning and training goes on unplanned."""

    def __post_init__(self) -> None:
        """Reads the environment and checks the values."""
        mode = self.mode or os.environ.get("STALLOC_MODE") or "auto"
        folder = self.folder or os.environ.get("STALLOC_DIR") or None
        streams = self.streams or os.environ.get("STALLOC_STREAMS") or Streams.AUTO
        if mode not in MODES:
            raise ValueError(f"there is no mode {mode!r}; choose one of {', '.join(MODES)}")
        try:
            streams = Streams(streams)
        except ValueError as e:
            raise ValueError(f"argument streams or STALLOC_STREAMS: {e}") from None
        pinned = os.environ.get("STALLOC_PINNED") or "0" if self.pinned is None else self.pinned
        if pinned not in (False, True, "0", "1"):
            raise ValueError(f"STALLOC_PINNED is 0 or 1, not {pinned!r}")
        if mode in ("profile", "plan") and folder is None:
            raise ValueError(f"mode {mode!r} needs a folder: give folder= or set STALLOC_DIR")
        if self.warmup < 0 or self.serve_from < 0 or self.iterations < 2:
            raise ValueError(
                f"warmup={self.warmup}, serve_from={self.serve_from}, "
                f"iterations={self.iterations}: profiling takes two iterations at least, as they "
                "are compared, and no number is negative"
            )
        object.__setattr__(self, "mode", mode)
        object.__setattr__(self, "folder", Path(folder) if folder is not None else None)
        object.__setattr__(self, "streams", streams)
        object.__setattr__(self, "pinned", pinned in (True, "1"))
