"""Finds the end of an iteration from the optimizers' steps, for loops without explicit ends.

The rule: one optimizer, the closing one, ends the iteration each time it steps; the others do not.
So an iteration is one full cycle of all optimizers.

    d g d g d g           the last of the first cycle closes: a discriminator and a generator
                          alternate. Between their steps, the activations of the generator live on
    d d d d d g d d ...   the slower one closes, from its first step on: a generator that steps once
                          for five steps of its critic
    d g d d d d d g d ... the same where it steps in the first step of all, as with `step % 5 == 0`

If the closing optimizer is gone, or idle while another steps more than twice as often as before,
the other takes over its role; after a single cycle of one step each, once it has stepped more than
`MOST_STEPS` times. A counter that begins in the middle of a run goes on with the closing optimizer
of the counter before: a profile and its plan have the same iterations.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

MOST_STEPS = 8
"""Steps in a row of one optimizer that still make one iteration with the step of another."""


class _Cycle(NamedTuple):
    """A cycle of several optimizers."""

    closing: weakref.ref[Any]
    most: int  # steps of another one in it
    stepped: weakref.WeakSet[Any]


_last_cycle: _Cycle | None = None  # on any counter; None if it was of one optimizer


class IterationCounter:
    """Follows the optimizers' steps. Holds no optimizer alive.

    Args:
        waits_for_slower: The first optimizer does not close at once: a slower one is known to come.

    Attributes:
        stepped: The optimizers that have stepped.
        in_first_cycle: True if the optimizer that stepped last had not stepped before.
        knows_cycle: True if it goes on with the cycle of an earlier counter.
        found_slower: True if the optimizer that stepped last has taken over as the slower one, or
            as the next one of the first cycle. The iterations that the one before has ended were
            parts of one.
    """

    def __init__(self, waits_for_slower: bool = False) -> None:
        self.in_first_cycle = True
        self.knows_cycle = False
        self.found_slower = False
        self._waits = MOST_STEPS if waits_for_slower else 0  # steps that it still waits for
        self.stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        self._closing: weakref.ref[Any] | None = None
        self._in_a_row = 0  # steps of the closing optimizer since another one stepped
        self._closed = 0  # steps of the closing optimizer
        self._most = 1  # steps of another one in the last cycle
        self._others: dict[int, int] = {}  # steps by id, since the closing optimizer's last one

    def ends_with(self, optimizer: object) -> bool:
        """Notes a completed step; returns whether it is the iteration's last."""
        self.in_first_cycle = optimizer not in self.stepped
        self.found_slower = False
        if not self.stepped and _last_cycle is not None and optimizer in _last_cycle.stepped:
            self._closing, self._most, self._waits = _last_cycle.closing, _last_cycle.most, 0
            self._closed = 1
            self.knows_cycle = True
        self.stepped.add(optimizer)
        closing = self._closing() if self._closing is not None else None
        if closing is optimizer:
            self._in_a_row += 1
            self._closed += 1
            self._most = max(self._others.values(), default=1)
            self._remember()
            self._others.clear()
            self._waits = max(0, self._waits - 1)
            return self._waits == 0
        if closing is not None and not self._takes_over(optimizer):
            self._in_a_row = 0
            return False
        self._closing = weakref.ref(optimizer)
        self._in_a_row = self._closed = 1
        self._others.clear()
        return self._waits == 0

    def _remember(self) -> None:
        global _last_cycle
        assert self._closing is not None
        several = _Cycle(self._closing, self._most, self.stepped)
        _last_cycle = several if self._others else None

    def _takes_over(self, optimizer: object) -> bool:
        continues_first_cycle = self.in_first_cycle and self._closed == self._in_a_row == 1
        if continues_first_cycle or 1 < self._in_a_row <= MOST_STEPS:
            self.found_slower = self._waits == 0
            self._most, self._waits = self._in_a_row, 0
            return True
        steps = self._others[id(optimizer)] = self._others.get(id(optimizer), 0) + 1
        if steps <= self._most_of_another():
            return False
        self._most = 1
        return True

    def _most_of_another(self) -> int:
        """Steps that another optimizer may make before it takes over."""
        if self._most > 1:
            return 2 * self._most
        # One cycle does not tell how often the others step: the first one may be shorter.
        is_first = self._closed == 1 and not self.knows_cycle
        return MOST_STEPS if is_first else 1
