"""Runs work beside the training, on a thread that gets only the time that training leaves.

The planner releases the GIL. Its thread has the lowest priority and may run on a few cores only;
the threads that it begins inherit both. Short work that the training waits for may have the
training's priority: on busy cores, the lowest one gets hardly any time. The interpreter must not
end while the planner's thread waits for the GIL, so the work is cancelled and waited for at exit. A
forked child has no such thread.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from stalloc.progress import Progress

Result = TypeVar("Result")

_LOWEST_PRIORITY = 19

_running: set[Background[Any]] = set()


class Background(Generic[Result]):
    """One piece of work that begins at once.

    Args:
        work: Called with a function that returns False once the work shall end early.
        threads: The most cores that the work may keep busy.
        is_short: The work gets the training's priority.
    """

    def __init__(
        self, work: Callable[[Progress], Result], threads: int, *, is_short: bool = False
    ) -> None:
        self._work = work
        self._cores = threads
        self._is_short = is_short
        self._cancelled = False
        self._result: Result | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="stalloc-planner", daemon=True)
        _running.add(self)
        self._thread.start()

    @property
    def done(self) -> bool:
        """True once `result` returns without waiting."""
        return not self._thread.is_alive()

    def result(self) -> Result:
        """Waits for the work.

        Raises:
            Exception: The work's own.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def cancel(self) -> None:
        """Lets the work end soon. Returns at once."""
        self._cancelled = True

    def _run(self) -> None:
        try:
            _limit(self._cores, lowest_priority=not self._is_short)
            self._result = self._work(lambda _: not self._cancelled)
        except Exception as error:
            self._error = error
        finally:
            _running.discard(self)


def _limit(cores: int, *, lowest_priority: bool) -> None:
    """Limits the calling thread, and those that it begins. Linux has both settings by thread."""
    thread = threading.get_native_id()
    if lowest_priority:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, _LOWEST_PRIORITY)
    with contextlib.suppress(OSError):
        allowed = sorted(os.sched_getaffinity(thread))
        os.sched_setaffinity(thread, allowed[-cores:])


def _end_all() -> None:
    for work in list(_running):
        work.cancel()
    for work in list(_running):
        work._thread.join()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_running.clear)
