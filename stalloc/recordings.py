"""The plan for a recording of a whole run.

A recording of training gets the plan of one iteration: it serves every longer run, too. Any other
recording (one pass of inference, a pruning run) may get a plan of all of its requests. Such a plan
serves a run that makes the same requests again, and no longer one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stalloc import _core
from stalloc.importers import KINETO, REPEATED, SNAPSHOT
from stalloc.planner import Streams
from stalloc.plans import Plan
from stalloc.progress import Progress
from stalloc.replaying import (
    ITERATION,
    PAGE,
    RECORDING,
    SCOPE,
    Replay,
    default_fallback,
    replay_stalloc,
)
from stalloc.tables import NEVER, PHASE_KINDS, Int64s
from stalloc.trace import Trace

ENOUGH = 0.99
"""Efficiency at the peak from which the plan of one iteration is taken at once."""

_PIECES = 2  # of memory: the pool and the resident region
_ONE = 2  # boundaries of a single iteration
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
        startup: True if the plan is in force from the start of the process.
        given: True if the plan was made earlier, perhaps for another recording.
    """

    plan: Plan
    trace: Trace
    row: Replay
    repeated: Replay | None = None
    startup: bool = True
    given: bool = False


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
    return changed(
        trace,
        info={**trace.info, SCOPE: RECORDING},
        end=end + 1,
        iterations=[0, end + 1],
        phases={
            "kind": kind,
            "occurrence": occurrence,
            "end": np.append(phases.end[:-1], end + 1),
            "iteration": np.zeros(last + 1),
        },
        requests={
            "upper": np.where(never, end, requests.upper),
            "phase_end": np.where(never, last, requests.phase_end),
            "dynamic": np.zeros(len(requests.size)),
        },
    )


def changed(
    trace: Trace,
    *,
    info: Mapping[str, str] | None = None,
    end: int | None = None,
    iterations: list[int] | None = None,
    phases: Mapping[str, npt.ArrayLike] | None = None,
    requests: Mapping[str, npt.ArrayLike] | None = None,
) -> Trace:
    """A trace with another `info` and other iterations, and other columns in the place of some."""

    def columns(table: object, names: tuple[str, ...], other: Mapping[str, npt.ArrayLike]) -> Table:
        return {name: _column(other.get(name, getattr(table, name))) for name in names}

    return Trace(
        _core.make_trace(
            info=dict(trace.info if info is None else info),
            end=trace.end if end is None else end,
            iterations=trace.iterations if iterations is None else iterations,
            layers=trace.layers,
            phases=columns(trace.phases, _PHASE_COLUMNS, phases or {}),
            requests=columns(trace.requests, _REQUEST_COLUMNS, requests or {}),
        )
    )


