"""Replays a trace: torch's allocator as a model of its policy, stalloc's as it is.

Nothing here needs a GPU: sizes, lifetimes and streams are enough for the decisions that allocators
make.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stalloc import _core
from stalloc.planner import Streams
from stalloc.plans import Plan
from stalloc.trace import Trace

TORCH = "torch"
TORCH_EXPANDABLE = "torch, expandable segments"
GMLAKE = "GMLake"
STALLOC = "stalloc"

# Keys of a trace's info for the settings of torch's allocator during the recording.
EXPANDABLE_SEGMENTS = "torch_expandable_segments"
MAX_SPLIT_SIZE = "torch_max_split_size"
NON_SPLIT_ROUNDING = "torch_max_non_split_rounding"
GARBAGE_COLLECTION = "torch_garbage_collection_threshold"
DIVISIONS = "torch_roundup_power2_divisions"

SCOPE = "scope"
"""The key in the `info` of a plan, and of the trace it was made of, for what the plan covers."""
ITERATION = "iteration"
"""Scope of a plan that is repeated in every iteration."""
RECORDING = "recording"
"""Scope of a plan that covers all requests of the recording once."""

_INTERVALS = 16  # of roundup_power2_divisions
_UNLIMITED = 1 << 48  # bytes; torch writes a larger value for no limit

LEAST_RESERVED = 256 << 20
"""Bytes of a plan; the last page of a large expandable segment is at most 8 % of them."""

PAGE = 2 << 20
"""Bytes of a page of the device: each piece of memory that an allocator takes has whole ones."""

UNROLLED = 5
"""Iterations that a plan without its trace is replayed for."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of one allocator for a trace.

    An allocator that runs out of memory has the figures up to that request. If stalloc's pool
    itself does not fit, the figures are those of a device without a limit.

    Attributes:
        allocator: Its name.
        load: The most bytes live at once in the last complete iteration, as asked.
        reserved: The most bytes held of the device in that iteration.
        peak_load: The most bytes live at once over the whole trace, start-up included.
        peak_reserved: The most bytes held of the device over the whole trace.
        efficiency: `load / reserved`; None when it ran out of memory.
        peak_efficiency: `peak_load / peak_reserved`; None when it ran out of memory.
        native_calls: Calls to the device: cudaMalloc, cudaFree, chunks mapped and unmapped.
        mallocs: The number of cudaMalloc among them.
        frees: cudaFree.
        maps: Chunks mapped.
        unmaps: Chunks unmapped.
        moves: For stalloc, how often memory moved within the pool; on a device each waits for it.
        fits: True if it never ran out of the given capacity; None without a capacity.
        failed_request: Row of the request that did not fit; -1 if there is none, or if stalloc's
            pool itself did not fit.
        failed_size: Bytes of that request, or of the pool in whole pages: with the resident region
            if the pool alone would fit.
        hit_rate: The share of static requests that a plan served at their address.
        measured: For torch, the most bytes it held when the trace was recorded, where known.
        scope: `iteration` if the plan is repeated, `recording` if it covers all requests once.
        streams: `ordered` if the streams of the plan share addresses, else `separate`.
        fallback: For stalloc, the allocator of the requests outside the pool: `torch` or `stalloc`.
    """

    allocator: str
    load: int
    reserved: int
    peak_load: int
    peak_reserved: int
    efficiency: float | None
    peak_efficiency: float | None
    native_calls: int
    mallocs: int
    frees: int
    maps: int
    unmaps: int
    moves: int
    fits: bool | None
    failed_request: int
    failed_size: int
    hit_rate: float | None = None
    measured: int | None = None
    scope: str | None = None
    streams: Streams | None = None
    fallback: str | None = None


def default_fallback(trace: Trace) -> str:
    """The allocator of the requests outside the pool where a user follows the documentation.

    In native mode, which CUDA has, that is torch's. Elsewhere it is stalloc's own.
    """
    return TORCH if trace.info.get("device") == "cuda" else STALLOC


def recorded_settings(
    trace: Trace, *, expandable_segments: bool | None = None, capacity: int | None = None
) -> _core.CachingSettings:
    """The settings that torch's allocator had when a snapshot was recorded, else its defaults.

    Args:
        trace: Its `info` has them.
        expandable_segments: Overrides the recorded setting unless None.
        capacity: Bytes of the device; None for no limit.
    """
    info = trace.info
    if expandable_segments is None:
        expandable_segments = recorded_expandable(trace)
    divisions = [_number(text) for text in info.get(DIVISIONS, "").split(",")][:_INTERVALS]
    return _core.CachingSettings(
        expandable_segments=expandable_segments,
        max_split_size=_number(info.get(MAX_SPLIT_SIZE, "")),
        garbage_collection_threshold=_fraction(info.get(GARBAGE_COLLECTION, "")),
        roundup_power2_divisions=divisions,
        max_non_split_rounding=_number(info.get(NON_SPLIT_ROUNDING, "")),
        capacity=capacity or 0,
    )


def recorded_expandable(trace: Trace) -> bool:
    """True if torch used expandable segments during the recording."""
    return trace.info.get(EXPANDABLE_SEGMENTS) == "True"


def other_settings(trace: Trace) -> str:
    """The settings of torch that are not its defaults, in words; or nothing."""
    info = trace.info
    found = []
    if recorded_expandable(trace):
        found.append("expandable_segments (the other row is without)")
    if _number(info.get(MAX_SPLIT_SIZE, "")):
        size = _core.format_bytes(_number(info[MAX_SPLIT_SIZE]))
        found.append(f"max_split_size of {size}")
    if _number(info.get(NON_SPLIT_ROUNDING, "")):
        size = _core.format_bytes(_number(info[NON_SPLIT_ROUNDING]))
        found.append(f"max_non_split_rounding of {size}")
    if _fraction(info.get(GARBAGE_COLLECTION, "")):
        found.append(f"garbage_collection_threshold {_fraction(info[GARBAGE_COLLECTION])}")
    if any(map(_number, info.get(DIVISIONS, "").split(","))):
        found.append(f"roundup_power2_divisions {info[DIVISIONS]}")
    return ", ".join(found)


def _number(text: str) -> int:
    """A setting in numbers; 0 if it is unlimited, off, or no number."""
    value = int(text) if re.fullmatch(r"[0-9]{1,18}", text) else 0
    return value if value < _UNLIMITED else 0


def _fraction(text: str) -> float:
    value = float(text) if re.fullmatch(r"0?\.[0-9]{1,18}", text) else 0.0
    return value if 0 < value < 1 else 0.0


def replay_torch(
    trace: Trace, *, expandable_segments: bool = False, capacity: int | None = None
) -> Replay:
    """Replays a trace under torch's caching allocator.

    Its settings are those that a snapshot recorded, else the defaults.

    Args:
        trace: The requests.
        expandable_segments: As in `PYTORCH_CUDA_ALLOC_CONF`.
        capacity: Bytes of the device; None for no limit.

    Raises:
        TraceError: The trace is inconsistent.
    """
    settings = recorded_settings(trace, expandable_segments=expandable_segments, capacity=capacity)
    result = _core.replay_caching(trace._core, settings)
    measured = None
    # The recording itself is the truth for its own settings.
    if recorded_expandable(trace) == expandable_segments:
        text = trace.info.get("torch_reserved", "")
        # A value below the live bytes is no measurement: the recording lacks some segments.
        measured = _number(text) if _number(text) >= result["load"] else None
    name = TORCH_EXPANDABLE if expandable_segments else TORCH
    return _to_replay(name, result, capacity, measured=measured)


FRAGMENT_LIMIT = 512 << 20
"""Bytes; GMLake's default of the smallest request for which it stitches idle pieces together."""


