"""Solves plans of recordings in the background, and chooses among them.

After a change there are two candidates: a plan of the last recording, and one of all recordings,
which also serves the batches of before. Each is replayed with every recording. The joint plan wins
unless it costs memory, or planned addresses of the last recording.

A plan in force is exchanged for one that saves memory, or that serves more of the requests in the
same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stalloc._auto.background import Background
from stalloc._auto.drift import MOST_MISSED
from stalloc._auto.joining import joined
from stalloc._auto.proposal import LEAST_GAIN, Peak, Proposal, candidates, worthwhile
from stalloc.plans import Plan
from stalloc.progress import Progress
from stalloc.replaying import Served, replay_torch, serve
from stalloc.trace import Trace

Keep = Callable[[Proposal], str]
"""Writes a plan for later runs. Returns the problem if that fails."""

_MORE_SERVED = 0.25
"""Share of all requests that a plan has to serve more, to be worth an exchange for that alone."""

_LEAST_HITS = 0.01
"""Share of the planned requests that a joint plan may miss more."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The result of `solve`.

    Attributes:
        proposals: Plans to put in force, the best one first; none if there is no better one.
        problem: Why a plan was not kept for later runs; or empty.
        loses: The plan in force needs more memory than torch would, and there is no better one.
    """

    proposals: list[Proposal]
    problem: str = ""
    loses: bool = False


def solve(
    recordings: Sequence[Trace],
    threads: int,
    time_limit: float,
    peak: Peak,
    keep: Keep,
    in_force: Plan | None = None,
    *,
    is_short: bool = False,
) -> Background[Solution]:
    """Begins to solve the plans.

    Args:
        recordings: In the order in which they were made.
        threads: The most cores to keep busy.
        time_limit: Seconds to look for better plans than the first ones; for each plan.
        peak: Of the run so far.
        keep: Called with the best plan, or one that is of use to later runs only.
        in_force: The plan that serves the run meanwhile, if any.
        is_short: See `Background`.
    """

    def work(goes_on: Progress) -> Solution:
        proposals, later = _best(recordings, time_limit, goes_on, peak)
        if in_force is not None:
            now = serve(recordings[-1], in_force)
            if not proposals or not _improves(serve(recordings[-1], proposals[0].plan), now):
                return Solution([], loses=now.bytes > replay_torch(recordings[-1]).peak_reserved)
        kept = proposals[0] if proposals else later
        return Solution(proposals, keep(kept) if kept is not None and goes_on(1) else "")

    return Background(work, threads, is_short=is_short)


def _best(
    recordings: Sequence[Trace], time_limit: float, goes_on: Progress, peak: Peak
) -> tuple[list[Proposal], Proposal | None]:
    """The plans that are worth a change, and one for later runs if there are none."""
    found = candidates(recordings[-1], time_limit, goes_on, peak)
    alone, later = worthwhile(found, peak), found[0] if found[0].is_for_later else None
    if len(recordings) == 1:
        return alone, later
    joint = worthwhile(candidates(joined(recordings), time_limit, goes_on, peak), peak)
    if not alone or not joint:
        return joint or alone, later
    replays = [
        [serve(trace, proposals[0].plan) for trace in recordings] for proposals in (joint, alone)
    ]
    costs = [max(replay.bytes for replay in each) for each in replays]
    hits = [each[-1].hits for each in replays]
    joint_wins = costs[0] <= (1 + LEAST_GAIN) * costs[1] and hits[0] >= hits[1] - _LEAST_HITS
    return joint if joint_wins else alone, later


def _improves(new: Served, old: Served) -> bool:
    """True if it is worth an exchange: it saves memory, or costs none and serves far more."""
    if new.bytes <= (1 - LEAST_GAIN) * old.bytes:
        return True
    more_hits = new.hits >= old.hits + MOST_MISSED / 2
    serves_more = more_hits or new.served >= old.served + _MORE_SERVED
    return serves_more and new.bytes <= (1 + LEAST_GAIN) * old.bytes
