"""Solves plans of a trace, and compares them with torch's policy on the same requests.

There are two plans. The plan of the *transients* serves requests that are freed before their
iteration ends. Its pool is empty between iterations, and can be reserved and returned there at no
cost.

Requests that live into the next iteration stay where torch has them, such as the gradients of a
loop that calls `zero_grad` after the forward. They keep their memory although it is idle between
`zero_grad` and the backward pass, where the load may be highest. So there is a plan of *whole
iterations*, too, which serves them. Then the pool is never empty. When it is reserved, gradients
exist outside it, unless it serves the gradients of the iteration before already:

               transients                        whole iterations
    pool       activations                       activations and gradients
    beside it  weights, states, gradients        weights, states; once, the gradients

Torch's policy is replayed. Figures count the recorded requests only: memory that was live before
the recording is the same under both.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from stalloc.plans import DEFAULT_ALIGNMENT, Plan
from stalloc.progress import Progress
from stalloc.replaying import replay_torch
from stalloc.tables import NEVER, Flags, Int64s
from stalloc.trace import Trace

LEAST_GAIN = 0.01
"""Share of torch's reserved bytes; less is not worth a change."""

LEAST_GAIN_OF_WHOLE = 0.02
"""The same for a plan of whole iterations. Its pool is never empty, so it cannot step aside for an
unusual batch, and what such a batch needs beside the pool is soon more than 1 %."""

LEAST_GAIN_LATER = 0.001
"""The same for a run that is served from its first request, where it costs no change. Blocks beside
the pool may need a little more than their bytes."""

LEAST_GAIN_OF_CHANGING = 0.05
"""The same for a plan of requests that change from iteration to iteration, where torch gives back
what is idle before it reserves more than ever. That reserves a few percent more than the load
whatever comes, whereas later requests need more than those that the plan was made of, and what
torch's segments keep is missing in the pool."""

