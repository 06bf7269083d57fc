"""A search for a plan that Ctrl-C ends with the best one so far, as users of solvers are used to.

The next Ctrl-C ends the command and leaves nothing, as it does everywhere else. The search looks
at the first one when it reports its progress, several times a second.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

from stalloc.progress import Progress, shown

INTERRUPTED = 130


class Search:
    """The receiver of a planner's progress.

    Attributes:
        interrupted: True after Ctrl-C.
    """

    def __init__(self, bar: Progress | None) -> None:
        self.interrupted = False
        self._bar = bar

    def progress(self, fraction: float) -> bool:
        """Shows the fraction that is done; False ends the search."""
        if self._bar is not None:
            self._bar(fraction)
        return not self.interrupted

    def check(self, gap: float) -> None:
        """Raises KeyboardInterrupt if Ctrl-C came before there was a useful plan.

        Buffers without an offset are stacked on top, many times as high as necessary.
        """
        if self.interrupted and gap > 1.0:
            raise KeyboardInterrupt

    def _interrupt(self, number: int, _: object) -> None:
        self.interrupted = True
        signal.signal(number, signal.default_int_handler)


@contextlib.contextmanager
def searching(show: bool) -> Iterator[Search]:
    """Inside of the block the first Ctrl-C is noted only; `show` says whether to show a bar."""
    with shown(show) as bar:
        search = Search(bar)
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        ):
            yield search
            return
        signal.signal(signal.SIGINT, search._interrupt)
        try:
            yield search
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
