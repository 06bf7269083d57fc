"""The content of a report: one iteration's requests, and each allocator's addresses for them.

From a trace it is the iteration that stands for all, together with whatever older request is still
live in it. From a plan, which knows no more than the requests it has addresses for, it is those.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stalloc.errors import PlanError
from stalloc.notes import readable, size_in
from stalloc.plans import Plan
from stalloc.replaying import UNROLLED, unroll
from stalloc.report.drawing import (
    Drawing,
    Rectangles,
    Segments,
    running_sum,
)
from stalloc.report.replayed import Extract, live_rows, regions, stalloc_drawing, torch_drawing
from stalloc.report.sized import Sized, planned, sized_of_plan, sized_of_trace
from stalloc.tables import LIFETIME_CLASSES, Int64s, Phases
from stalloc.trace import IterationProfile, Trace

CLASSES: tuple[str, ...] = (*LIFETIME_CLASSES, "dynamic")
"""Names of the numbers in a column `lifetime`, which decides a request's colour."""

_DYNAMIC = CLASSES.index("dynamic")
_PERSISTENT = CLASSES.index("persistent")
_SCOPED = CLASSES.index("scoped")
_TRANSIENT = CLASSES.index("transient")
_WRAP_AROUND = CLASSES.index("wrap-around")


@dataclass(frozen=True, slots=True)
class Requests:
    """The drawn requests. Ticks count from the beginning of the iteration.

    Attributes:
        size: Bytes, as asked.
        start: Tick of the allocation; negative when an earlier iteration made it.
        end: Tick of the free; past the period when a later iteration does it, or nobody.
        lifetime: Index into `CLASSES`.
        phase_begin: Row of the scene's phases, or -1 outside the iteration.
        phase_end: The same, where it is freed.
        layer: Index into the scene's layers, or -1.
        stream: Ordinal of the stream.
    """

    size: Int64s
    start: Int64s
    end: Int64s
    lifetime: Int64s
    phase_begin: Int64s
    phase_end: Int64s
    layer: Int64s
    stream: Int64s

    def __len__(self) -> int:
        return len(self.size)


@dataclass(frozen=True, slots=True)
class Scene:
    """All that is drawn.

    Attributes:
        title: The source.
        facts: More facts about the source, by name.
        period: Ticks of the iteration.
        load: The most bytes live at once.
        phases: The phases of the iteration, in order.
        layers: Names of modules.
        requests: The requests.
        live: The summands of the live curve, by `request`, `start` and `end`.
        drawings: One for each allocator.
        assumptions: Assumptions of the importer.
        sized: The sizes at other extents, for the last drawing; None if no size follows a law.
        verdict: The answer of an estimate; empty for a recording.
        limit: Bytes of the GPU that the estimate is for; None for a recording.
    """

    title: str
    facts: dict[str, str]
    period: int
    load: int
    phases: Phases
    layers: list[str]
    requests: Requests
    live: Rectangles
    drawings: list[Drawing]
    assumptions: list[str]
    sized: Sized | None
    verdict: str = ""
    limit: int | None = None


def scene_of_plan(plan: Plan, title: str) -> Scene:
    """The requests a plan has addresses for: at those, and where torch's allocator has them."""
    decisions, period = plan.decisions, plan.period
    lifetime = np.where(decisions.phase == decisions.phase_end, _TRANSIENT, _SCOPED)
    lifetime[decisions.upper > period] = _WRAP_AROUND
    over = np.zeros(len(decisions), np.int64)
    for table in (plan.slot_decisions, plan.turns):
        over[table.row] = table.over
    lifetime[over > 0] = _PERSISTENT
    requests = Requests(
        size=decisions.size,
        start=decisions.lower,
        end=decisions.upper + over,
        lifetime=lifetime.astype(np.int64),
        phase_begin=decisions.phase.astype(np.int64),
        phase_end=decisions.phase_end.astype(np.int64),
        layer=np.full(len(decisions), -1, np.int64),
        stream=decisions.stream.astype(np.int64),
    )
    rectangles = planned(plan)
    pool = Segments(*(np.array([number], np.int64) for number in (0, plan.pool, 0, period)))
    drawings = [Drawing("stalloc", "stalloc's plan", rectangles, pool, regions(plan))]
    if len(decisions) > 0:
        drawings.insert(0, _torch_drawing_of_plan(plan))
    facts, assumptions = readable(plan.info)
    return Scene(
        title=title,
        facts=facts | _plan_facts(plan),
        period=period,
        load=_load(requests, rectangles),
        phases=plan.phases,
        layers=[],
        requests=requests,
        live=rectangles,
        drawings=drawings,
        assumptions=assumptions,
        sized=sized_of_plan(plan),
    )