_SHARED_SEGMENT = 20 << 20
"""Bytes. Smaller blocks share segments of torch's, which stay as long as one of them is live. Idle
pages of an expandable segment go."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan and its worth. All figures are bytes.

    Attributes:
        plan: The plan.
        load: Live at the peak of the last recorded iteration; of the whole recording if requests
            change.
        before: Reserved by torch at that peak: by its policy, or less if that was measured and is
            going to last.
        after: The same under the plan: the pool, and the most that is live beside it. The two may
            come at different times, so this is no less than the plan takes. It is no less than the
            load.
        entering: The pool and all that is live beside it where an iteration begins that is the
            first one under the plan. Requests that live on from the iteration before lie there.
        beside: Reserved beside the pool in an iteration that runs as recorded.
        peak: Reserved by torch at its peak, measured while it was recorded; 0 where it cannot be.
        handed: The part of `at_begin` whose like lies in the pool once the plan has served the
            requests that live on, one iteration ahead; see `may_enter_ahead`.
    """

    plan: Plan
    load: int
    before: int
    after: int
    entering: int
    beside: int
    peak: int = 0
    handed: int = 0

    @property
    def at_begin(self) -> int:
        """Bytes that are live where that first iteration begins."""
        return self.entering - self.plan.pool

    @property
    def is_changing(self) -> bool:
        """True if sizes follow laws of the inputs, or requests are dynamic."""
        return _is_changing(self.plan)

    @property
    def is_for_later(self) -> bool:
        """True if it may serve a later run from the first request; all its requests are known.

        They are, too, if their sizes follow laws of the inputs.
        """
        if len(self.plan.groups.size) > 0:
            return False
        return self.gain >= (LEAST_GAIN if self.is_changing else LEAST_GAIN_LATER)

    @property
    def gain(self) -> float:
        """The share of torch's reserved bytes that the plan saves; negative if it needs more."""
        return 1 - self.after / self.before if self.before else 0.0


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that torch has had so far, measured. Bytes; 0 where they cannot be measured.

    Attributes:
        reserved: Of the device.
        live: In use.
        is_thrifty: Torch has given back what was idle before it reserved more than ever.
        is_strained: It did so in the last iteration, too. It does so a limited number of times, so
            it is going to reserve more than it has. This tells nothing of requests that change: the
            last iteration may be the largest so far.
    """

    reserved: int = 0
    live: int = 0
    is_thrifty: bool = False
    is_strained: bool = False


def propose(
    trace: Trace, time_limit: float, goes_on: Progress, peak: Peak | None = None
) -> list[Proposal]:
    """Solves plans. Releases the GIL for most of the time.

    Args:
        trace: At least one complete iteration.
        time_limit: Seconds to look for a better plan than the first one; for each of the two.
        goes_on: Returns False once the best plans so far are to be taken.
        peak: Of the run.

    Returns:
        The plans that are worth a change, the best one first.

    Raises:
        TraceError: The trace holds no complete iteration.
        PlanError: There is no plan.
    """
    return worthwhile(candidates(trace, time_limit, goes_on, peak), peak)


def worthwhile(proposals: list[Proposal], peak: Peak | None = None) -> list[Proposal]:
    """Those that save at least `LEAST_GAIN`, `LEAST_GAIN_OF_WHOLE` or `LEAST_GAIN_OF_CHANGING`."""
    is_thrifty = peak is not None and peak.is_thrifty
    least = LEAST_GAIN_OF_CHANGING if is_thrifty else LEAST_GAIN
    return [p for p in proposals if p.gain >= (least if p.is_changing else LEAST_GAIN)]


def candidates(
    trace: Trace, time_limit: float, goes_on: Progress, peak: Peak | None = None
) -> list[Proposal]:
    """The same as `propose`, with a plan of the transients that may not be worth a change."""
    torch = replay_torch(trace)
    live = _LiveOn(trace)
    peak = peak or Peak()
    shared = _SHARED_SEGMENT if peak.reserved > 0 and not peak.is_thrifty else 0
    reserved = _measured(torch.load, torch.reserved, peak)

    def proposal(source: Trace) -> Proposal:
        plan = source.plan(time_limit=time_limit, progress=goes_on)
        most = live.most_beside(plan)
        load, before = torch.load, reserved
        if _is_changing(plan):
            # The last iteration may be a small one, and the plan serves all.
            load = torch.peak_load
            before = _measured(load, torch.peak_reserved, peak)
        found = Proposal(
            plan=plan,
            load=load,
            before=before,
            after=max(plan.pool + most, load),
            entering=plan.pool + live.at_begin,
            beside=most - live.kept,
            peak=peak.reserved,
            handed=live.handed(plan, shared),
        )
        lasts = found.is_changing or not peak.is_strained
        return found if lasts else replace(found, before=torch.reserved)

    proposals = [proposal(Trace(trace._core.without_frees_of_later_iterations()))]
    if live.freed >= LEAST_GAIN * reserved:
        whole = proposal(trace)
        # At the same size the pool that is empty between iterations is better.
        is_smaller = whole.after < (1 - LEAST_GAIN) * proposals[0].after
        if is_smaller and whole.gain >= LEAST_GAIN_OF_WHOLE:
            proposals.insert(0, whole)
    return proposals


def _is_changing(plan: Plan) -> bool:
    return len(plan.groups.size) > 0 or bool((plan.decisions.law >= 0).any())


def _measured(load: int, reserved: int, peak: Peak) -> int:
    """The bytes that torch reserved for a load: those of its policy, or less if that was measured.

    Blocks that are live beside the recorded requests are the same under a plan.
    """
    if 0 < load <= peak.live:
        return min(reserved, peak.reserved - (peak.live - load))
    return reserved


class _LiveOn:
    """The requests of the last iteration that outlive one: all but its transients.

    Attributes:
        at_begin: Bytes of the requests that were live before it.
        freed: The part of `at_begin` that it frees and the iteration before it made.
        kept: The part of `at_begin` that is never freed.
    """

    def __init__(self, trace: Trace) -> None:
        requests = trace.requests
        begin, end = trace.iterations[-2:]
        live = (requests.lower < end) & (requests.upper > begin)
        rows = np.flatnonzero(live & ((requests.lower < begin) | (requests.upper > end)))
        lower, self._upper = requests.lower[rows], requests.upper[rows]
        self._size: Int64s = _rounded(requests.size[rows])
        self._lower = np.maximum(lower, begin)
        before = lower < begin
        last = trace.iterations[-3] if len(trace.iterations) > 2 else begin
        self._old: Flags = before & (lower >= last) & (self._upper <= end)
        self._new: Flags = ~before
        self.at_begin = int(self._size[before].sum())
        self.freed = int(self._size[self._old].sum())
        self.kept = int(self._size[before & (self._upper == NEVER)].sum())

    def most_beside(self, plan: Plan) -> int:
        """The most bytes that are live at once and that the plan does not serve."""
        # Those that it serves live into the next iteration, as their like of the last one did.
        rows = ~(self._served(self._old, plan) | self._served(self._new, plan))
        size = self._size[rows]
        ticks = np.concatenate([self._lower[rows], self._upper[rows]])
        order = np.argsort(ticks, kind="stable")
        return int(np.cumsum(np.concatenate([size, -size])[order]).max(initial=0))

    def handed(self, plan: Plan, shared: int) -> int:
        """Bytes of `freed` whose like the plan serves; see `Proposal`.

        Args:
            plan: The plan.
            shared: Freed blocks up to this size do not go back, in bytes.
        """
        goes = self._old & (self._size > shared)
        return int(self._size[self._served(goes, plan)].sum())

    def _served(self, rows: Flags, plan: Plan) -> Flags:
        """Rows that are the plan's requests that live into the next iteration, or like them."""
        decisions = plan.decisions
        wraps = decisions.upper > plan.period
        sizes = _rounded(decisions.size[wraps])
        follows = decisions.law[wraps] >= 0  # sizes are those of the largest batch
        return self._among(rows, sizes, follows)

    def _among(self, rows: Flags, sizes: Int64s, follows: Flags) -> Flags:
        """Rows that have these sizes, as many of each as there are.

        Args:
            rows: The rows to look at.
            sizes: In bytes.
            follows: The size follows a law: smaller batches need less.
        """
        left = Counter(sizes[~follows].tolist())
        larger = sorted(sizes[follows].tolist())
        found: Flags = np.zeros(len(rows), bool)
        for row in sorted(np.flatnonzero(rows), key=lambda row: -self._size[row]):
            size = int(self._size[row])
            at = bisect_left(larger, size)
            if left[size] > 0:
                left[size] -= 1
            elif at < len(larger):
                del larger[at]
            else:
                continue
            found[row] = True
        return found


def _rounded(size: Int64s) -> Int64s:
    return -(-size // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
