"""A sink that uses the ends of iterations only."""

from __future__ import annotations

from collections.abc import Sequence


class IterationEnds:
    """Counts the ends of iterations; see `stalloc._hooks.sink.PhaseSink` for the functions."""

    def __init__(self) -> None:
        self._ended = 0

    def take(self) -> int:
        """The number of iterations that have ended since the last call."""
        ended, self._ended = self._ended, 0
        return ended

    def end_iteration(self) -> None:
        """Counts."""
        self._ended += 1

    def enter_phase(self, kind: int, microbatch: int, chunk: int) -> None:
        """Ignored."""

    def set_extents(self, names: Sequence[str], values: Sequence[int]) -> None:
        """Ignored."""

    def enter_unplanned(self) -> None:
        """Ignored."""

    def begin_evaluation(self) -> None:
        """Ignored."""

    def leave_unplanned(self) -> None:
        """Ignored."""

    def define_layer(self, name: str, dynamic: bool) -> int:
        """Ignored: all layers have one index."""
        return 0

    def enter_layer(self, layer: int, recompute: bool) -> None:
        """Ignored."""

    def leave_layer(self) -> None:
        """Ignored."""

    def tag_sequence(self, layer: int, first: int, last: int) -> None:
        """Ignored."""