def replay_gmlake(
    trace: Trace, *, fragment_limit: int = FRAGMENT_LIMIT, capacity: int | None = None
) -> Replay:
    """Replays a trace under a model of GMLake (Guo et al., ASPLOS '24), a fork of torch 2.0.

    Args:
        trace: The requests.
        fragment_limit: Bytes; its `fragLimit`. Its other settings are its defaults.
        capacity: Bytes of the device; None for no limit.

    Raises:
        TraceError: The trace is inconsistent.
    """
    result = _core.replay_stitching(trace._core, fragment_limit, capacity or 0)
    return _to_replay(GMLAKE, result, capacity)


def replay_stalloc(
    trace: Trace,
    plan: Plan,
    *,
    capacity: int | None = None,
    reuse: bool = True,
    startup: bool = True,
    scope: str | None = None,
    streams: Streams | None = None,
    fallback: str = STALLOC,
) -> Replay:
    """Replays a trace under stalloc's own runtime, with a plan, on a pretended device.

    A trace that begins with start-up is served from there, else from its first iteration on.

    Args:
        trace: The requests.
        plan: The addresses; of this trace, or of another.
        capacity: Bytes of the device; None for no limit.
        reuse: Serve dynamic requests inside the pool.
        startup: True if the plan is in force from the start of the trace.
        scope: The scope that the row states.
        streams: The handling of streams that the row states.
        fallback: The allocator of the requests outside the pool: `stalloc`, or `torch` with the
            settings that a snapshot recorded. If these are its defaults, a plan that is in force
            from the start turns expandable segments on, as `stalloc.enable` does.

    Raises:
        TraceError: The trace is inconsistent.
        PlanError: The plan is not sound.
    """
    settings, expands = None, False
    if fallback == TORCH:
        expands = startup and _expands(trace, plan)
        settings = recorded_settings(trace, expandable_segments=expands or None)

    def replayed(limit: int) -> dict[str, Any]:
        return _core.replay_planned(
            trace._core, plan._core, limit, reuse, startup, PAGE, settings, thrifty=expands
        )

    result, too_large = replayed(capacity or 0), None
    if capacity and result["failed"] == 0 and result["peak_reserved"] == 0:
        pool = in_pages(plan.pool)
        needed = pool if pool > capacity else pool + in_pages(plan.resident)
        if needed > capacity:  # else the first request did not fit beside an empty pool
            result, too_large = replayed(0), needed
    asked = result["hits"] + result["misses"]
    rate = result["hits"] / asked if asked else 1.0
    row = _to_replay(STALLOC, result, capacity, hit_rate=rate)
    if too_large is not None:
        row = replace(row, fits=False, efficiency=None, peak_efficiency=None, failed_size=too_large)
    return replace(row, scope=scope, streams=streams, fallback=fallback)


