"""Showing how far long work has come."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

Progress: TypeAlias = Callable[[float], object]
"""Called with the finished fraction, from any thread. If it returns False, the work ends early."""

_PATIENCE = 1.0  # seconds without a bar


@contextlib.contextmanager
def shown(progress: bool | Progress, what: str = "planning") -> Iterator[Progress | None]:
    """The receiver of progress: the given function, a bar on stderr for True, None for False.

    `what` names the work. The bar appears after a second.
    """
    if not isinstance(progress, bool):
        yield progress
    elif progress:
        with contextlib.ExitStack() as stack:
            yield _bar(stack, what)
    else:
        yield None


def part(progress: Progress | None, begin: float, end: float) -> Progress | None:
    """The receiver for a part of the work, which goes from one fraction to another."""
    if progress is None:
        return None
    return lambda fraction: progress(begin + fraction * (end - begin))


def _bar(stack: contextlib.ExitStack, what: str) -> Progress:
    began = time.monotonic()
    update: Progress | None = None

    def report(fraction: float) -> None:
        nonlocal update
        if update is None:
            if time.monotonic() - began < _PATIENCE:
                return
            update = _show(stack, what)
        update(fraction)

    return report


def _show(stack: contextlib.ExitStack, what: str) -> Progress:
    from rich.console import Console
    from rich.progress import Progress as Bar

    bar = stack.enter_context(Bar(console=Console(file=sys.stderr), transient=True))
    task = bar.add_task(what, total=1.0)
    return lambda fraction: bar.update(task, completed=fraction)
