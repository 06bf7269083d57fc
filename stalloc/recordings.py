"""The plan for a recording of a whole run.

A recording that repeats its iteration gets the plan of one iteration: it serves every longer run,
too. A recording that does not repeat (one pass of inference, a pruning run) gets a plan of all of
its requests. Such a plan serves a run that asks for the same again, and no longer one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
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

TWO_ITERATIONS = "two iterations"
"""Scope of a plan that is repeated in every second iteration."""

ENOUGH = 0.99
"""Efficiency at the peak from which the plan of one iteration is taken at once."""

_ENOUGH_TO_JOIN = 5  # iterations: three are left, of which two can be compared
_PHASE_COLUMNS = ("kind", "microbatch", "chunk", "occurrence", "begin", "end", "iteration")
_REQUEST_COLUMNS = (
    *("size", "lower", "upper", "phase_begin", "phase_end", "layer_begin", "layer_end"),
    *("stream", "thread", "dynamic"),
)
Table = dict[str, Int64s]


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
    end, last = trace.end, len(trace.phases.begin) - 1
    never = requests.upper == NEVER
    kind = np.where(
        phases.kind == PHASE_KINDS.index("unplanned"), PHASE_KINDS.index("other"), phases.kind
    )
    occurrence: list[int] = []
    seen: Counter[tuple[int, int, int]] = Counter()
    for key in zip(kind.tolist(), phases.microbatch.tolist(), phases.chunk.tolist(), strict=True):
        occurrence.append(seen[key])
        seen[key] += 1
    return _like(
        trace,
        end + 1,
        [0, end + 1],
        {
            "kind": kind,
            "occurrence": occurrence,
            "end": np.append(phases.end[:-1], end + 1),
            "iteration": np.zeros(last + 1),
        },
        {
            "upper": np.where(never, end, requests.upper),
            "phase_end": np.where(never, last, requests.phase_end),
            "dynamic": np.zeros(len(requests.size)),
        },
    )


def joined(trace: Trace) -> Trace | None:
    """The same requests with two iterations taken for one.

    In training, `stalloc.step()` after every second step has the same effect. The first iteration,
    which holds start-up, is alone where the number is odd.

    Returns:
        None where fewer than three iterations are left.
    """
    count = len(trace.iterations) - 1
    iterations = [0, *trace.iterations[1 + (count + 1) % 2 :: 2]]
    if count < _ENOUGH_TO_JOIN:
        return None
    phases = trace.phases
    iteration = np.searchsorted(iterations, phases.begin, side="right") - 1
    microbatch, occurrence = phases.microbatch.tolist(), list[int]()
    spans: Counter[int] = Counter()
    seen: Counter[tuple[int, int]] = Counter()
    last = -1
    for row, (kind, at) in enumerate(zip(phases.kind.tolist(), iteration.tolist(), strict=True)):
        if at != last:
            spans.clear()
            seen.clear()
            last = at
        if microbatch[row] >= 0:
            microbatch[row] = spans[kind]
            spans[kind] += 1
        occurrence.append(seen[kind, microbatch[row]])
        seen[kind, microbatch[row]] += 1
    return _like(
        trace,
        trace.end,
        iterations,
        {"microbatch": microbatch, "occurrence": occurrence, "iteration": iteration},
        {},
    )


def _like(
    trace: Trace,
    end: int,
    iterations: list[int],
    phases: Mapping[str, npt.ArrayLike],
    requests: Mapping[str, npt.ArrayLike],
) -> Trace:
    """A trace with other iterations, and other columns in the place of some."""

    def columns(table: object, names: tuple[str, ...], other: Mapping[str, npt.ArrayLike]) -> Table:
        return {name: _column(other.get(name, getattr(table, name))) for name in names}

    return Trace(
        _core.make_trace(
            info=trace.info,
            end=end,
            iterations=iterations,
            layers=trace.layers,
            phases=columns(trace.phases, _PHASE_COLUMNS, phases),
            requests=columns(trace.requests, _REQUEST_COLUMNS, requests),
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

    The plan of one iteration is preferred. If that leaves more than a hundredth of the
    peak unused, an imported recording is planned by two iterations, too, and then as a whole; the
    smallest one is taken.
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
    if result is not None and (pairs := joined(trace)) is not None:
        result = min(result, planned(pairs, TWO_ITERATIONS), key=_cost)
        if _is_dense(result.row):
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