def _torch_drawing_of_plan(plan: Plan) -> Drawing:
    """From a run of some iterations, whose last is drawn."""
    trace = unroll(plan, UNROLLED, startup=False)
    begin = (UNROLLED - 1) * plan.period
    rows = live_rows(trace, begin, plan.period)
    # Every allocation of an iteration has a tick of its own.
    by_lower = np.argsort(plan.decisions.lower, kind="stable")
    lower = trace.requests.lower[rows] % plan.period
    owner = by_lower[np.searchsorted(plan.decisions.lower, lower, sorter=by_lower)]
    return torch_drawing(trace, Extract(begin, plan.period, rows, owner))


def scene_of_trace(trace: Trace, plan: Plan, title: str) -> Scene:
    """An iteration of a trace, as torch lays it out and as stalloc does with the plan.

    Raises:
        PlanError: The plan was made from another trace.
        TraceError: The trace holds no complete iteration.
    """
    if plan.fingerprint != trace.fingerprint:
        raise PlanError(
            f"the plan was made from trace {plan.fingerprint}, and this one is "
            f"{trace.fingerprint}: plan it again, or leave --plan out"
        )
    profile = trace.profile()
    begin, period = trace.iterations[profile.iteration], profile.period
    rows = live_rows(trace, begin, period)
    requests = _requests_of_iteration(trace, profile, rows)
    own = np.arange(len(rows), dtype=np.int64)
    live = Rectangles(
        request=own,
        address=np.zeros(len(own), np.int64),
        start=np.maximum(requests.start, 0),
        end=np.minimum(requests.end, period),
    )
    extract = Extract(begin, period, rows, own)
    drawings = [torch_drawing(trace, extract), stalloc_drawing(trace, plan, extract)]
    facts, assumptions = readable(trace.info)
    return Scene(
        title=title,
        facts=facts
        | {
            "iteration": f"{profile.iteration}, compared with {profile.compared} more",
            "trace": trace.fingerprint,
        }
        | _plan_facts(plan),
        period=period,
        load=_load(requests, live),
        phases=profile.phases,
        layers=trace.layers,
        requests=requests,
        live=live,
        drawings=drawings,
        assumptions=assumptions,
        sized=sized_of_trace(
            plan, requests.start, requests.size, _lasting(requests, drawings[-1].rectangles, plan)
        ),
        verdict=trace.info.get("verdict", ""),
        limit=size_in(trace.info, "gpu_limit"),
    )


def _lasting(requests: Requests, rectangles: Rectangles, plan: Plan) -> Rectangles:
    """The requests beside the pool that outlive the iteration: no extents change them."""
    kept = requests.lifetime[rectangles.request] == _PERSISTENT
    return rectangles.chosen(kept & (rectangles.address >= plan.pool))


def _requests_of_iteration(trace: Trace, profile: IterationProfile, rows: Int64s) -> Requests:
    """Every request that is live at some moment of the reference: `rows` of the trace."""
    every, reference, period = trace.requests, profile.requests, profile.period
    begin = trace.iterations[profile.iteration]
    # Never freed: an end past the period is all there is to draw, and does not overflow.
    end = np.minimum(every.upper[rows], begin + 2 * period) - begin
    lifetime = np.where(end >= period, _PERSISTENT, _WRAP_AROUND).astype(np.int64)
    lifetime[every.dynamic[rows]] = _DYNAMIC
    own = np.searchsorted(rows, reference.request)
    lifetime[own] = np.where(reference.dynamic, _DYNAMIC, reference.lifetime)
    phase_begin = np.full(len(rows), -1, np.int64)
    phase_end = np.full(len(rows), -1, np.int64)
    phase_begin[own] = reference.phase_begin
    phase_end[own] = np.where(lifetime[own] == _PERSISTENT, -1, reference.phase_end)
    return Requests(
        size=every.size[rows],
        start=every.lower[rows] - begin,
        end=end,
        lifetime=lifetime,
        phase_begin=phase_begin,
        phase_end=phase_end,
        layer=every.layer_begin[rows].astype(np.int64),
        stream=every.stream[rows].astype(np.int64),
    )


def _load(requests: Requests, live: Rectangles) -> int:
    sizes = requests.size[live.request]
    _, bytes_live = running_sum(
        np.concatenate([live.start, live.end]), np.concatenate([sizes, -sizes])
    )
    return int(bytes_live.max(initial=0))


def _plan_facts(plan: Plan) -> dict[str, str]:
    return {
        "plan": plan.algorithm,
        "gap": f"{plan.gap:.3%}" + (", proven optimal" if plan.optimal else ""),
    }
