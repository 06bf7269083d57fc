"""The `stalloc.auto` that is on, which explicit calls take over from.

Imports nothing of stalloc: `session` and `profiling` ask here, and `_auto` calls them.
"""

from __future__ import annotations

from typing import Protocol


class Automatic(Protocol):
    """The part of `stalloc.Auto` that the explicit calls need."""

    @property
    def at_work(self) -> bool:
        """True while the calling thread is inside a call that the automatic itself makes."""

    def stepped(self) -> None:
        """The user's `stalloc.step()` ended an iteration."""

    def give_way(self, reason: str) -> None:
        """Ends the automatic, because of an explicit call."""


# At most one, in the process that began it.
current: Automatic | None = None


def take_over(call: str) -> None:
    """An explicit `call` begins: the automatic ends, unless it makes the call itself."""
    if current is not None and not current.at_work:
        current.give_way(f"{call} takes over")


def stepped() -> None:
    """Passes on `stalloc.step()`."""
    if current is not None:
        current.stepped()
