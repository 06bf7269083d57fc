"""What allocators would reserve for a trace: torch's by a model of its policy, stalloc's by itself.

Nothing here needs a GPU: sizes, lifetimes and streams are enough for the decisions that allocators
make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stalloc import _core
from stalloc.planfile import Plan
from stalloc.trace import Trace

TORCH = "torch"
TORCH_EXPANDABLE = "torch, expandable segments"
STALLOC = "stalloc"

UNROLLED = 5
"""Iterations that a plan without its trace is replayed for."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What one allocator did with a trace.

    Attributes:
        allocator: Its name.
        load: The most bytes live at once in the last complete iteration, as asked.
        reserved: The most bytes held of the device in that iteration.
        peak_reserved: The same over the whole trace, warm-up included.
        efficiency: `load / reserved`.
        native_calls: Calls to the device: cudaMalloc, cudaFree, chunks mapped and unmapped.
        mallocs: Of these, cudaMalloc.
        frees: cudaFree.
        maps: Chunks mapped.
        unmaps: Chunks unmapped.
        fits: Whether it never ran out of memory, at the capacity that was given; None without.
        failed_request: Row of the request that did not fit, or -1.
        failed_size: Its bytes.
        hit_rate: Of a plan, the share of static requests served at their planned address.
        measured: For torch, the most bytes it held when the trace was recorded, where known.
    """

    allocator: str
    load: int
    reserved: int
    peak_reserved: int
    efficiency: float
    native_calls: int
    mallocs: int
    frees: int
    maps: int
    unmaps: int
    fits: bool | None
    failed_request: int
    failed_size: int
    hit_rate: float | None = None
    measured: int | None = None


def replay_torch(
    trace: Trace, *, expandable_segments: bool = False, capacity: int | None = None
) -> Replay:
    """Replays a trace under torch's caching allocator with its default settings.

    Args:
        trace: What to allocate.
        expandable_segments: As in `PYTORCH_CUDA_ALLOC_CONF`.
        capacity: Bytes of the device; None for no limit.

    Raises:
        TraceError: The trace is inconsistent.
    """
    settings = _core.CachingSettings(
        expandable_segments=expandable_segments, capacity=capacity or 0
    )
    result = _core.replay_caching(trace._core, settings)
    measured = None
    # What was recorded is the truth for the settings that it was recorded with.
    if (trace.info.get("torch_expandable_segments") == "True") == expandable_segments:
        text = trace.info.get("torch_reserved", "")
        # Less than what was live is no measurement: the recording does not tell of all segments.
        measured = int(text) if text.isdecimal() and int(text) >= result["load"] else None
    name = TORCH_EXPANDABLE if expandable_segments else TORCH
    return _to_replay(name, result, capacity, measured=measured)


def replay_stalloc(
    trace: Trace, plan: Plan, *, capacity: int | None = None, reuse: bool = True
) -> Replay:
    """Replays a trace under stalloc's own runtime, with a plan, on a pretended device.

    Args:
        trace: What to allocate.
        plan: The addresses; of this trace, or of another.
        capacity: Bytes of the device; None for no limit.
        reuse: Whether dynamic requests are served inside the pool.

    Raises:
        TraceError: The trace is inconsistent.
        PlanError: The plan is not sound.
    """
    result = _core.replay_planned(trace._core, plan._core, capacity or 0, reuse)
    asked = result["hits"] + result["misses"]
    rate = result["hits"] / asked if asked else 1.0
    return _to_replay(STALLOC, result, capacity, hit_rate=rate)


def replay_all(trace: Trace, plan: Plan, *, capacity: int | None = None) -> list[Replay]:
    """A trace under each allocator: torch's, the same with expandable segments, and stalloc."""
    return [
        replay_torch(trace, capacity=capacity),
        replay_torch(trace, expandable_segments=True, capacity=capacity),
        replay_stalloc(trace, plan, capacity=capacity),
    ]


def unroll(plan: Plan, turns: int = UNROLLED) -> Trace:
    """The static requests of a plan's iteration, `turns` times in a row, as a trace.

    Raises:
        PlanError: The plan is not sound.
    """
    return Trace(_core.unroll(plan._core, turns))


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
        peak_reserved=result["peak_reserved"],
        efficiency=result["efficiency"],
        native_calls=result["native_calls"],
        mallocs=result["mallocs"],
        frees=result["frees"],
        maps=result["maps"],
        unmaps=result["unmaps"],
        fits=None if capacity is None else result["failed"] < 0,
        failed_request=result["failed"],
        failed_size=result["failed_size"],
        hit_rate=hit_rate,
        measured=measured,
    )
