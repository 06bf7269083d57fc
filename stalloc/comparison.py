"""Compares two runs, phase by phase: why a plan of one does not fit the other.

It compares the requests that a plan has, or would have, an address for. As in the runtime, size and
stream identify a request. The number of allocations before its free stands for the requests that it
may overlap.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stalloc.laws import formulas
from stalloc.plans import Plan
from stalloc.tables import Flags, Int64s
from stalloc.trace import Trace

Shape = tuple[int, int]
"""Size and stream."""

_NUMBER = 16
"""Bytes: a request of at most so many is a number (csrc/plan/numbers.h)."""

_OF_NO_INTEREST = {"assumptions", "torch_reserved"}


@dataclass(slots=True)
class Run:
    """One side of a comparison.

    Attributes:
        kind: `trace` or `plan`.
        info: Facts about the profiled run.
        fingerprint: The fingerprint of the trace.
        load: The most bytes live at once in the iteration.
        pool: Bytes of a plan's pool; None for a trace.
        planned: Shapes of the planned requests by phase, in order.
        frees: For each of these requests, the number of requests that are allocated before its
            free, in this iteration and, if it lives so long, the next.
        dynamic: Number and bytes of the dynamic requests by phase; only for a trace.
        sites: The call sites of the requests of a phase and shape, if known.
        laws: Formulas of the sizes of the planned requests by phase, in order; empty for a size
            that follows none. Only for a plan with extents.
    """

    kind: str
    info: Mapping[str, str]
    fingerprint: str
    load: int
    pool: int | None
    planned: dict[str, list[Shape]]
    frees: dict[str, list[int]]
    dynamic: dict[str, tuple[int, int]] = field(default_factory=dict)
    sites: dict[tuple[str, Shape], str] = field(default_factory=dict)
    laws: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """A group of requests that differ in the same way.

    Attributes:
        phase: The name of the phase.
        what: The kind of change: `new phase`, `phase gone`, `more`, `fewer`, `resized`, `order`,
            `longer`, `shorter` (lifetimes that now overlap other requests, or no longer do), or
            `dynamic`.
        requests: The number of requests.
        size_a: Bytes of each before; 0 if there was none.
        size_b: Bytes of each after; 0 if there is none.
        bytes: The change of their sum.
        site: Their call site; empty if unknown.
    """

    phase: str
    what: str
    requests: int
    size_a: int
    size_b: int
    bytes: int
    site: str = ""


@dataclass(frozen=True, slots=True)
class LawChange:
    """Requests at the same positions whose sizes follow another law.

    Attributes:
        phase: The name of the phase.
        requests: The number of requests.
        a: The formula before; empty if the size followed none.
        b: The formula after; empty if the size follows none.
    """

    phase: str
    requests: int
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences of two runs.

    Attributes:
        same: True if there is no difference.
        fits: Share of the second run's requests that come in the order of the first one's phases,
            apart from others in between.
        changes: The largest first.
        laws: Different size laws of two plans, by phase. Phases with another number of requests are
            left out: `changes` has them.
        info: Different facts: before and after, empty if missing.
    """

    same: bool
    fits: float
    changes: list[Change]
    laws: list[LawChange]
    info: dict[str, tuple[str, str]]


def run_of(content: Trace | Plan) -> Run:
    """One side of a comparison.

    Raises:
        TraceError: The trace is inconsistent, or holds no complete iteration.
    """
    return _of_plan(content) if isinstance(content, Plan) else _of_trace(content)


def compare(a: Run, b: Run) -> Comparison:
    """Compares two runs."""
    changes: list[Change] = []
    kept = total = 0
    for phase in dict.fromkeys((*a.planned, *b.planned)):
        before, after = a.planned.get(phase), b.planned.get(phase)
        total += len(after or ())
        if before is None or after is None:
            rows = before if after is None else after
            assert rows is not None
            size = sum(shape[0] for shape in rows)
            what, sign = ("phase gone", -1) if after is None else ("new phase", 1)
            changes.append(Change(phase, what, len(rows), 0, 0, sign * size))
            continue
        counts_a, counts_b = Counter(before), Counter(after)
        kept += (counts_a & counts_b).total()
        if counts_a != counts_b:
            changes += _changes(a, b, phase, counts_a, counts_b)
        elif before != after:
            moved = sum(x != y for x, y in zip(before, after, strict=True))
            changes.append(Change(phase, "order", moved, 0, 0, 0))
    changes += _lifetime_changes(a, b)
    if a.kind == b.kind == "trace":
        changes += _dynamic_changes(a, b)
    changes.sort(key=lambda change: (-abs(change.bytes), -change.requests))
    noted = {
        name: (a.info.get(name, ""), b.info.get(name, ""))
        for name in sorted({*a.info, *b.info} - _OF_NO_INTEREST)
        if a.info.get(name, "") != b.info.get(name, "")
    }
    laws = _law_changes(a, b)
    return Comparison(
        same=not changes and not laws,
        fits=kept / total if total else float(not any(a.planned.values())),
        changes=changes,
        laws=laws,
        info=noted,
    )