def in_pages(count: int) -> int:
    """The bytes of the device's pages that so many bytes take."""
    return -(-count // PAGE) * PAGE


def _expands(trace: Trace, plan: Plan) -> bool:
    """True if stalloc turns torch's expandable segments on for this plan, see `_expandable`."""
    return not other_settings(trace) and plan.pool + plan.resident >= LEAST_RESERVED


def replay_both_torch(trace: Trace, *, capacity: int | None = None) -> list[Replay]:
    """A trace under torch's allocator, and under the same with expandable segments."""
    return [
        replay_torch(trace, capacity=capacity),
        replay_torch(trace, expandable_segments=True, capacity=capacity),
    ]


def replay_all(trace: Trace, plan: Plan, *, capacity: int | None = None) -> list[Replay]:
    """A trace under each allocator: torch's, the same with expandable segments, and stalloc."""
    return [
        *replay_both_torch(trace, capacity=capacity),
        replay_stalloc(trace, plan, capacity=capacity),
    ]


def unroll(plan: Plan, iterations: int = UNROLLED, *, startup: bool = True) -> Trace:
    """The static requests of a plan's iteration, `iterations` times in a row, as a trace.

    Args:
        plan: The plan.
        iterations: How many iterations.
        startup: The first iteration also makes the permanent requests of start-up: weights,
            gradients, the optimizer's states.

    Raises:
        PlanError: The plan is not sound.
    """
    return Trace(_core.unroll(plan._core, iterations, startup))


def _to_replay(
    allocator: str,
    result: Mapping[str, int],
    capacity: int | None,
    *,
    hit_rate: float | None = None,
    measured: int | None = None,
) -> Replay:
    return Replay(
        allocator=allocator,
        load=result["load"],
        reserved=result["reserved"],
        peak_load=result["peak_load"],
        peak_reserved=result["peak_reserved"],
        efficiency=result["efficiency"] if result["failed"] < 0 else None,
        peak_efficiency=_share(result) if result["failed"] < 0 else None,
        native_calls=result["native_calls"],
        mallocs=result["mallocs"],
        frees=result["frees"],
        maps=result["maps"],
        unmaps=result["unmaps"],
        moves=result.get("moves", 0),
        fits=None if capacity is None else result["failed"] < 0,
        failed_request=result["failed"],
        failed_size=result["failed_size"],
        hit_rate=hit_rate,
        measured=measured,
    )


def _share(result: Mapping[str, int]) -> float:
    reserved = result["peak_reserved"]
    return result["peak_load"] / reserved if reserved else 1.0


@dataclass(frozen=True, slots=True)
class Served:
    """The requests of a recording under a plan.

    Attributes:
        bytes: The pool, and the most that is live beside it.
        hits: Share of the planned requests.
        served: The same, as a share of all requests of its complete iterations.
    """

    bytes: int
    hits: float
    served: float


def serve(trace: Trace, plan: Plan, *, startup: bool = False) -> Served:
    """Replays a recording under a plan that goes into force after start-up, or with it."""
    result = _core.replay_planned(trace._core, plan._core, startup=startup)
    asked = result["hits"] + result["misses"]
    hits = result["hits"] / asked if asked else 1.0
    begin, end = trace.iterations[0], trace.iterations[-1]
    lower = trace.requests.lower
    made = int(((lower >= begin) & (lower < end)).sum())
    return Served(result["pool"] + result["beside"], hits, result["hits"] / max(made, 1))
