"""Tells native mode when torch.profiler runs: asking torch at every request would be slow.

torch calls two functions of its module when any profiler of Python starts and stops. They are
wrapped. If a version of torch lacks them, native mode learns of a profiler when a phase begins.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch.autograd import profiler

if TYPE_CHECKING:
    from collections.abc import Callable

_listener: Callable[[bool], None] | None = None


def follow(listener: Callable[[bool], None]) -> None:
    """Calls `listener` with True when a profiler starts, and with False when it stops.

    The first listener stays. If a profiler runs already, it learns at once.
    """
    global _listener
    if _listener is not None:
        return
    _listener = listener
    _wrap("_run_on_profiler_start", starts=True)
    _wrap("_run_on_profiler_stop", starts=False)
    if getattr(profiler, "_is_profiler_enabled", False):
        listener(True)


def _wrap(name: str, *, starts: bool) -> None:
    original = getattr(profiler, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _listener is not None:
            _listener(starts)
        return original(*args, **kwargs)

    setattr(profiler, name, wrapper)
