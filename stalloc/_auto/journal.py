"""Records the events and tells them: in each rank's log, or else by rank 0 on stderr."""

from __future__ import annotations

import logging
import sys

from stalloc._auto.proposal import Proposal
from stalloc._auto.status import (
    ENDS,
    NO_MODULE,
    AutoStatus,
    Change,
    Requests,
    Stage,
    change_line,
    last_line,
    nothing,
)
from stalloc._auto.together import Together
from stalloc.ranks import rank, world_size

_UNPLANNED = {
    Stage.RECORDING: "it ended while iterations were being recorded",
    Stage.PLANNING: "it ended before the plan was solved",
    Stage.WAITING: "it ended before the plan fitted",
}
_log = logging.getLogger("stalloc")


class Journal:
    """The status of one `stalloc.auto`.

    Args:
        reason: Why no plan is in force.
        ranks: Gets the figures for the other ranks.

    Attributes:
        status: All but its stage.
    """

    def __init__(self, reason: str, ranks: Together) -> None:
        self.status: AutoStatus = {**nothing(), "reason": reason}
        self._ranks = ranks

    def begins(self) -> None:
        """Iterations are counted from now on."""
        self._ranks.tell(in_force=False)

    def copy(self, stage: Stage) -> AutoStatus:
        """The status, as it stays."""
        return {**self.status, "stage": stage.value, "changes": [*self.status["changes"]]}

    def count(self, ended: int, *, served: bool) -> None:
        """Counts iterations."""
        self.status["iterations"] += ended
        self.status["served"] += ended if served else 0

    def count_requests(self, new: Requests) -> None:
        """Counts requests of iterations under a plan."""
        self.status["requests"] += new.requests
        self.status["served_as_planned"] += new.served_as_planned
        self.status["evaluation_requests"] += new.evaluation
        self.status["evaluation_served_as_planned"] += new.evaluation_served

    def plan_changes(self, proposal: Proposal, *, in_force: bool, reason: str) -> None:
        """A plan went into force, or out of it."""
        change = Change(
            iteration=self.status["iterations"],
            in_force=in_force,
            reason=reason,
            before=proposal.before,
            after=proposal.after,
            pool=proposal.plan.pool,
        )
        self.status["reason"] = "" if in_force else reason
        self.status["changes"].append(change)
        self._ranks.tell(in_force=in_force, before=proposal.before, after=proposal.after)
        _say(change_line(change))

    def rests(self, reason: str) -> None:
        """No plan will be in force, for a reason that is told once."""
        if self.status["reason"] != reason:
            _say(f"iteration {self.status['iterations']}: torch serves: {reason}")
        self.status["reason"] = reason

    def ends(self, stage: Stage, *, has_begun: bool) -> None:
        """The run is over, in this stage. `has_begun`: a module has trained."""
        self.status["reason"] = self.status["reason"] or self._why_unplanned(stage, has_begun)

    def tell_end(self) -> None:
        """Tells about the whole run."""
        _say(last_line(self.status))
        if line := self._ranks.take_line():
            _say(line)

    def _why_unplanned(self, stage: Stage, has_begun: bool) -> str:
        if not has_begun:
            return NO_MODULE
        if stage is Stage.RECORDING and self.status["iterations"] == 0:
            return f"no iteration was seen; {ENDS}"
        return _UNPLANNED.get(stage, "")


def _say(line: str) -> None:
    if _log.isEnabledFor(logging.INFO) and _log.hasHandlers():
        _log.info("%s", line if world_size() == 1 else f"rank {rank()}: {line}")
    elif rank() == 0:
        print(f"stalloc: {line}", file=sys.stderr)
