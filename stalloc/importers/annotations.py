"""Named stretches of time that a recording brings along, as phases.

They are what `torch.profiler.record_function` and torch itself write: `Optimizer.step#AdamW.step`,
`ProfilerStep#3`, `## forward ##`.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from stalloc.importers.phases import Hint

_KINDS = (
    (re.compile(r"zero_grad", re.I), Hint.OTHER),
    (re.compile(r"optimi[sz]er|^optim\b", re.I), Hint.OPTIMIZER),
    (re.compile(r"\b(eval|validat)", re.I), Hint.UNPLANNED),
    (re.compile(r"backward", re.I), Hint.BACKWARD),
    (re.compile(r"forward", re.I), Hint.FORWARD),
)
_STEP = re.compile(r"^ProfilerStep\b")


def hint_of(name: str) -> Hint:
    """The phase that a name stands for."""
    for pattern, hint in _KINDS:
        if pattern.search(name):
            return hint
    return Hint.NONE


@dataclass(frozen=True, slots=True)
class Annotation:
    """A stretch of time, `[begin, end]` in the recording's own unit."""

    name: str
    begin: float
    end: float


def mark(
    annotations: Sequence[Annotation],
    times: Sequence[float],
    hints: list[int],
    assumptions: list[str],
) -> list[int]:
    """Sets the hints of the events that annotations cover.

    Args:
        annotations: In any order; inner ones count more than those around them.
        times: Time of each event.
        hints: Hint of each event; changed.
        assumptions: Receives the assumptions.

    Returns:
        The events before which a profiler step begins or the last one ends, ascending.
    """
    if not annotations:
        return []
    if any(a > b for a, b in itertools.pairwise(times)):
        assumptions.append("times go backwards: annotations are left out")
        return []
    steps: list[tuple[int, int]] = []
    used: dict[str, int] = {}
    for note in sorted(annotations, key=lambda a: a.begin - a.end):
        first, end = bisect_left(times, note.begin), bisect_right(times, note.end)
        if _STEP.match(note.name):
            steps.append((first, end))
            continue
        hint = hint_of(note.name)
        if hint == Hint.NONE or first >= end:
            continue
        hints[first:end] = [hint] * (end - first)
        used[note.name] = used.get(note.name, 0) + 1
        if end < len(hints) and hints[end] == Hint.NONE:
            hints[end] = Hint.OTHER  # it has ended
    if used:
        names = ", ".join(sorted(used)[:5]) + (", ..." if len(used) > 5 else "")
        assumptions.append(f"annotations count as phases: {names}")
    # Steps follow each other: the end of one is the beginning of the next.
    return sorted({first for first, _ in steps} | {end for _, end in sorted(steps)[-1:]})
