"""Solves the plan of a trace, and compares it with torch's policy on the same requests.

The plan serves transients only: requests that are freed before their iteration ends. Weights,
gradients that live on, optimizer states and the next batch stay where torch has them. So the pool
is empty between iterations, and can be reserved and given back there.

Torch's policy is replayed. Figures count the recorded requests only: memory that was live before
the recording is the same under both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stalloc.plans import DEFAULT_ALIGNMENT, Plan
from stalloc.progress import Progress
from stalloc.replaying import replay_torch
from stalloc.tables import NEVER, Int64s
from stalloc.trace import Trace


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan and its worth. All figures are bytes.

    Attributes:
        plan: The plan.
        before: Reserved by torch's policy at the peak of an iteration.
        after: The same under the plan: the pool, and the most that is live beside it. The two may
            come at different times, so this is no less than the pool takes when it is reserved.
        beside: Reserved beside the pool in an iteration that runs as recorded.
    """

    plan: Plan
    before: int
    after: int
    beside: int

    @property
    def gain(self) -> float:
        """The share of torch's reserved bytes that the plan saves; negative if it needs more."""
        return 1 - self.after / self.before if self.before else 0.0


def propose(trace: Trace, time_limit: float, goes_on: Progress) -> Proposal:
    """Solves the plan of the transients. Releases the GIL for most of the time.

    Args:
        trace: At least one complete iteration.
        time_limit: Seconds to look for a better plan than the first one.
        goes_on: Returns False once the best plan so far is to be taken.

    Raises:
        TraceError: The trace holds no complete iteration.
        PlanError: There is no plan.
    """
    transients = Trace(trace._core.without_frees_of_later_iterations())
    plan = transients.plan(time_limit=time_limit, progress=goes_on)
    torch = replay_torch(trace)
    outside, kept = _outside(trace)
    return Proposal(
        plan=plan,
        before=torch.reserved,
        after=plan.pool + outside,
        beside=outside - kept,
    )


def _outside(trace: Trace) -> tuple[int, int]:
    """The most bytes live in the last iteration of requests that are no transients.

    Returns also how many of them were live before it and were never freed.
    """
    requests = trace.requests
    begin, end = trace.iterations[-2:]
    in_it = (requests.lower < end) & (requests.upper > begin)
    lower, upper = requests.lower[in_it], requests.upper[in_it]
    size = _rounded(requests.size[in_it])
    outlives = (lower < begin) | (upper > end)
    lower, upper, size = np.maximum(lower, begin)[outlives], upper[outlives], size[outlives]
    ticks = np.concatenate([lower, upper])
    live = np.cumsum(np.concatenate([size, -size])[np.argsort(ticks, kind="stable")])
    kept = (lower == begin) & (upper == NEVER)
    # Those that are freed later end the sum: the most of it comes before.
    return int(live.max(initial=0)), int(size[kept].sum())


def _rounded(size: Int64s) -> Int64s:
    return -(-size // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
