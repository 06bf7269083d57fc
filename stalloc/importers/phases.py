"""Phases and iterations of a run that was recorded without them.

Hints come from stacks (under the autograd engine is backward) and from annotations (the optimizer's
step). An iteration ends where the optimizer's last step before the next forward does; where there
is no such step, at what repeats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

import numpy as np

from stalloc.tables import Flags, Int64s

_ALIKE = 0.9  # share of equal requests from which two iterations count as the same
_REPEATS = 0.95  # share of equal requests at a distance from which it counts as a period
_TAIL = 32  # requests at the end that are looked for further ahead
_CANDIDATES = 256
_MOST_STEPS = 8  # optimizer steps that may make up one iteration


class Hint(IntEnum):
    """The hint of an event about its phase. The first five are the kinds of phases."""

    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    UNPLANNED = 4
    PLAIN = 5  # none of the special ones: forward, if there is a backward
    NONE = 6  # nothing is known


@dataclass(slots=True)
class Spans:
    """Phases in order, a row each, and the boundaries of complete iterations; all in events."""

    kind: Int64s
    microbatch: Int64s
    occurrence: Int64s
    begin: Int64s
    iteration: Int64s
    boundaries: Int64s


@dataclass(slots=True)
class Run:
    """Events of one phase, up to where the next run begins."""

    kind: int
    begin: int


def find_runs(hints: Sequence[int], allocates: Sequence[bool], assumptions: list[str]) -> list[Run]:
    """Stretches of events of one phase.

    Args:
        hints: A `Hint` an event.
        allocates: True for each event that is an allocation.
        assumptions: Receives the assumptions.
    """
    kinds = set(hints)
    trains = kinds & {Hint.FORWARD, Hint.BACKWARD, Hint.OPTIMIZER}
    plain = Hint.FORWARD if trains else Hint.OTHER
    runs: list[Run] = []
    for event, hint in enumerate(hints):
        if hint == Hint.NONE:
            continue
        kind = plain if hint == Hint.PLAIN else hint
        if not runs or runs[-1].kind != kind:
            runs.append(Run(kind, event if runs else 0))
    if len(runs) > 16 and len(runs) * 2 > sum(allocates):
        assumptions.append("phases change with nearly every request: they are ignored")
        runs = []
    if not runs:
        return [Run(Hint.OTHER, 0)]
    # Requests between backward and the optimizer's step, such as clipping, are no forward.
    for before, run, after in zip(runs, runs[1:], runs[2:], strict=False):
        if (before.kind, run.kind, after.kind) == (Hint.BACKWARD, Hint.FORWARD, Hint.OPTIMIZER):
            run.kind = Hint.OTHER
    return runs


def find_iterations(
    runs: list[Run],
    marks: Sequence[int],
    allocates: Sequence[bool],
    sizes: Sequence[int],
    sites: Sequence[int],
    assumptions: list[str],
) -> list[int]:
    """The events before which iterations begin, and the end of the last: one more than there are.

    Args:
        runs: As `find_runs` found them.
        marks: Events before which an iteration is known to begin or end, ascending; may be empty.
        allocates: True for each event that is an allocation.
        sizes: Size of each event.
        sites: Call site of each event.
        assumptions: Receives the assumptions.
    """
    count = len(allocates)
    allocating = np.array(allocates, dtype=bool)
    tokens = np.array(sizes, np.int64)
    sequence = tokens[allocating]
    places = np.flatnonzero(allocating)
    if len(marks) >= 2:
        assumptions.append(f"iterations follow {len(marks) - 1} profiler steps")
        return list(marks)
    ends = _steps(runs, count)
    if ends:
        calls = np.array(sites, np.int64)[allocating]
        return _iterations(ends, places, sequence, calls, count, assumptions)
    repeated = _repeated(sequence)
    if repeated:
        cut = _lowest(allocating, tokens, places, repeated)
        firsts = np.arange(cut % repeated, len(places), repeated)
        found: list[int] = places[firsts].tolist()
        parts = _allocations_of(found, places, sequence)
        while len(parts) > 1 and _alike(parts[0], parts[1]) < _ALIKE:
            del found[0], parts[0]
        if len(found) >= 2:
            assumptions.append(
                f"{len(found) - 1} iterations of {repeated:,} requests follow from their repetition"
            )
            return found
    assumptions.append("no end of an iteration is known: the recording counts as one iteration")
    return [0, count]


def _steps(runs: list[Run], count: int) -> list[int]:
    """The ends of optimizer steps that precede a forward, a backward or the end."""
    ends: list[int] = []
    pending = -1
    told = any(run.kind not in (Hint.OTHER, Hint.OPTIMIZER) for run in runs)
    for row, run in enumerate(runs):
        if run.kind == Hint.OPTIMIZER:
            pending = runs[row + 1].begin if row + 1 < len(runs) else count
        elif pending >= 0 and (run.kind != Hint.OTHER or not told):
            ends.append(pending)
            pending = -1
    if pending >= 0:
        ends.append(pending)
    return ends


def _iterations(
    ends: list[int],
    places: Int64s,
    sequence: Int64s,
    calls: Int64s,
    count: int,
    assumptions: list[str],
) -> list[int]:
    """The boundaries of the iterations that end with these steps of the optimizer."""
    steps = _steps_an_iteration(
        by_size=_allocations_of(ends, places, sequence),
        by_site=_allocations_of(ends, places, calls),
    )
    ends = ends[(len(ends) - 1) % steps :: steps]
    if len(ends) == 1:
        whole = [0, ends[0]] if 2 * ends[0] >= count else [ends[0], count]
        which = "ends" if whole[0] == 0 else "begins"
        assumptions.append(
            f"the recording counts as one iteration, which {which} with the optimizer's step"
        )
        return whole
    head, first = _allocations_of([0, *ends[:2]], places, sequence)
    if _alike(head, first) >= _ALIKE:
        ends = [0, *ends]
    assumptions.append(
        f"{len(ends) - 1} iterations are taken to end with "
        + ("the optimizer's step" if steps == 1 else f"every {steps}th step of an optimizer")
        + ("" if ends[0] == 0 else "; what comes before them counts as start-up")
    )
    return ends


def _allocations_of(bounds: Sequence[int], places: Int64s, sequence: Int64s) -> list[Counter[int]]:
    at = np.searchsorted(places, bounds)
    return [
        Counter(sequence[a:b].tolist()) for a, b in zip(at.tolist(), at[1:].tolist(), strict=False)
    ]


def _alike(a: Counter[int], b: Counter[int]) -> float:
    larger = max(a.total(), b.total())
    return (a & b).total() / larger if larger else 1.0


def _steps_an_iteration(by_size: list[Counter[int]], by_site: list[Counter[int]]) -> int:
    """Two optimizers that alternate make one iteration of two steps.

    Args:
        by_size: The requests of each step by size.
        by_site: The same by call site; it counts where batches change all sizes.
    """
    for counters in (by_size, by_site):
        for steps in range(1, min(_MOST_STEPS, len(counters) // 2) + 1):
            pairs = list(zip(counters, counters[steps:], strict=False))
            if sum(_alike(a, b) for a, b in pairs) >= _ALIKE * len(pairs):
                return steps
        if _have_same_keys(by_site):  # one optimizer, whose microbatches vary in number
            break
    return 1


def _have_same_keys(counters: list[Counter[int]]) -> bool:
    """True if most of them have the same keys as the one before, several of them."""
    same = sum(a.keys() == b.keys() for a, b in pairwise(counters))
    return len(set().union(*counters)) > 1 and 2 * same > len(counters) - 1


def _repeated(sequence: Int64s) -> int:
    """The shortest distance at which nearly all requests repeat, or 0."""
    count = len(sequence)
    tail = min(_TAIL, count // 4)
    if tail < 4:
        return 0
    last = sequence[-tail:]
    # Candidates end with the tail's last request, and then the rest before it.
    candidates = np.flatnonzero(sequence[tail - 1 : count - 1] == last[-1]) + tail - 1
    for back in range(1, tail):
        candidates = candidates[sequence[candidates - back] == last[-1 - back]]
    for place in candidates[::-1][:_CANDIDATES].tolist():
        period = count - 1 - int(place)
        if period * 2 > count:
            break
        # A layer repeats within the iteration, but not everywhere.
        same = sequence[period:] == sequence[:-period]
        if np.mean(same[-max(2 * period, count // 2) :]) >= _REPEATS:
            return period
    return 0


def _lowest(
    allocating: Flags,
    sizes: Int64s,
    places: Int64s,
    period: int,
) -> int:
    """The allocation of the last period before which least is live: where iterations meet."""
    signed = np.where(allocating, sizes.astype(np.float64), -sizes.astype(np.float64))
    live = np.cumsum(signed) - signed
    first = len(places) - period
    return first + int(np.argmin(live[places[first:]]))


def number(runs: list[Run], boundaries: Sequence[int], count: int) -> Spans:
    """Cuts the phases of `count` events at the ends of iterations, and counts them in each."""
    cuts = list(boundaries)
    rows: list[tuple[int, int, int]] = []  # kind, begin, iteration
    starts = [run.begin for run in runs]
    begins = sorted({0, *(event for event in (*starts, *cuts) if event < count)})
    at = np.searchsorted(starts, begins, side="right") - 1
    within = np.searchsorted(cuts, begins, side="right") - 1
    for begin, row, iteration in zip(begins, at.tolist(), within.tolist(), strict=True):
        rows.append((runs[max(row, 0)].kind, begin, iteration))
    microbatch: list[int] = []
    occurrence: list[int] = []
    counts: Counter[int] = Counter()
    last = None
    for kind, _, iteration in rows:
        if iteration != last:
            counts.clear()
            last = iteration
        counted = kind in (Hint.FORWARD, Hint.BACKWARD)
        microbatch.append(counts[kind] if counted else -1)
        occurrence.append(0 if counted or kind == Hint.UNPLANNED else counts[kind])
        counts[kind] += 1

    def column(values: Sequence[int]) -> Int64s:
        return np.array(values, np.int64)

    return Spans(
        kind=column([row[0] for row in rows]),
        microbatch=column(microbatch),
        occurrence=column(occurrence),
        begin=column([row[1] for row in rows]),
        iteration=column([row[2] for row in rows]),
        boundaries=column(boundaries),
    )
