"""The plan for a recording of a whole run.

A recording that repeats its iteration gets the plan of one iteration: it serves every longer run,
too. A recording that does not repeat (one pass of inference, a pruning run) gets a plan of all of
its requests. Such a plan serves a run that asks for the same again, and no longer one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stalloc import _core
from stalloc.importers import KINETO, SNAPSHOT
from stalloc.planner import Streams
from stalloc.plans import Plan
from stalloc.progress import Progress
from stalloc.replaying import Replay, replay_stalloc
from stalloc.tables import NEVER, PHASE_KINDS, Int64s
from stalloc.trace import Trace

ITERATION = "iteration"
"""Scope of a plan that is repeated in every iteration."""
RECORDING = "recording"
"""Scope of a plan that covers all requests of the recording once."""

ENOUGH = 0.99
"""Efficiency at the peak from which the plan of one iteration is taken at once."""


@dataclass(frozen=True, slots=True)
class PlannedRecording:
    """A plan, and its replay.

    Attributes:
        plan: The plan.
        trace: The trace that it serves: the recording, or the recording as one iteration.
        row: stalloc's row with this plan.
        repeated: The row with the plan of one iteration, if `plan` covers the whole recording.
    """

    plan: Plan
    trace: Trace
    row: Replay
    repeated: Replay | None = None


def one_pass(trace: Trace) -> Trace:
    """The same requests as one iteration, which begins and ends with the trace.

    A request that is never freed lives to the end of the iteration: no iteration follows, so its
    address is never needed again.
    """
    requests, phases = trace.requests, trace.phases
    end = trace.end
    last = len(phases.begin) - 1
    never = requests.upper == NEVER
    kind = np.where(
        phases.kind == PHASE_KINDS.index("unplanned"), PHASE_KINDS.index("other"), phases.kind
    )
    occurrence: list[int] = []
    seen: Counter[tuple[int, int, int]] = Counter()
    for key in zip(kind.tolist(), phases.microbatch.tolist(), phases.chunk.tolist(), strict=True):
        occurrence.append(seen[key])
        seen[key] += 1
    return Trace(
        _core.make_trace(
            info=trace.info,
            end=end + 1,
            iterations=[0, end + 1],
            layers=trace.layers,
            phases={
                "kind": _column(kind),
                "microbatch": _column(phases.microbatch),
                "chunk": _column(phases.chunk),
                "occurrence": _column(np.array(occurrence, np.int64)),
                "begin": _column(phases.begin),
                "end": _column(np.append(phases.end[:-1], end + 1)),
                "iteration": _column(np.zeros(last + 1, np.int64)),
            },
            requests={
                "size": _column(requests.size),
                "lower": _column(requests.lower),
                "upper": _column(np.where(never, end, requests.upper)),
                "phase_begin": _column(requests.phase_begin),
                "phase_end": _column(np.where(never, last, requests.phase_end)),
                "layer_begin": _column(requests.layer_begin),
                "layer_end": _column(requests.layer_end),
                "stream": _column(requests.stream),
                "thread": _column(requests.thread),
                "dynamic": _column(np.zeros(len(requests.size), np.int64)),
            },
        )
    )


def plan_recording(
    trace: Trace,
    *,
    time_limit: float,
    startup: bool = True,
    capacity: int | None = None,
    progress: bool | Progress = False,
) -> PlannedRecording:
    """Plans a recording and replays it.

    The plan of one iteration is preferred. Where that leaves more than a hundredth of the
    peak unused, an imported recording is also planned as a whole; the smaller one is taken.
    Several streams keep to addresses of their own, unless it saves memory that they share them.

    Args:
        trace: The recording.
        time_limit: Seconds for each plan.
        startup: True if the plan is in force from the start of the process. Otherwise it comes into
            force later: it is the plan of one iteration, and start-up's blocks lie beside it.
        capacity: Bytes of the device; None for no limit.
        progress: As `Trace.plan` takes it.

    Raises:
        TraceError: The trace is inconsistent.
    """

    def planned(served: Trace, scope: str) -> PlannedRecording:
        def with_streams(streams: Streams) -> PlannedRecording:
            plan = served.plan(time_limit=time_limit, progress=progress, streams=streams)
            row = replay_stalloc(
                served, plan, capacity=capacity, startup=startup, scope=scope, streams=streams.value
            )
            return PlannedRecording(plan, served, row)

        result = with_streams(Streams.SEPARATE)
        if _is_dense(result.row) or len(np.unique(served.requests.stream)) == 1:
            return result
        return min(result, with_streams(Streams.ORDERED), key=_cost)

    result = planned(trace, ITERATION) if len(trace.iterations) > 1 else None
    if result is not None and (not startup or not is_imported(trace) or _is_dense(result.row)):
        return result
    whole = planned(one_pass(trace), RECORDING)
    if result is None:
        return whole
    return min(result, replace(whole, repeated=result.row), key=_cost)


def is_imported(trace: Trace) -> bool:
    """True if another program recorded the trace.

    Such a recording does not mark the sizes that depend on the data. A trace of stalloc's own marks
    them; a plan with those sizes would not fit the next run.
    """
    return trace.info.get("source") in (SNAPSHOT, KINETO)


def _is_dense(row: Replay) -> bool:
    return row.peak_efficiency is not None and row.peak_efficiency >= ENOUGH


def _cost(result: PlannedRecording) -> tuple[bool, int]:
    return result.row.peak_efficiency is None, result.row.peak_reserved


def _column(values: npt.ArrayLike) -> Int64s:
    return np.ascontiguousarray(values, dtype=np.int64)
