"""The answer: the memory of a GPU that a recorded run needs, and whether it fits."""

from __future__ import annotations

import pickle
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from stalloc import liveness, replaying
from stalloc._estimate.cards import Card
from stalloc._estimate.extras import Extra
from stalloc._estimate.parts import parts_at
from stalloc._script import Guess
from stalloc.errors import PlanError, TraceError
from stalloc.liveness import Liveness
from stalloc.plans import Plan
from stalloc.recordings import changed
from stalloc.trace import Trace

FITS = "fits"
MAY_NOT_FIT = "may not fit"
DOES_NOT_FIT = "does not fit"

_SAMPLES = 512  # of the curve in JSON


@dataclass(frozen=True, slots=True)
class Need:
    """The memory of the GPU that one allocator needs.

    Attributes:
        allocator: `torch`, `torch, expandable segments`, or `stalloc`.
        reserved: The most bytes it holds of the device, over the whole run.
        low: The least that the process holds: `reserved` and the device's extras.
        high: The most.
        verdict: `fits`, `may not fit` or `does not fit`; None without a GPU to compare with.
        free: Bytes that are left of the GPU's memory, if `high` is needed; negative if it lacks.
    """

    allocator: str
    reserved: int
    low: int
    high: int
    verdict: str | None
    free: int | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """The memory of a GPU that a training run needs.

    Attributes:
        load: The most bytes of tensors that are live at once.
        needs: For each allocator: torch's, the same with expandable segments, and stalloc's.
        parts: What the load consists of at its peak: bytes by name.
        phase: The phase in which the load peaks, as in `backward 0`.
        layer: The module that requests then; empty outside modules.
        extras: What the device needs beside the allocator.
        iterations: Complete iterations that were recorded.
        requests: Requests that were recorded.
        guesses: Values that the program read, and that were not computed.
        card: The GPU, or None.
        trace: The recorded trace.
        plan: stalloc's plan for it; None if nothing could be planned.
    """

    load: int
    needs: tuple[Need, ...]
    parts: dict[str, int]
    phase: str
    layer: str
    extras: tuple[Extra, ...]
    iterations: int
    requests: int
    guesses: tuple[Guess, ...]
    card: Card | None
    trace: Trace = field(repr=False, compare=False)
    plan: Plan | None = field(repr=False, compare=False)

    def need(self, allocator: str = replaying.TORCH) -> Need:
        """The need of an allocator.

        Raises:
            KeyError: It is none of those in `needs`.
        """
        for need in self.needs:
            if need.allocator == allocator:
                return need
        raise KeyError(allocator)

    @property
    def reserved(self) -> int:
        """The most bytes that torch's allocator holds, with its default settings."""
        return self.need().reserved

    @property
    def fits(self) -> bool | None:
        """True if the run fits under torch's allocator even at the upper end of the range."""
        verdict = self.need().verdict
        return None if verdict is None else verdict == FITS

    @property
    def live(self) -> Liveness:
        """Live bytes over the whole run."""
        return liveness.of_trace(self.trace, whole=True)

    @property
    def limit(self) -> int | None:
        """Bytes of the GPU that an allocator surely gets; None without a GPU."""
        if self.card is None:
            return None
        beside = sum(extra.high for extra in self.extras)
        return max(0, self.card.memory - self.card.uncertain - beside)

    def to_json(self) -> dict[str, Any]:
        """The answer as plain values."""
        live = self.live
        return {
            "load": self.load,
            "gpu": None if self.card is None else asdict(self.card),
            "needs": [asdict(need) for need in self.needs],
            "parts": self.parts,
            "peak": {"phase": self.phase, "layer": self.layer},
            "extras": [asdict(extra) for extra in self.extras],
            "iterations": self.iterations,
            "requests": self.requests,
            "guesses": [asdict(guess) for guess in self.guesses],
            "limit": self.limit,
            "curve": live.sampled(min(_SAMPLES, max(live.period, 1))),
        }


def packed(estimate: Estimate) -> bytes:
    """An estimate for another process."""
    plan = None if estimate.plan is None else estimate.plan.to_json()
    bare: Any = replace(estimate, trace=None, plan=None)  # type: ignore[arg-type]
    return pickle.dumps((bare, estimate.trace.to_json(), plan))


