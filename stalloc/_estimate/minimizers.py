"""L-BFGS on the pretended GPU: it never converges, and its history is full after its first step.

Its step ends early where gradients are small or the loss stays, and it keeps a pair of vectors of
the last `history_size` updates, each as large as the model. Nothing is computed, so every loss is
the same, and three iterations are too few to fill the history. The memory of a long run is that of
a full one.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

_FILE = "torch/optim/lbfgs.py"
_CALLERS = 10
_NEVER = -1.0


def keep_going(optimizer: Any, *_: object) -> None:
    """Before a step: no tolerance is met."""
    if isinstance(optimizer, torch.optim.LBFGS):
        for group in optimizer.param_groups:
            group["tolerance_grad"] = group["tolerance_change"] = _NEVER


def fill_history(optimizer: Any, note: Callable[[str, object], None]) -> None:
    """After a step: the history has as many updates as it may have."""
    if not isinstance(optimizer, torch.optim.LBFGS):
        return
    for state in optimizer.state.values():
        size = optimizer.param_groups[0]["history_size"]
        columns = [state.get(name) for name in ("old_dirs", "old_stps", "ro")]
        if not all(columns) or len(columns[0]) >= size:
            continue
        note("updates in the history of L-BFGS", size)
        while len(columns[0]) < size:
            for column in columns:
                column.append(torch.empty_like(column[0]))


def is_curvature(frame: FrameType | None) -> bool:
    """True if L-BFGS asks whether an update is good enough to be kept: most are."""
    for _ in range(_CALLERS):
        if frame is None:
            return False
        file = frame.f_code.co_filename
        if file.endswith(_FILE):
            return "if ys >" in linecache.getline(file, frame.f_lineno)
        frame = frame.f_back
    return False
