"""Detects that a plan no longer fits, from the bytes of requests outside the pool.

A departure that fits into idle pool space costs nothing, and a single unusual iteration, such as
one with an evaluation, costs memory only for a while. So a plan is outgrown once several iterations
in a row reserve much more beside the pool than the recorded ones did.
"""

from __future__ import annotations

_SETTLING = 3
"""Iterations in which a new plan's phases come to be trusted."""


class Drift:
    """Follows one plan while it is in force.

    Args:
        expected: Bytes beside the pool in an iteration that runs as recorded.
        allowed: More bytes that do no harm.
        patience: Iterations in a row that have to exceed both.
    """

    def __init__(self, expected: int, allowed: int, patience: int) -> None:
        self._limit = expected + allowed
        self._patience = patience
        self._iterations = 0
        self._in_a_row = 0

    @property
    def limit(self) -> int:
        """Bytes beside the pool that do no harm."""
        return self._limit

    def persists(self, beside: int) -> bool:
        """Notes the bytes beside the pool after an iteration; True if the plan is outgrown."""
        self._iterations += 1
        if self._iterations <= _SETTLING:
            return False
        self._in_a_row = self._in_a_row + 1 if beside > self._limit else 0
        return self._in_a_row >= self._patience
