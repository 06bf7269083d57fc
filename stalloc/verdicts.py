"""The conclusion of a replay: the allocator that reserves least, by how much, and why.

The comparison uses peaks of the whole replay, modelled against modelled. The bytes that torch held
during the recording stand beside its row; a note explains a large difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stalloc import _core
from stalloc.importers import LIVE_BEFORE
from stalloc.planner import Streams
from stalloc.plans import Plan
from stalloc.recordings import PlannedRecording, is_repeated
from stalloc.replaying import EXPANDABLE_SEGMENTS, PAGE, RECORDING, Replay, in_pages
from stalloc.trace import Trace

_LARGE = 0.05  # share of the measured bytes by which the model may be off without a word
_EQUAL = 0.0005  # share below which a difference is none: it is printed as 0.0 %
_FITTING = 0.999  # share of requests at their address from which a plan fits
_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_SMALLER = "train with smaller batches, or more recomputation"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Torch and stalloc on one recording.

    Attributes:
        rows: Torch, torch with expandable segments, stalloc.
        plan: The plan that stalloc serves.
        saved: Bytes that stalloc reserves less at the peak than torch with the settings of the
            recording does, negative when more; None where one of them runs out of memory.
        best: Name of the allocator that reserves least and fits, torch's where two are equal; None
            where all run out of memory.
        coverage: The part of the recording that the plan covers, in words.
        verdict: The answer in a sentence or two.
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
        base, other = torch[expandable], torch[not expandable]
        fitting = [row for row in (base, other, ours.row) if _fits(row)]
        best = min(fitting, key=lambda row: row.peak_reserved, default=None)
        saved = None
        if _fits(base) and _fits(ours.row):
            saved = base.peak_reserved - ours.row.peak_reserved
        return cls(
            rows=[*torch, ours.row],
            plan=ours.plan,
            saved=saved,
            best=None if best is None else best.allocator,
            coverage=_coverage(ours),
            verdict=_Rivals(ours, base, other, expandable).verdict(),
            notes=_notes(trace, base, saved),
        )


def failure(row: Replay) -> str:
    """Describes the request that did not fit."""
    return (
        f"request {row.failed_request:,}, of {_core.format_bytes(row.failed_size)}, "
        f"with {_core.format_bytes(row.peak_reserved)} reserved"
    )


@dataclass(frozen=True, slots=True)
class _Rivals:
    """The sentences on stalloc and its rivals.

    Attributes:
        ours: stalloc's plan and row.
        base: Torch with the settings of the recording.
        other: Torch with expandable segments on instead of off, or the reverse.
        expandable: True if `base` has expandable segments.
    """

    ours: PlannedRecording
    base: Replay
    other: Replay
    expandable: bool

    def verdict(self) -> str:
        row = self.ours.row
        rivals = [rival for rival in (self.base, self.other) if _fits(rival)]
        if not rivals:
            if not _fits(row):
                return f"No allocator fits: {_SMALLER}."
            return (
                "Only stalloc fits: torch runs out of memory, with expandable segments, too."
                f"{self.limits()}"
            )
        rival = min(rivals, key=lambda rival: rival.peak_reserved)
        if not _fits(row):
            return f"stalloc does not fit, and {_called(rival)} does: {self.advice(rival)}."
        first = "" if self.base in rivals else f"{_begin(self.base)} does not fit. "
        less = rival.peak_reserved - row.peak_reserved
        if abs(less) < _EQUAL * rival.peak_reserved or less == 0:
            return f"{first}{self.tie(rival)}"
        if less < 0:
            more = f"{_core.format_bytes(-less)} ({-less / rival.peak_reserved:.1%})"
            return (
                f"{first}stalloc would reserve {more} more than {_called(rival)}: {self.why()} "
                f"{self.advice(rival)}."
            )
        if first:
            return (
                f"{first}stalloc fits, and so does {_called(rival)}; stalloc would reserve "
                f"{_amount(less, rival)} less.{self.limits()}"
            )
        saved = self.base.peak_reserved - row.peak_reserved
        text = f"With stalloc you would save {_amount(saved, self.base)}."
        alone = self.base.peak_reserved - rival.peak_reserved
        if alone > 0:
            text += f" {self.switch()} alone would save {_core.format_bytes(alone)}."
        return text + self.limits()

    def limits(self) -> str:
        """The sentences on a plan that covers a whole recording; else nothing."""
        if self.ours.row.scope != RECORDING:
            return ""
        text = " The plan is of this recording as a whole"
        if not self.ours.given:
            text += " (`stalloc replay IN -o PLAN` writes it)"
        text += ", and holds for a run that makes the same requests once again."
        once = self.ours.repeated
        if once is not None and _fits(once):
            reserved = _core.format_bytes(once.peak_reserved)
            text += (
                " If the program repeats its iteration with other requests, a plan of one "
                f"iteration has to serve it: stalloc would reserve {reserved}."
            )
        return text

    def tie(self, rival: Replay) -> str:
        """The verdict where stalloc and the best rival reserve the same."""
        if rival is self.base:
            return (
                "stalloc would not save anything: torch's allocator reserves as little here; "
                f"{self.advice(rival)}."
            )
        return (
            f"stalloc would reserve as much as {_called(rival)} does, and no less; "
            f"{self.advice(rival)}."
        )

    def advice(self, rival: Replay) -> str:
        """The setting with which a user gets this rival."""
        if rival is self.base:
            return "stay with torch's allocator"
        return "turn expandable segments off instead" if self.expandable else f"use {_EXPANDABLE}"

    def switch(self) -> str:
        """The step from torch as recorded to the other rival."""
        return "Turning expandable segments off" if self.expandable else "Expandable segments"

    def why(self) -> str:
        """The reason why stalloc reserves more, up to the advice."""
        plan, row = self.ours.plan, self.ours.row
        if self.ours.given and row.hit_rate is not None and row.hit_rate < _FITTING:
            return f"the plan fits {row.hit_rate:.1%} of the requests that it could serve;"
        pages = in_pages(plan.pool)
        beside = row.peak_reserved - pages
        if not self.ours.startup:
            return (
                f"what start-up made lies beside the pool ({_core.format_bytes(beside)} there); "
                "serve from the start with `stalloc run --plan`, or else"
            )
        beside -= in_pages(plan.resident)
        loose = plan.pool - plan.bound
        rounding = pages + in_pages(plan.resident) - plan.pool - plan.resident
        if rounding > max(loose, beside):
            return (
                "its pool and resident region are rounded to pages of "
                f"{_core.format_bytes(PAGE)}, which takes {_core.format_bytes(rounding)};"
            )
        if loose >= beside:
            reason = ""
            if len(plan.slots.size) > 0:
                reason = ", with spare slots for state that each iteration replaces"
            elif not (self.ours.given or plan.optimal):
                reason = " (more time, with --time-limit, may help)"
            return f"the plan is {plan.gap:.1%} above its bound{reason};"
        return (
            f"requests that the plan has no address for take {_core.format_bytes(beside)} beside "
            "the pool;"
        )


def _fits(row: Replay) -> bool:
    return row.peak_efficiency is not None


def _called(row: Replay) -> str:
    return row.allocator.replace(", ", " with ")


def _begin(row: Replay) -> str:
    return _called(row)[0].upper() + _called(row)[1:]


def _amount(amount: int, rival: Replay) -> str:
    share = amount / rival.peak_reserved if rival.peak_reserved else 0.0
    return f"{_core.format_bytes(amount)} ({share:.1%} of what {_called(rival)} reserves)"


def _coverage(ours: PlannedRecording) -> str:
    row = ours.row
    text = "one iteration, repeated"
    if row.scope == RECORDING:
        text = "the recording as a whole, once"
    if row.streams is Streams.ORDERED:
        text += "; streams share addresses and wait for each other"
    elif (streams := len(np.unique(ours.trace.requests.stream))) > 1:
        text += f"; {streams} streams, each with addresses of its own"
    return text


def _notes(trace: Trace, base: Replay, saved: int | None) -> list[str]:
    if base.measured is None or not _fits(base):
        return []
    off = base.measured - base.peak_reserved
    limit = _LARGE * base.measured
    if saved is not None:
        limit = min(limit, abs(saved) / 2)
    if abs(off) <= limit:
        return []
    reasons = []
    if is_repeated(trace):
        reasons.append("the replay repeats the recorded iteration")
    if trace.info.get(LIVE_BEFORE):
        earlier = _core.format_bytes(int(trace.info[LIVE_BEFORE]))
        reasons.append(
            f"{earlier} were live before the recording, which does not tell how they were laid "
            "out, nor what was cached"
        )
    if EXPANDABLE_SEGMENTS not in trace.info:
        reasons.append("the recording does not tell torch's settings, and the defaults are taken")
    if not reasons:
        reasons.append(
            "the model has neither CUDA graphs nor torch.cuda.empty_cache, and frees a block in "
            "the moment that was recorded"
        )
    which = "more" if off > 0 else "less"
    return [
        f"Torch held {_core.format_bytes(base.measured)} when this was recorded, "
        f"{_core.format_bytes(abs(off))} {which} than its model: {'; '.join(reasons)}. All other "
        "figures are modelled."
    ]
