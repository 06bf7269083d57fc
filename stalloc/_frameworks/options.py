"""What every integration passes on to its driver."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

import torch

from stalloc.planner import Streams


class Options(TypedDict, total=False):
    """Arguments of `stalloc.driver.Driver`.

    Attributes:
        warmup: Iterations to let pass before profiling.
        iterations: Iterations to profile.
        serve_from: The iteration, counted from 0, that a plan from a file is first used in.
        device: As for `stalloc.profile`.
        dynamic: As for `stalloc.profile`.
        time_limit: Seconds to look for a better plan than the first one.
        streams: Whether streams use the same addresses in turn, "ordered", or keep "separate".
        strict: Whether what goes wrong is raised, instead of ending in a warning.
    """

    warmup: int
    iterations: int
    serve_from: int
    device: torch.device | str | None
    dynamic: Iterable[str | type] | None
    time_limit: float
    streams: Streams | None
    strict: bool
