"""Detects that a plan no longer fits, from the requests that depart from it.

A single unusual iteration, such as one with an evaluation or an error, costs memory or a little
time only for a while. So a plan is outgrown once several iterations in a row reserve much more
beside the pool than the recorded ones did, or miss many of the planned requests. Missed ones lie in
idle pool space, where they cost no memory at first, but time, and in the end room for others.
"""

from __future__ import annotations

_SETTLING = 3
"""Iterations in which a new plan's phases come to be trusted."""

MOST_MISSED = 0.1
"""Share of the planned requests; more of them are no accident."""


class Drift:
    """Follows one plan while it is in force.

    Args:
        expected: Bytes beside the pool in an iteration that runs as recorded.
        allowed: More bytes that do no harm.
        patience: Iterations in a row that have to exceed both, or to miss planned requests.
    """

    def __init__(self, expected: int, allowed: int, patience: int) -> None:
        self._allowed = allowed
        self._limit = expected + allowed
        self._most_missed = MOST_MISSED
        self._patience = patience
        self._iterations = 0
        self._in_a_row = 0

    @property
    def limit(self) -> int:
        """Bytes beside the pool that do no harm."""
        return self._limit

    def accept(self, beside: int, missed: float) -> None:
        """Takes an iteration like this one for usual from now on.

        Args:
            beside: Bytes beside the pool.
            missed: Share of the planned requests that were not made.
        """
        self._limit = max(self._limit, beside + self._allowed)
        self._most_missed = max(self._most_missed, missed + MOST_MISSED)
        self._in_a_row = 0

    def persists(self, beside: int, missed: float) -> bool:
        """Notes an iteration.

        Args:
            beside: Bytes beside the pool.
            missed: Share of the planned requests that were not made.

        Returns:
            True if the plan is outgrown.
        """
        self._iterations += 1
        if self._iterations <= _SETTLING:
            return False
        departs = beside > self._limit or missed > self._most_missed
        self._in_a_row = self._in_a_row + 1 if departs else 0
        return self._in_a_row >= self._patience
