"""The plan's requests at other extents: the laws that give their sizes, and where they lie.

A plan for the largest extents serves all smaller ones: each request keeps its address, and its law
gives its size. The page evaluates the laws itself (`sizes.js`), so that a slider can choose the
extents.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stalloc.laws import formulas, terms_of
from stalloc.plans import Plan
from stalloc.report.drawing import Rectangles, around_the_end, together
from stalloc.report.slotted import slotted
from stalloc.tables import LAW_PROOFS, Int64s


@dataclass(frozen=True, slots=True)
class Law:
    """A size law: (constant + terms) / divisor, rounded up to a multiple of step.

    Attributes:
        constant: Bytes.
        divisor: Divisor of the sum; a remainder rounds up.
        step: Bytes.
        terms: A coefficient each, and the one to three extents that it is multiplied with.
    """

    constant: int
    divisor: int
    step: int
    terms: list[tuple[int, list[int]]]


@dataclass(frozen=True, slots=True)
class LawSummary:
    """The planned requests whose laws are alike.

    Attributes:
        kind: As in `Plan.law_kinds`.
        proof: As in `LAW_PROOFS`.
        requests: Their number.
        largest: Bytes of the largest, at the largest extents.
        formula: Its law as text.
    """

    kind: str
    proof: str
    requests: int
    largest: int
    formula: str


@dataclass(frozen=True, slots=True)
class Sized:
    """The sizes of the requests at any extents up to the plan's.

    Attributes:
        extents: The plan's extents, which are the largest, by name.
        used: The names that laws of decisions use.
        laws: The plan's laws.
        summaries: The laws in use, by kind; the least certain come first.
        law: Row of `laws` for each of the scene's requests, or -1.
        size: Bytes of each request without a law; 0 for the others.
        rectangles: The requests at the plan's addresses; None if the last drawing has them.
    """

    extents: dict[str, int]
    used: list[str]
    laws: list[Law]
    summaries: list[LawSummary]
    law: Int64s
    size: Int64s
    rectangles: Rectangles | None


def planned(plan: Plan) -> Rectangles:
    """The plan's decisions at their addresses; those that wrap around are two rectangles."""
    decisions = plan.decisions
    others = np.concatenate((plan.slot_decisions.row, plan.turns.row))
    rows = np.setdiff1d(np.arange(len(decisions), dtype=np.int64), others)
    fixed = around_the_end(
        rows, decisions.offset[rows], decisions.lower[rows], decisions.upper[rows], plan.period
    )
    return together(fixed, slotted(plan), _in_turns(plan))


def _in_turns(plan: Plan) -> Rectangles:
    """The decisions that take turns: what they begin, and what the iteration before has left."""
    decisions, turns = plan.decisions, plan.turns
    rows = turns.row.astype(np.int64)
    lower = decisions.lower[rows]
    begun = Rectangles(rows, decisions.offset[rows], lower, np.full_like(lower, plan.period))
    left = Rectangles(rows, turns.offset, np.zeros_like(lower), lower + turns.over)
    return together(begun, left)


def sized_of_plan(plan: Plan) -> Sized | None:
    """The sizes of a plan's decisions, which are the scene's requests; None without laws."""
    decisions = plan.decisions
    own = np.arange(len(decisions), dtype=np.int64)
    return _sized(plan, own, decisions.size, None)


def sized_of_trace(plan: Plan, start: Int64s, size: Int64s, lasting: Rectangles) -> Sized | None:
    """The sizes of the decisions among the requests of a trace's iteration.

    Args:
        plan: The plan of the trace.
        start: Tick of each request since the iteration began, ascending.
        size: Bytes of each request in the iteration.
        lasting: Rectangles that stay as they are beside the decisions.

    Returns:
        The sizes. None if no law is in use, or if the plan was made from another iteration.
    """
    lower = plan.decisions.lower
    rows = np.minimum(np.searchsorted(start, lower), max(len(start) - 1, 0)).astype(np.int64)
    if len(start) == 0 or not np.array_equal(start[rows], lower):
        return None
    own = planned(plan)
    moved = Rectangles(rows[own.request], own.address, own.start, own.end)
    others = lasting.chosen(~np.isin(lasting.request, rows))
    return _sized(plan, rows, size, together(moved, others))


def _sized(plan: Plan, rows: Int64s, size: Int64s, rectangles: Rectangles | None) -> Sized | None:
    """Gives the decisions' laws to the requests `rows`."""
    laws = _laws(plan)
    in_use = np.unique(plan.decisions.law[plan.decisions.law >= 0]).tolist()
    used = {extent for row in in_use for _, factors in laws[row].terms for extent in factors}
    if not used:
        return None
    law = np.full(len(size), -1, np.int64)
    law[rows] = plan.decisions.law
    sizes = size.copy()
    sizes[rows] = plan.decisions.size
    sizes[law >= 0] = 0
    return Sized(
        extents=plan.extents,
        used=[name for extent, name in enumerate(plan.extents) if extent in used],
        laws=laws,
        summaries=_summaries(plan),
        law=law,
        size=sizes,
        rectangles=rectangles,
    )


def _laws(plan: Plan) -> list[Law]:
    table = plan.laws
    columns = (table.constant.tolist(), table.divisor.tolist(), table.step.tolist())
    return [Law(*row) for row in zip(*columns, terms_of(plan), strict=True)]


def _summaries(plan: Plan) -> list[LawSummary]:
    law, size = plan.decisions.law, plan.decisions.size
    texts = formulas(plan)
    alike: dict[tuple[int, str], list[int]] = {}
    for row in np.unique(law[law >= 0]).tolist():
        alike.setdefault((int(plan.laws.proof[row]), plan.law_kinds[row]), []).append(row)
    summaries = []
    for (proof, kind), rows in alike.items():
        members = np.flatnonzero(np.isin(law, rows))
        largest = int(members[np.argmax(size[members])])
        summaries.append(
            LawSummary(
                kind, LAW_PROOFS[proof], len(members), int(size[largest]), texts[law[largest]]
            )
        )
    return sorted(summaries, key=lambda s: (-LAW_PROOFS.index(s.proof), -s.largest))
