"""Detects that a plan no longer fits, from the requests that depart from it.

A single unusual iteration, such as one with an evaluation or an error, costs memory or a little
time only for a while. So a plan is outgrown once several iterations more than usual ones in between
reserve much more beside the pool than the recorded ones did, miss many of the planned requests, or
make many requests that the plan does not have, such as those of more microbatches. Such requests
lie in idle pool space, where they cost no memory at first, but time, and later room for others.
"""

from __future__ import annotations

_SETTLING = 3
"""Iterations in which a new plan's phases come to be trusted."""

MOST_MISSED = 0.1
"""Share of the planned requests; more of them are no accident."""


MOST_UNPLANNED = 0.5
"""Share of an iteration's requests; if the plan lacks more of them, it serves little."""


class Drift:
    """Follows one plan while it is in force.

    Args:
        expected: Bytes beside the pool in an iteration that runs as recorded.
        allowed: More bytes that do no harm.
        patience: Iterations that have to exceed both, or to differ in their requests. A usual one
            takes one off their number.
    """

    def __init__(self, expected: int, allowed: int, patience: int) -> None:
        self._allowed = allowed
        self._limit = expected + allowed
        self._most_missed = MOST_MISSED
        self._most_unplanned = MOST_UNPLANNED
        self._patience = patience
        self._iterations = 0
        self._departed = 0

    @property
    def limit(self) -> int:
        """Bytes beside the pool that do no harm."""
        return self._limit

    def accept(self, beside: int, missed: float, unplanned: float) -> None:
        """Takes an iteration like this one for usual from now on.

        Args:
            beside: Bytes beside the pool.
            missed: Share of the planned requests that were not made.
            unplanned: Share of training's requests that the plan lacks.
        """
        self._limit = max(self._limit, beside + self._allowed)
        self._most_missed = max(self._most_missed, missed + MOST_MISSED)
        self._most_unplanned = max(self._most_unplanned, unplanned)
        self._departed = 0

    def persists(self, beside: int, missed: float, unplanned: float) -> bool:
        """Notes an iteration.

        Args:
            beside: Bytes beside the pool.
            missed: Share of the planned requests that were not made.
            unplanned: Share of training's requests that the plan lacks.

        Returns:
            True if the plan is outgrown.
        """
        self._iterations += 1
        if self._iterations <= _SETTLING:
            return False
        differs = missed > self._most_missed or unplanned > self._most_unplanned
        departs = beside > self._limit or differs
        self._departed = self._departed + 1 if departs else max(0, self._departed - 1)
        return self._departed >= self._patience