def unpacked(content: bytes) -> Estimate:
    """The estimate that was packed."""
    bare, trace, plan = pickle.loads(content)
    source = "the estimate of a rank"
    whole = None if plan is None else Plan.from_json(plan, source)
    estimate: Estimate = replace(bare, trace=Trace.from_json(trace, source), plan=whole)
    return estimate


def with_verdict(estimate: Estimate) -> Trace:
    """The recorded trace with the answer in its info, for reports."""
    card, verdict, limit = estimate.card, estimate.need().verdict, estimate.limit
    if card is None or verdict is None or limit is None:
        return estimate.trace
    told = {"verdict": f"{verdict} on {card.name} with torch", "gpu_limit": str(limit)}
    return changed(estimate.trace, info={**estimate.trace.info, **told})


def answer(
    trace: Trace,
    *,
    card: Card | None,
    extras: tuple[Extra, ...],
    guesses: tuple[Guess, ...],
    plan: bool = True,
) -> Estimate:
    """Makes the answer of a recorded trace, with stalloc's row if `plan`.

    Raises:
        TraceError: The trace holds no requests, or is inconsistent.
    """
    if len(trace.requests) == 0:
        raise TraceError("nothing was requested on the GPU")
    live = liveness.of_trace(trace, whole=True)
    peak = live.peak
    row = int(np.searchsorted(trace.requests.lower, peak, side="right")) - 1
    layer = int(trace.requests.layer_begin[row])
    planned = _plan(trace) if plan else None
    return Estimate(
        load=live.live_at(peak),
        needs=tuple(_needs(trace, planned, card, extras)),
        parts=parts_at(trace, peak),
        phase=live.phase_at(peak),
        layer=trace.layers[layer] if layer >= 0 else "",
        extras=extras,
        iterations=max(0, len(trace.iterations) - 1),
        requests=len(trace.requests),
        guesses=guesses,
        card=card,
        trace=trace,
        plan=planned,
    )


def _plan(trace: Trace) -> Plan | None:
    try:
        return trace.plan()
    except (TraceError, PlanError):
        return None  # no complete iteration: torch's allocators tell what they need all the same


def _needs(
    trace: Trace, plan: Plan | None, card: Card | None, extras: tuple[Extra, ...]
) -> list[Need]:
    def replays(capacity: int | None) -> list[replaying.Replay]:
        rows = replaying.replay_both_torch(trace, capacity=capacity)
        if plan is not None:
            rows.append(
                replaying.replay_stalloc(trace, plan, capacity=capacity, fallback=replaying.TORCH)
            )
        return rows

    least, most = sum(extra.low for extra in extras), sum(extra.high for extra in extras)
    free = replays(None)
    if card is None:
        return [_need(row, least, most) for row in free]
    # Under pressure an allocator gives back what it has cached, so the limit is tried.
    worst = replays(max(1, card.memory - card.uncertain - most))
    best = replays(max(1, card.memory + card.uncertain - least))
    result = []
    for row, high, low in zip(free, worst, best, strict=True):
        verdict = FITS if high.fits else MAY_NOT_FIT if low.fits else DOES_NOT_FIT
        result.append(_need(row, least, most, verdict, card.memory))
    return result


def fits(trace: Trace, allocator: str, card: Card, extras: tuple[Extra, ...]) -> bool:
    """True if a trace surely fits the card under torch's allocator."""
    most = sum(extra.high for extra in extras)
    capacity = max(1, card.memory - card.uncertain - most)
    return bool(_replayed(trace, allocator, capacity).fits)


def reserved(trace: Trace, allocator: str) -> int:
    """The most bytes that torch's allocator holds for a trace on a card without a limit."""
    return _replayed(trace, allocator, None).peak_reserved


def _replayed(trace: Trace, allocator: str, capacity: int | None) -> replaying.Replay:
    expandable = allocator == replaying.TORCH_EXPANDABLE
    return replaying.replay_torch(trace, expandable_segments=expandable, capacity=capacity)


def _need(
    row: replaying.Replay,
    least: int,
    most: int,
    verdict: str | None = None,
    memory: int | None = None,
) -> Need:
    high = row.peak_reserved + most
    return Need(
        allocator=row.allocator,
        reserved=row.peak_reserved,
        low=row.peak_reserved + least,
        high=high,
        verdict=verdict,
        free=None if memory is None else memory - high,
    )
