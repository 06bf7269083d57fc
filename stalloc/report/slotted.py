"""Drawings of requests that have no fixed address in a plan: each lies in a slot of its class.

A request's slot changes from iteration to iteration. So a few iterations are simulated, with the
lowest free slot for each request, and the last one is drawn.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

import numpy as np

from stalloc.errors import PlanError
from stalloc.plans import Plan
from stalloc.report.drawing import Rectangles

_ITERATIONS = 4
"""Iterations that are played: no request lives longer than two, and the last is drawn."""


@dataclass(slots=True)
class _Use:
    """A request of a class: a decision that lives past its iteration, or a box of them.

    Attributes:
        slots: Row of the plan's slots.
        lower: Tick of the first allocation.
        upper: Tick of the last free.
        rows: Its decisions.
    """

    slots: int
    lower: int
    upper: int
    rows: list[int]


def slotted(plan: Plan) -> Rectangles:
    """Rectangles of the decisions that have slots, in an iteration far from the first."""
    period, begin = plan.period, (_ITERATIONS - 1) * plan.period
    decisions, rows, sizes = plan.decisions, list[tuple[int, int, int, int]](), plan.slots.size
    table = plan.slot_decisions
    over = dict(zip(table.row.tolist(), table.over.tolist(), strict=True))
    for use, iteration, place in _assignments(plan):
        for row in use.rows:
            lower = iteration * period + int(decisions.lower[row])
            upper = iteration * period + int(decisions.upper[row]) + over[row]
            if lower < begin + period and upper > begin:
                address = int(decisions.offset[row]) + place * int(sizes[use.slots])
                start, end = max(lower - begin, 0), min(upper - begin, period)
                rows.append((row, address, start, end))
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    return Rectangles(*(np.ascontiguousarray(column) for column in columns))


def _assignments(plan: Plan) -> list[tuple[_Use, int, int]]:
    """Assigns slots to uses: pairs each use in each iteration with a slot's number in its class."""
    events = []
    for number, use in enumerate(_uses(plan)):
        for iteration in range(_ITERATIONS):
            begin = iteration * plan.period
            # Frees come before allocations of the same tick: lifetimes are half-open.
            events.append((begin + use.upper, 0, number, iteration, use))
            events.append((begin + use.lower, 1, number, iteration, use))
    free = [list(range(count)) for count in plan.slots.count.tolist()]
    taken: dict[tuple[int, int], int] = {}
    result = []
    for _, allocates, number, iteration, use in sorted(events, key=lambda event: event[:4]):
        if not allocates:
            insort(free[use.slots], taken.pop((number, iteration)))
            continue
        if not free[use.slots]:
            raise PlanError(f"slots, row {use.slots}: too few; check the plan")
        place = taken[number, iteration] = free[use.slots].pop(0)
        result.append((use, iteration, place))
    return result


def _uses(plan: Plan) -> list[_Use]:
    table, decisions = plan.slot_decisions, plan.decisions
    boxes: dict[int, _Use] = {}
    uses = []
    columns = (table.row, table.slots, table.over, table.box)
    for row, slots, over, box in zip(*(column.tolist() for column in columns), strict=True):
        lower, upper = int(decisions.lower[row]), int(decisions.upper[row]) + over
        if box < 0 or box not in boxes:
            uses.append(_Use(slots, lower, upper, [row]))
            if box >= 0:
                boxes[box] = uses[-1]
            continue
        use = boxes[box]
        use.lower, use.upper = min(use.lower, lower), max(use.upper, upper)
        use.rows.append(row)
    return uses