def plan_recording(
    trace: Trace,
    *,
    time_limit: float | None = None,
    startup: bool = True,
    capacity: int | None = None,
    once: Callable[[], Trace] | None = None,
    fallback: str | None = None,
    progress: bool | Progress = False,
) -> PlannedRecording:
    """Plans a recording and replays it.

    The plan of one iteration is preferred. An imported recording without training (inference,
    pruning) is planned as a whole, too, if the plan of one iteration leaves more than a hundredth
    of the peak unused; the better one is taken.
    Several streams keep to addresses of their own, unless it saves memory that they share them.

    Args:
        trace: The recording.
        time_limit: Seconds for all plans together; None as for `Trace.plan`.
        startup: True if the plan is in force from the start of the process. Otherwise it comes into
            force later: it is the plan of one iteration, and start-up's blocks lie beside it.
        capacity: Bytes of the device; None for no limit.
        once: Makes the trace of the recording as it is, where the importer has repeated its
            iteration. Repetitions that nobody recorded are never planned as a whole.
        fallback: The allocator of the requests outside the pool, `torch` or `stalloc`; None for the
            one of the recording's device.
        progress: As `Trace.plan` takes it.

    Raises:
        TraceError: The trace is inconsistent.
    """
    deadline = None if time_limit is None else time.monotonic() + time_limit

    def limit(*, last: bool) -> float | None:
        if deadline is None:
            return None
        left = max(deadline - time.monotonic(), 0.0)
        return left if last else left / 2

    def planned(served: Trace, *, last: bool) -> PlannedRecording:
        several = len(np.unique(served.requests.stream)) > 1

        def with_streams(streams: Streams, *, last: bool) -> PlannedRecording:
            plan = served.plan(time_limit=limit(last=last), progress=progress, streams=streams)
            return replayed(served, plan, startup=startup, capacity=capacity, fallback=fallback)

        result = with_streams(Streams.SEPARATE, last=last and not several)
        if _is_dense(result.row) or not several:
            return result
        return max(result, with_streams(Streams.ORDERED, last=last), key=_merit)

    is_alone = len(trace.iterations) <= _ONE  # no iteration repeats, or there is none
    may_be_whole = startup and is_imported(trace) and (is_alone or not is_training(trace))
    if is_repeated(trace) and once is None:
        may_be_whole = False
    if len(trace.iterations) == 1:
        return planned(one_pass(trace), last=True)
    result = planned(trace, last=not may_be_whole)
    if not may_be_whole or _is_dense(result.row):
        return result
    whole = planned(one_pass(once() if once is not None else trace), last=True)
    return max(result, replace(whole, repeated=result.row), key=_merit)


def replayed(
    trace: Trace,
    plan: Plan,
    *,
    startup: bool = True,
    capacity: int | None = None,
    fallback: str | None = None,
    given: bool = False,
) -> PlannedRecording:
    """Replays a recording with a plan.

    Args:
        trace: The recording.
        plan: Its plan, or that of another one. If it covers a whole recording, so does the replay.
        startup: As for `plan_recording`.
        capacity: As for `plan_recording`.
        fallback: As for `plan_recording`.
        given: True if the plan was made earlier.

    Raises:
        TraceError: The trace is inconsistent.
        PlanError: The plan is not sound.
    """
    if is_whole(plan.info) and not is_whole(trace.info):
        trace = one_pass(trace)
    row = replay_stalloc(
        trace,
        plan,
        capacity=capacity,
        startup=startup,
        scope=RECORDING if is_whole(plan.info) else ITERATION,
        streams=plan.streams,
        fallback=fallback or default_fallback(trace),
    )
    return PlannedRecording(plan, trace, row, startup=startup, given=given)


def is_imported(trace: Trace) -> bool:
    """True if another program recorded the trace.

    Such a recording does not mark the sizes that depend on the data. A trace of stalloc's own marks
    them; a plan with those sizes would not fit the next run.
    """
    return trace.info.get("source") in (SNAPSHOT, KINETO)


def is_training(trace: Trace) -> bool:
    """True if the trace has an optimizer's step.

    A backward alone is none: importers also take the layers of a single pass for iterations.
    """
    return bool((trace.phases.kind == PHASE_KINDS.index("optimizer")).any())


def is_repeated(trace: Trace) -> bool:
    """True if the importer has repeated the only iteration that was recorded."""
    return REPEATED in trace.info


def is_whole(info: Mapping[str, str]) -> bool:
    """True if a trace or plan with this `info` covers a whole recording."""
    return info.get(SCOPE) == RECORDING


def _is_dense(row: Replay) -> bool:
    """True if no other plan is worth a search: the ends of two pages cannot be helped."""
    unavoidable = _PIECES * PAGE
    return row.peak_efficiency is not None and (
        row.peak_load >= ENOUGH * (row.peak_reserved - unavoidable)
    )


def _merit(result: PlannedRecording) -> float:
    """The share of the memory that is used: comparable where traces differ in length."""
    return result.row.peak_efficiency or 0.0


def _column(values: npt.ArrayLike) -> Int64s:
    return np.ascontiguousarray(values, dtype=np.int64)
