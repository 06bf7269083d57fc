"""The recordings of a run, and the plans that are solved of them in the background."""

from __future__ import annotations

import json
import time
from collections import deque

from stalloc._auto.background import Background
from stalloc._auto.forward import Forward
from stalloc._auto.kept import KeptPlans
from stalloc._auto.memory import DeviceMemory
from stalloc._auto.settings import AutoOptions
from stalloc._auto.solving import Solution, solve
from stalloc.plans import Plan
from stalloc.trace import Trace

_RECORDINGS = 3  # the last ones, of which a plan is made
_LEAST_SEARCH = 0.1  # seconds


class Planning:
    """Solves one problem at a time.

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
        self._recordings.append(trace)
        found = [json.loads(each.info["inputs"]) for each in self._recordings]
        self.inputs = sorted({name for inputs in found for name in inputs})
        # A search that takes longer than the recording would cost iterations without a plan.
        now = time.monotonic()
        most = max(_LEAST_SEARCH, now - (self._recorded_since or now))
        self._recorded_since = None
        self._work = solve(
            [*self._recordings],
            self._options.threads,
            min(self._options.time_limit, most),
            self._memory.peak,
            self._kept.keeper(forward),
            in_force,
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
