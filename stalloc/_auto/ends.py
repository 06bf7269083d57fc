"""A sink that uses the ends of iterations, and the beginnings of phases."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class IterationEnds:
    """Counts the ends of iterations; see `stalloc._hooks.sink.PhaseSink` for the functions.

    Args:
        on_phase: Called where a phase begins.
    """

    def __init__(self, on_phase: Callable[[], None]) -> None:
        self._on_phase = on_phase
        self._ended = 0

    def take(self) -> int:
        """The number of iterations that have ended since the last call."""
        ended, self._ended = self._ended, 0
        return ended

    def end_iteration(self) -> None:
        """Counts."""
        self._ended += 1

    def enter_phase(self, kind: int, microbatch: int, chunk: int) -> None:
        """Tells that a phase begins."""
        self._on_phase()

    def set_extents(self, names: Sequence[str], values: Sequence[int]) -> None:
        """Ignored."""

    def enter_unplanned(self) -> None:
        """Ignored."""

    def begin_evaluation(self) -> None:
        """Ignored."""

    def end_evaluation_forward(self) -> None:
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
