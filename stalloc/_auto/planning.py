"""The recordings of a run, and the plans that are solved of them in the background."""

from __future__ import annotations

import json
import time
from collections import deque

from stalloc._auto.background import Background
from stalloc._auto.forward import Forward
from stalloc._auto.kept import KeptPlans
from stalloc._auto.memory import DeviceMemory
from stalloc._auto.proposal import LEAST_GAIN, Proposal
from stalloc._auto.reference import with_usual_end, without_repeated
from stalloc._auto.settings import AutoOptions
from stalloc._auto.solving import Keep, Solution, solve
from stalloc.plans import Plan
from stalloc.trace import Trace

_RECORDINGS = 3  # the last ones, of which a plan is made
_SHORT_SEARCH = 0.1  # seconds


class Planning:
    """Solves one problem at a time.

    As long as no plan is in force, each iteration costs memory. So the first plan is that of a
    short search, which does not wait for idle cores. A longer one may follow while it serves.

    Args:
        options: The user's options.
        memory: Knows torch's peak.
        kept: Keeps the best plan for later runs.

    Attributes:
        inputs: Those of the last recordings.
    """

    def __init__(self, options: AutoOptions, memory: DeviceMemory, kept: KeptPlans) -> None:
        self.inputs: list[str] = []
        self._options = options
        self._memory = memory
        self._kept = kept
        self._recordings: deque[Trace] = deque(maxlen=_RECORDINGS)
        self._recorded_since: float | None = None  # seconds
        self._keep: Keep | None = None
        self._longer_search: float | None = None  # seconds, after a short one
        self._work: Background[Solution] | None = None

    @property
    def is_busy(self) -> bool:
        """True from `begin` until `take` or `cancel` ends it."""
        return self._work is not None

    def iteration_is_recorded(self) -> None:
        """An iteration begins while a recording is made."""
        self._recorded_since = self._recorded_since or time.monotonic()

    def begin(self, trace: Trace, forward: Forward, in_force: Plan | None = None) -> None:
        """Begins to solve plans of a recording, and of it and the last ones.

        Args:
            trace: The recording.
            forward: Its program.
            in_force: The plan that serves the run meanwhile, if any.
        """
        self._recordings.append(without_repeated(with_usual_end(trace)))
        found = [json.loads(each.info["inputs"]) for each in self._recordings]
        self.inputs = sorted({name for inputs in found for name in inputs})
        # A search that takes longer than the recording would keep a change waiting.
        now = time.monotonic()
        recorded_for = now - (self._recorded_since or now)
        self._recorded_since = None
        self._keep = self._kept.keeper(forward)
        time_limit = min(self._options.time_limit, max(_SHORT_SEARCH, recorded_for))
        self._longer_search = time_limit if in_force is None else None
        if in_force is None:
            self._solve(min(time_limit, _SHORT_SEARCH), is_short=True)
        else:
            self._solve(time_limit, in_force)

    def search_longer(self, proposal: Proposal) -> None:
        """Looks on for a better plan after a short search, if one may be worth an exchange.

        Args:
            proposal: The one in force.
        """
        time_limit, self._longer_search = self._longer_search, None
        plan = proposal.plan
        if time_limit is not None and plan.pool - plan.bound >= LEAST_GAIN * proposal.after:
            self._solve(time_limit, plan)

    def _solve(
        self, time_limit: float, in_force: Plan | None = None, *, is_short: bool = False
    ) -> None:
        assert self._keep is not None
        self._work = solve(
            [*self._recordings],
            self._options.threads,
            time_limit,
            self._memory.peak,
            self._keep,
            in_force,
            is_short=is_short,
        )

    def take(self) -> Solution | None:
        """The solution, once it is there."""
        if self._work is None or not self._work.done:
            return None
        solution, self._work = self._work.result(), None
        if solution.problem:
            self._kept.warn(solution.problem)
        return solution

    def cancel(self) -> None:
        """Ends the work, if there is any."""
        self._recorded_since = None
        if self._work is not None:
            self._work.cancel()
        self._work = None
