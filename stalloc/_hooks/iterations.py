"""Finds the end of an iteration from the optimizers' steps, for loops without explicit ends.

The rule: the *first* optimizer that steps ends the iteration each time it steps; the others do not.
So an iteration is one full cycle, for two optimizers side by side as for a generator and a
discriminator that alternate. If the first optimizer is gone, or idle while another steps twice, the
other takes over its role. In a loop in which one optimizer steps several times for each step of
another, call `stalloc.step()`.
"""

from __future__ import annotations

import weakref
from typing import Any


class IterationCounter:
    """Follows the optimizers' steps. Holds no optimizer alive.

    Attributes:
        in_first_cycle: True if the optimizer that stepped last had not stepped before.
    """

    def __init__(self) -> None:
        self.in_first_cycle = True
        self._stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        self._closing: weakref.ref[Any] | None = None
        self._others: set[int] = set()  # ids, since `_closing` last stepped

    def ends_with(self, optimizer: object) -> bool:
        """Notes a completed step; returns whether it is the iteration's last."""
        self.in_first_cycle = optimizer not in self._stepped
        self._stepped.add(optimizer)
        closing = self._closing() if self._closing is not None else None
        if closing is not None and closing is not optimizer and id(optimizer) not in self._others:
            self._others.add(id(optimizer))
            return False
        if closing is not optimizer:
            self._closing = weakref.ref(optimizer)
        self._others.clear()
        return True
