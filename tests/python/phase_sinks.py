"""A sink for tests: writes down what it hears, and refuses what breaks the grammar of PhaseSink."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from stalloc.hooks import PhaseKind


class RecordingSink:
    """`words` is what was heard: "forward 0", "(" and ")" for unplanned, "|" for an iteration."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.violations: list[str] = []
        self.layers: list[str] = []
        self.dynamic: list[str] = []
        self.stays: list[tuple[str, bool]] = []  # (layer, recompute), in order of entering
        self.tags: list[tuple[int, str, int, int]] = []  # (thread, layer, first, last)
        self.open_layers: dict[int, list[int]] = {}
        self.extents: list[dict[str, int]] = []  # one for each forward that has some
        self.evaluations = 0  # forwards in unplanned stretches
        self.returned = 0  # of these
        self.suspended = False
        self._needs_phase = True
        self._extents_upcoming = False
        self._extents_known = True  # of the phase that is on, or it is no forward

    def check(self) -> None:
        """Nothing was ever wrong, and nothing is open now."""
        assert not self.violations
        assert not self.suspended
        assert not any(self.open_layers.values())

    def take(self) -> str:
        """The words so far, which are forgotten."""
        words, self.words = self.words, []
        return " ".join(words)

    def layer_of(self, sequence: int) -> str | None:
        owners = [layer for _, layer, first, last in self.tags if first <= sequence < last]
        self._require(len(owners) <= 1, f"node {sequence} belongs to {owners}")
        return owners[0] if owners else None

    def enter_phase(self, kind: int, microbatch: int, chunk: int) -> None:
        self._require(not self.suspended, "a phase began in an unplanned stretch")
        self._require(kind != PhaseKind.UNPLANNED, "unplanned as a phase")
        self._require(
            kind == PhaseKind.FORWARD or not self._extents_upcoming, "extents of no forward"
        )
        self._extents_known = kind != PhaseKind.FORWARD or self._extents_upcoming
        self._extents_upcoming = False
        self._needs_phase = False
        word = PhaseKind(kind).name.lower()
        if microbatch != -1:
            word += f" {microbatch}"
        self.words.append(word + (f".{chunk}" if chunk else ""))

    def set_extents(self, names: Sequence[str], values: Sequence[int]) -> None:
        self._require(not self.suspended, "extents in an unplanned stretch")
        self._require(not self._extents_upcoming, "extents of one forward twice")
        if self._extents_known:
            self._extents_upcoming = True
        self._extents_known = True
        self.extents.append(dict(zip(names, values, strict=True)))

    def enter_unplanned(self) -> None:
        self._require(not self.suspended and not self._needs_phase, "unplanned stretches nest")
        self.suspended = True
        self.words.append("(")

    def begin_evaluation(self) -> None:
        self._require(self.suspended, "an evaluation outside an unplanned stretch")
        self.evaluations += 1

    def end_evaluation_forward(self) -> None:
        self._require(self.suspended, "a forward outside an unplanned stretch has returned")
        self._require(self.returned < self.evaluations, "a forward returned twice")
        self.returned += 1

    def leave_unplanned(self) -> None:
        self._require(self.suspended, "left an unplanned stretch that was not entered")
        self.suspended = False
        self.words.append(")")

    def end_iteration(self) -> None:
        self._require(not self.suspended, "the iteration ended in an unplanned stretch")
        self._require(not self._needs_phase, "the iteration ended in no phase")
        self._needs_phase = True
        self.words.append("|")

    def define_layer(self, name: str, dynamic: bool) -> int:
        self._require(name not in self.layers, f"layer {name} is defined twice")
        self.layers.append(name)
        if dynamic:
            self.dynamic.append(name)
        return len(self.layers) - 1

    def enter_layer(self, layer: int, recompute: bool) -> None:
        self.open_layers.setdefault(threading.get_ident(), []).append(layer)
        self.stays.append((self.layers[layer], recompute))

    def leave_layer(self) -> None:
        stack = self.open_layers.get(threading.get_ident())
        self._require(bool(stack), "left a layer that was not entered")
        if stack:
            stack.pop()

    def tag_sequence(self, layer: int, first: int, last: int) -> None:
        thread = threading.get_ident()
        stack = self.open_layers.get(thread, [])
        self._require(bool(stack) and stack[-1] == layer, "tagged a layer that is not open")
        self._require(first < last, "tagged nothing")
        before = [tag for tag in self.tags if tag[0] == thread]
        self._require(not before or before[-1][3] <= first, "tags overlap or descend")
        self.tags.append((thread, self.layers[layer], first, last))

    def _require(self, condition: bool, message: str) -> None:
        if not condition:
            self.violations.append(f"{message}, after: {' '.join(self.words[-8:])}")
