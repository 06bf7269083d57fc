"""A plan in force, and its figures."""

from __future__ import annotations

import contextlib

import torch

from stalloc import session
from stalloc._adapters import Adapter
from stalloc._auto.drift import MOST_MISSED, MOST_UNPLANNED, Drift
from stalloc._auto.forward import Forward
from stalloc._auto.memory import described
from stalloc._auto.proposal import Peak, Proposal
from stalloc._auto.status import Requests
from stalloc._fit import names
from stalloc.errors import OutOfMemory, StallocError

_REQUESTS = ("requests", "served_as_planned", "unplanned_requests", "evaluation_requests")
_COUNTS = ("iterations", "hits", "misses", "conflicts", *_REQUESTS)

_TRIAL = 4
"""Iterations until a plan of an earlier run is judged: the first one makes the optimizer's states,
and phases come to be trusted in the next ones."""

_LEAST_SERVED = 0.9
"""Share of the run's requests that a plan of an earlier run must know."""

_HOPELESS = 0.5
"""Share of its requests, and of the plan's; if an earlier run's plan and the run have less in
common, the plan is one of another program, which one iteration shows."""

_DRAINED = 3
"""Iterations after which a tensor that lies in a drained pool is one that stays."""


class Service:
    """Puts a plan in force, where an iteration begins.

    Args:
        adapter: The device.
        proposal: The plan.
        forward: The call that begins the iteration.
        drift: Tells when the plan is outgrown.
        kept: The plan was made by an earlier run.
        filled: The pool has its memory at once; else it gets it as it is used.
        ahead: The first iteration serves only requests that live on into the next one, in a pool
            that is not filled.

    Attributes:
        proposal: The plan.
        inputs: Those that it knows.
        is_ahead: This iteration serves only requests that live on into the next one.
        is_aside: The fallback serves everything, without the pool.
        missed: Share of the planned requests that the last iteration did not make.
        unplanned: Share of the last iteration's requests, but evaluations', that the plan lacks.

    Raises:
        OutOfMemory: The pool cannot be reserved.
        StallocError: The plan is refused.
    """

    def __init__(
        self,
        adapter: Adapter,
        proposal: Proposal,
        forward: Forward,
        drift: Drift,
        *,
        kept: bool,
        filled: bool,
        ahead: bool,
    ) -> None:
        self.proposal = proposal
        self.inputs = names(proposal.plan, "inputs")
        self._adapter = adapter
        self._drift = drift
        self._trial = _TRIAL if kept else 0
        if filled:
            self._session = session.enable(proposal.plan, model=forward.module, strict=False)
        else:
            self._session = session.enable_gradually(proposal.plan, forward.module, ahead=ahead)
        self.is_ahead = ahead
        self._is_first = True  # iteration under the plan
        active = session.current_session()
        if active is None:
            raise StallocError(self._session.refusal or "the plan was refused")
        adapter.runtime.keep_clear()
        # The plan is one of this program, and the first request that departs must not displace the
        # rest of its phase.
        active.trust(makes_states=kept)
        self._reserved = self._statistics()["fallback_reserved"]
        self._counts = dict.fromkeys(_COUNTS, 0)
        self.missed = self.unplanned = self._lacks = self._adds = 0.0
        self._told = dict.fromkeys(_REQUESTS, 0)
        self._drained = 0  # iterations
        self.is_aside = False
        self._had_pool = self._has_pool = True  # in the iteration before, and in this one
        forward.tell(active._hooks)

    @property
    def enabled(self) -> bool:
        """True unless the session has given up."""
        return self._session.enabled

    @property
    def refusal(self) -> str:
        """The reason why it has."""
        return self._session.refusal or "it was disabled"

    @property
    def beside(self) -> int:
        """Bytes reserved beside the pool since the plan went into force, or since its trial."""
        return max(0, self._statistics()["fallback_reserved"] - self._reserved)

    @property
    def departure(self) -> str:
        """The sign that the plan is outgrown, in words."""
        if self.beside > self._drift.limit:
            return f"it is outgrown: {described(self.beside)} beside the pool"
        if self.missed > MOST_MISSED:
            return f"it is outgrown: {self.missed:.0%} of the planned requests were missed"
        return f"it is outgrown: {self.unplanned:.0%} of the requests are not in the plan"

    @property
    def serves_little(self) -> bool:
        """True if most of the last iteration's requests are not in the plan."""
        return self._had_pool and self.unplanned > MOST_UNPLANNED

    @property
    def is_on_trial(self) -> bool:
        """True while the plan of an earlier run has not been judged."""
        return self._trial > 0

    @property
    def is_empty(self) -> bool:
        """True if no tensor lies in the pool."""
        return self._statistics()["live_blocks"] == 0

    @property
    def is_drained(self) -> bool:
        """True if the pool is not to wait for the tensors that lie in it."""
        return self._drained > _DRAINED

    def loses(self, peak: Peak) -> bool:
        """True if the plan does worse than torch did: it reserves more, with a smaller share live.

        Args:
            peak: That of torch. Where it was not measured, torch's policy with the recorded
                requests counts.
        """
        now = self._statistics()
        live = now["run_peak_allocated"]
        if peak.reserved > 0:
            reserved, before, load = now["reserved"], peak.reserved, peak.live
        else:
            reserved = self.proposal.plan.pool + self.beside
            before, load = self.proposal.before, self.proposal.load
        return reserved > before and live * before < load * reserved

    def step_aside(self, aside: bool, *, partly: bool) -> bool:
        """Lets the fallback serve everything, without a pool, or ends that.

        A pool that the device has no memory for stays away.

        Args:
            aside: The fallback is to serve.
            partly: Tensors may lie in the pool, whose memory stays; else only an empty one goes.

        Returns:
            True if the pool is away.
        """
        if aside and (self.is_empty or partly):
            # Once more where tensors lay in the pool that have gone since.
            with contextlib.suppress(StallocError):  # they lie in all of its memory
                session.release_pool(partly=partly)
                self.is_aside = True
        elif self.is_aside and not aside:
            # Two pools' worth of memory must not exist together.
            self._adapter.runtime.release_cached()
            self._give_back()
            with contextlib.suppress(OutOfMemory):
                session.acquire_pool()
                self.is_aside = False
        # The next batch lies in the pool, unless it is known.
        self._adapter.runtime.keep_pauses_clear(aside and not self.is_aside)
        return self.is_aside

    def iteration_ends(self) -> None:
        """Lets torch give back its cache after the first iteration.

        It has replaced the outputs and batches of the iteration before, which kept segments of
        torch's from going back. One that was ahead tells nothing of the plan.
        """
        if self._is_first:
            self._give_back()
        if self.is_ahead:
            self._reserved = self._news()["fallback_reserved"]
            self.new_requests()
        self.is_ahead = self._is_first = False

    def _give_back(self) -> None:
        if self._adapter.is_native and torch.cuda.is_current_stream_capturing():
            return
        self._adapter.give_back()

    def departs(self) -> bool:
        """Notes an iteration; True if the run does not do what the plan of an earlier run says."""
        if self._trial == 0 or self._is_within_iteration():
            return False
        self._trial -= 1
        now = self._news()
        # The optimizer's states, which the first iteration makes, lie beside the pool for good.
        self._reserved = now["fallback_reserved"]
        follows = self._lacks <= MOST_MISSED and 1 - self._adds >= _LEAST_SERVED
        if self._lacks > _HOPELESS and self._adds > _HOPELESS:
            self._trial = 0
            self._drained = _DRAINED + 1
        return self._trial == 0 and not follows

    def _is_within_iteration(self) -> bool:
        """True if the plan's iteration goes on.

        It knows from the first one on that a slower optimizer is to step, which ends it.
        """
        return self._statistics()["iterations"] == self._counts["iterations"]

    def outgrown(self) -> bool:
        """Notes an iteration; True if the plan no longer fits."""
        if self._trial > 0:
            return False
        self._news()
        # Without the pool the fallback serves all of an iteration, which tells nothing.
        self._had_pool, self._has_pool = self._has_pool, not self.is_aside
        if self.is_aside or not self._had_pool:
            return False
        return self._drift.persists(self.beside, self.missed, self.unplanned)

    def accept(self) -> None:
        """Takes the departures for usual from now on, since no plan would do better."""
        self._drift.accept(self.beside, self.missed, self.unplanned)

    def _news(self) -> dict[str, int]:
        now = self._statistics()
        new = {name: now[name] - self._counts[name] for name in _COUNTS}
        self._counts = now
        planned = new["hits"] + new["misses"]
        self.missed = new["misses"] / planned if planned else 0.0
        trains = new["requests"] - new["unplanned_requests"]
        served = new["served_as_planned"] - new["evaluation_requests"]
        self.unplanned = 1 - served / trains if trains else 0.0
        # A displaced request is one of the plan at another address.
        displaced = new["conflicts"]
        self._lacks = (new["misses"] - displaced) / planned if planned else 0.0
        self._adds = 1 - (served + displaced) / trains if trains else 0.0
        return now

    def drain(self) -> None:
        """Lets the pool come to be empty where the next iteration ends, or the one after it.

        Call it once an iteration.
        """
        self._adapter.runtime.drain(departed=self._drained > 0)
        self._drained += 1

    def new_requests(self) -> Requests:
        """Requests since the last call."""
        now = self._statistics()
        requests, served, evaluation, evaluation_served = (
            now[name] - self._told[name] for name in _REQUESTS
        )
        self._told = now
        return Requests(requests, served, evaluation, evaluation_served)

    def end(self) -> None:
        """Takes the plan out of force."""
        if self.enabled:
            session.disable()

    def _statistics(self) -> dict[str, int]:
        self._adapter.refresh()
        return self._adapter.runtime.statistics()
