"""Limits how often plans are exchanged."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

_HOUR = 3600.0


class Budget:
    """At most so many exchanges in any hour.

    Args:
        an_hour: The most of them.
        clock: Seconds from any moment on.
    """

    def __init__(self, an_hour: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._an_hour = an_hour
        self._clock = clock
        self._times: deque[float] = deque()

    def take(self) -> bool:
        """Counts an exchange, if there may be one now; returns whether there may."""
        now = self._clock()
        while self._times and now - self._times[0] >= _HOUR:
            self._times.popleft()
        if len(self._times) >= self._an_hour:
            return False
        self._times.append(now)
        return True
