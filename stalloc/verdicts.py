"""The conclusion of a replay: the allocator that reserves least, by how much, and why.

The comparison uses peaks of the whole replay, modelled against modelled. The bytes that torch held
during the recording stand beside its row; a note explains a large difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stalloc import _core
from stalloc.plans import Plan
from stalloc.recordings import RECORDING, TWO_ITERATIONS, PlannedRecording
from stalloc.replaying import EXPANDABLE_SEGMENTS, Replay
from stalloc.trace import Trace

_LARGE = 0.05  # share of the measured bytes by which the model may be off without a word
_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Torch and stalloc on one recording.

    Attributes:
        rows: Torch, torch with expandable segments, stalloc.
        plan: The plan that stalloc serves.
        saved: Bytes that stalloc reserves less at the peak than torch with the settings of the
            recording does, negative when more; None where one of them runs out of memory.
        best: Name of the allocator that reserves least and fits; None where all run out of memory.
        coverage: The part of the recording that the plan covers, in words.
        verdict: The answer in one sentence; empty where `saved` is None.
        notes: Facts that a reader needs to judge the figures.
    """

    rows: list[Replay]
    plan: Plan
    saved: int | None
    best: str | None
    coverage: str
    verdict: str
    notes: list[str]

    @classmethod
    def of(
        cls, trace: Trace, ours: PlannedRecording, torch: Sequence[Replay], expandable: bool
    ) -> Comparison:
        """Compares.

        Args:
            trace: The recording.
            ours: stalloc's plan and row.
            torch: Torch's row, and the one with expandable segments.
            expandable: True if the second row has the settings of the recording.
        """
        base = torch[expandable]
        rows = [*torch, ours.row]
        fitting = [row for row in (ours.row, *torch) if row.peak_efficiency is not None]
        best = min(fitting, key=lambda row: row.peak_reserved) if fitting else None
        saved = None
        if base in fitting and ours.row in fitting:
            saved = base.peak_reserved - ours.row.peak_reserved
        verdict = "" if saved is None or best is None else _verdict(ours, torch, base, best)
        return cls(
            rows=rows,
            plan=ours.plan,
            saved=saved,
            best=None if best is None else best.allocator,
            coverage=_coverage(ours.row),
            verdict=verdict,
            notes=[*_notes(trace, base), *_limits(ours)],
        )


def failure(row: Replay) -> str:
    """Describes the request that did not fit."""
    return (
        f"request {row.failed_request:,}, of {_core.format_bytes(row.failed_size)}, "
        f"with {_core.format_bytes(row.peak_reserved)} reserved"
    )


def _verdict(ours: PlannedRecording, torch: Sequence[Replay], base: Replay, best: Replay) -> str:
    row = ours.row
    if best is row:
        saved = base.peak_reserved - row.peak_reserved
        text = f"With stalloc you would save {_amount(saved, base)}."
        other = min(torch, key=lambda rival: rival.peak_reserved)
        if other is not base and other.peak_reserved < base.peak_reserved:
            alone = _core.format_bytes(base.peak_reserved - other.peak_reserved)
            text += f" Expandable segments alone would save {alone}."
        return text
    more = row.peak_reserved - best.peak_reserved
    use = "stay with torch's allocator" if best is base else f"use {_EXPANDABLE} instead"
    if best is not base and base is torch[1]:
        use = "turn expandable segments off instead"
    return (
        f"stalloc would reserve {_amount(more, best)} more than {best.allocator}: {_why(ours)}; "
        f"{use}."
    )


def _amount(amount: int, rival: Replay) -> str:
    share = amount / rival.peak_reserved if rival.peak_reserved else 0.0
    return f"{_core.format_bytes(amount)} ({share:.1%} of what {rival.allocator} reserves)"


def _why(ours: PlannedRecording) -> str:
    plan, row = ours.plan, ours.row
    loose = plan.pool - plan.bound
    beside = row.peak_reserved - plan.pool - plan.resident
    if loose >= beside:
        return f"the plan is {plan.gap:.1%} above its bound (a longer --time-limit may help)"
    return f"requests that do not repeat take {_core.format_bytes(beside)} beside the pool"


def _coverage(row: Replay) -> str:
    if row.scope is None:
        return "the iteration it was made for"
    text = "one iteration, repeated"
    if row.scope == TWO_ITERATIONS:
        text = "two iterations, repeated, as if stalloc.step() came after every second one"
    if row.scope == RECORDING:
        text = "the recording as a whole, once: a run that asks for more departs from it"
    if row.streams == "ordered":
        text += "; streams share addresses and wait for each other"
    return text


def _notes(trace: Trace, base: Replay) -> list[str]:
    if base.measured is None:
        return []
    off = base.measured - base.peak_reserved
    if abs(off) <= _LARGE * base.measured:
        return []
    reasons = []
    if len(trace.iterations) > 1 and "repeated" in trace.info.get("assumptions", ""):
        reasons.append("the replay repeats the recorded iteration")
    if "live before the first event" in trace.info.get("assumptions", ""):
        reasons.append(
            "the recording does not tell how the blocks that were live before it were laid out, "
            "nor what was cached"
        )
    if EXPANDABLE_SEGMENTS not in trace.info:
        reasons.append("the recording does not tell torch's settings, and the defaults are taken")
    reasons.append("memory of CUDA graphs is not modelled")
    which = "more" if off > 0 else "less"
    return [
        f"Torch held {_core.format_bytes(base.measured)} when this was recorded, "
        f"{_core.format_bytes(abs(off))} {which} than its model: {'; '.join(reasons)}. The saving "
        "compares modelled figures."
    ]


def _limits(ours: PlannedRecording) -> list[str]:
    if ours.row.scope != RECORDING:
        return []
    text = (
        "The plan covers every request of the recording once. It holds for a run that asks for the "
        "same again"
    )
    if ours.repeated is not None and ours.repeated.peak_efficiency is not None:
        reserved = _core.format_bytes(ours.repeated.peak_reserved)
        text += f"; with a plan of its iterations, which serves any longer run, it is {reserved}"
    return [f"{text}."]
