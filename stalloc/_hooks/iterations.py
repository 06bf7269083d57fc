"""Tells from the optimizers' steps where an iteration ends, for loops that never say so.

The rule: the *first* optimizer that steps closes the iteration each time it steps; the others,
which in one cycle of a loop step as well, don't. So with two optimizers side by side, or with a
generator's and a discriminator's in turn, an iteration is one full cycle. An optimizer that is
gone, or that sits idle while another steps twice, hands its part over. What this cannot know is a
loop in which one optimizer steps several times for each step of another: call `stalloc.step()`.
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