def _changes(
    a: Run, b: Run, phase: str, before: Counter[Shape], after: Counter[Shape]
) -> list[Change]:
    """Pairs missing requests of one shape with as many new ones of another, in order: resized."""
    gone, new = before - after, after - before
    result: list[Change] = []
    waiting: dict[tuple[int, int], list[Shape]] = defaultdict(list)  # by number and stream
    for shape in a.planned[phase]:
        key = (gone.get(shape, 0), shape[1])
        if shape in gone and shape not in waiting[key]:
            waiting[key].append(shape)
    for shape in dict.fromkeys(b.planned[phase]):
        count = new.get(shape, 0)
        if not count:
            continue
        site = b.sites.get((phase, shape), "")
        partners = waiting.get((count, shape[1]))
        if partners:
            old = partners.pop(0)
            del gone[old]
            delta = count * (shape[0] - old[0])
            result.append(Change(phase, "resized", count, old[0], shape[0], delta, site))
        else:
            result.append(Change(phase, "more", count, 0, shape[0], count * shape[0], site))
    for shape, count in gone.items():
        site = a.sites.get((phase, shape), "")
        result.append(Change(phase, "fewer", count, shape[0], 0, -count * shape[0], site))
    return result


def _lifetime_changes(a: Run, b: Run) -> list[Change]:
    """Different lifetimes, if both runs make the same requests in the same order.

    Those of numbers do not count: a plan has longer ones for them than the profile.
    """
    if list(a.planned.items()) != list(b.planned.items()):
        return []
    counts: Counter[tuple[str, str, Shape]] = Counter()
    for phase, shapes in b.planned.items():
        for shape, before, after in zip(shapes, a.frees[phase], b.frees[phase], strict=True):
            if before != after and shape[0] > _NUMBER:
                counts[phase, "longer" if after > before else "shorter", shape] += 1
    return [
        Change(phase, what, count, shape[0], shape[0], 0, b.sites.get((phase, shape), ""))
        for (phase, what, shape), count in counts.items()
    ]


def _law_changes(a: Run, b: Run) -> list[LawChange]:
    result = []
    for phase in a.laws.keys() & b.laws.keys():
        before, after = a.laws[phase], b.laws[phase]
        if len(before) != len(after):
            continue
        pairs = Counter((x, y) for x, y in zip(before, after, strict=True) if x != y)
        result += [LawChange(phase, count, x, y) for (x, y), count in pairs.items()]
    return sorted(result, key=lambda change: (-change.requests, change.phase, change.a, change.b))


def _dynamic_changes(a: Run, b: Run) -> list[Change]:
    result = []
    for phase in dict.fromkeys((*a.dynamic, *b.dynamic)):
        count_a, bytes_a = a.dynamic.get(phase, (0, 0))
        count_b, bytes_b = b.dynamic.get(phase, (0, 0))
        if (count_a, bytes_a) != (count_b, bytes_b):
            result.append(Change(phase, "dynamic", count_b - count_a, 0, 0, bytes_b - bytes_a))
    return result


def _of_plan(plan: Plan) -> Run:
    decisions, phases = plan.decisions, plan.phases
    names = [phases.name(row) for row in range(len(phases))]
    run = Run(
        kind="plan",
        info=plan.info,
        fingerprint=plan.fingerprint,
        load=plan.load_bytes,
        pool=plan.pool,
        planned={name: [] for name in names},
        frees={name: [] for name in names},
    )
    frees = _frees(decisions.lower, decisions.upper, plan.period)
    shapes = zip(decisions.size.tolist(), decisions.stream.tolist(), strict=True)
    for phase, shape, freed in zip(decisions.phase.tolist(), shapes, frees, strict=True):
        run.planned[names[phase]].append(shape)
        run.frees[names[phase]].append(freed)
    run.planned = _without_empty(run.planned)
    if plan.extents:
        texts = [*formulas(plan), ""]  # the last for decisions without a law
        run.laws = {name: [] for name in run.planned}
        for phase, law in zip(decisions.phase.tolist(), decisions.law.tolist(), strict=True):
            run.laws[names[phase]].append(texts[law])
    return run


def _of_trace(trace: Trace) -> Run:
    profile = trace.profile()
    requests, phases = profile.requests, profile.phases
    names = [phases.name(row) for row in range(len(phases))]
    run = Run(
        kind="trace",
        info=trace.info,
        fingerprint=trace.fingerprint,
        load=profile.load_bytes,
        pool=None,
        planned={name: [] for name in names},
        frees={name: [] for name in names},
    )

    def rows(chosen: Flags) -> Sequence[int]:
        return np.flatnonzero(chosen).tolist()

    planned = rows(requests.plannable)
    frees = _frees(requests.lower[planned], requests.upper[planned], profile.period)
    for row, freed in zip(planned, frees, strict=True):
        phase = names[requests.phase_begin[row]]
        shape = (int(requests.size[row]), int(requests.stream[row]))
        run.planned[phase].append(shape)
        run.frees[phase].append(freed)
        layer = int(requests.layer_begin[row])
        if layer >= 0:
            run.sites.setdefault((phase, shape), trace.layers[layer])
    for row in rows(requests.dynamic):
        phase = names[requests.phase_begin[row]]
        count, total = run.dynamic.get(phase, (0, 0))
        run.dynamic[phase] = (count + 1, total + int(requests.size[row]))
    run.planned = _without_empty(run.planned)
    return run


def _frees(lower: Int64s, upper: Int64s, period: int) -> list[int]:
    """By request, the number of those allocated before it is freed, on a circle of `period`."""
    births = np.sort(lower)
    wraps = upper > period
    before: Int64s = np.searchsorted(births, np.where(wraps, upper - period, upper))
    result: list[int] = np.where(wraps, before + len(births), before).tolist()
    return result


def _without_empty(planned: dict[str, list[Shape]]) -> dict[str, list[Shape]]:
    return {phase: shapes for phase, shapes in planned.items() if shapes}
