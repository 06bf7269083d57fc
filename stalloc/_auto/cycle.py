"""The stages of `stalloc.auto`: it makes the calls that a user would make.

    RECORDING -> PLANNING -> WAITING -> SERVING       a plan went into force
      ^   ^                     |  ^       |
      |   |                     v  |       |
      |   +----------------- RESTING       |          torch serves: no plan saves, or none fits
      |                            +-------+          the plan is exchanged for a better one
      +------------------------------------+          the plan does not fit: back to torch, record

A plan of an earlier run leads from RECORDING to SERVING at once. A plan stays in force while a
better one is recorded and solved, unless it does worse than torch's policy. The first plan comes of
a short search; a longer one goes on while it serves, and its plan is exchanged beside the budget.

Every change happens at the beginning of an iteration, or at its end if `stalloc.step()` reports
that. A plan goes out of force only when its pool is empty. So two pools, or a pool and the memory
that it replaces, never exist together. The pool of a plan that serves whole iterations is drained
first: during one iteration, the fallback serves the requests that outlive it. If tensors still lie
in it some iterations later, such as states of an optimizer that came with a plan of another
program, the rest of the pool goes.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch

from stalloc._adapters import Adapter
from stalloc._auto.budget import Budget
from stalloc._auto.cache import PlanCache
from stalloc._auto.drift import Drift
from stalloc._auto.first_steps import FirstSteps
from stalloc._auto.forward import Forward
from stalloc._auto.journal import Journal
from stalloc._auto.kept import KeptPlans, request_workspaces
from stalloc._auto.memory import DeviceMemory, described
from stalloc._auto.models import Models
from stalloc._auto.planning import Planning
from stalloc._auto.proposal import Proposal
from stalloc._auto.recording import Recording
from stalloc._auto.renewal import Renewal
from stalloc._auto.segments import Segments
from stalloc._auto.service import Service
from stalloc._auto.settings import AutoOptions
from stalloc._auto.status import Stage
from stalloc._fit import input_mismatch, model_mismatch, names
from stalloc.errors import OutOfMemory

_TRIES = 8  # iterations to wait until the plan fits
_PATIENCE = 3  # iterations of drift; doubled with each exchange
_MOST_PATIENCE = 96
_REST = 64  # iterations, the first time; doubled each time
_ANOTHER_MODEL = "another model"
_OTHER_INPUTS = "other inputs"


class _Departure(NamedTuple):
    """The reason for which a plan goes out of force, and what follows.

    Attributes:
        reason: Why.
        next: RECORDING, WAITING if better plans are solved, or RESTING.
    """

    reason: str
    next: Stage


class Cycle:
    """The stages on one device, from the first recording on.

    Args:
        model: The root module; None: the first module that is called.
        device: The device.
        adapter: The device's adapter.
        options: The user's options.
        journal: Gets a record of each event.
        cache: The plans of earlier runs; None: no cache.
    """

    def __init__(
        self,
        model: torch.nn.Module | None,
        device: torch.device,
        adapter: Adapter,
        options: AutoOptions,
        journal: Journal,
        cache: PlanCache | None,
    ) -> None:
        self._model = weakref.ref(model) if model is not None else None
        self._device = device
        self._adapter = adapter
        self._options = options
        self._journal = journal
        self._kept = KeptPlans(cache, device)
        self._segments = Segments(adapter) if adapter.is_native else None
        self._memory = DeviceMemory(adapter, self._segments)
        self._budget = Budget(options.exchanges)
        self._patience = _PATIENCE
        self._why = "first plan"
        self._planning = Planning(options, self._memory, self._kept)
        self._models = Models()
        self._renewal: Renewal | None = None
        self._proposals: list[Proposal] = []
        self._tries = 0
        self._service: Service | None = None
        self._leaving: _Departure | None = None
        self._unlike = 0  # iterations in a row with others
        self._is_unlike = False  # the plan in force does not know the last inputs
        self._next_rest = self._rest_ends = _REST  # iterations
        self._recording: Recording | None = Recording(model, device, options)
        self.stage = Stage.RECORDING
        self._first_steps = FirstSteps(
            adapter,
            self._segments,
            records=lambda: self._recording is not None,
            serves=lambda: self._service is not None,
        )

    @property
    def serves(self) -> bool:
        """True if a plan serves this iteration, and not only what lives on into the next one."""
        return self._service is not None and not self._service.is_ahead

    def iteration_begins(self, forward: Forward) -> None:
        """Takes the next step, if it is time for one."""
        self._memory.record_peak()
        if self.stage is Stage.SERVING:
            self._follow(forward)
        elif self.stage is Stage.RESTING:
            self._watch(forward)
        if self.stage is Stage.RECORDING:
            self._use_kept(forward)
        if self.stage is Stage.RECORDING:
            if self._segments is not None:
                self._segments.consider(forward.module)
                if self._journal.status["iterations"] > 0:
                    self._segments.iteration_ends()
            self._planning.iteration_is_recorded()
            self._models.learn(forward.module)
            self._plan_if_recorded(forward)
        if self.stage is Stage.PLANNING:
            self._take_proposals()
        if self.stage is Stage.WAITING:
            self._serve_if_it_fits(forward)

    def iteration_ends(self) -> None:
        """Takes a plan out of force before the next batch is made, if it is time for that.

        Once the batch is made, a part of it may lie in the pool. So it is here, too, that a plan
        steps aside that could not do so where the forward began.
        """
        if self._depart(None) or self._service is None or not self._service.enabled:
            return
        if self._is_unlike:
            self._service.step_aside(True, partly=False)

    def phase_begins(self) -> None:
        """Lets segments be expandable from within the first iteration on."""
        if self._segments is not None and self._recording is not None:
            self._segments.phase_begins()

    def end(self) -> None:
        """Ends all that is on."""
        self._first_steps.stop()
        if self._recording is not None:
            self._recording.stop()
        self._end_renewal()
        if self._service is not None:
            self._service.end()
        if self._segments is not None:
            self._segments.restore()
        self._recording = self._service = None
        self.stage = Stage.OFF

    # Recording and planning

    def _record(self, forward: Forward | None) -> None:
        self._proposals = []
        self._models = Models()
        given = self._model() if self._model is not None else None
        root = forward.module if forward is not None else given
        self._recording = Recording(root, self._device, self._options, forward)
        self.stage = Stage.RECORDING

    def _plan_if_recorded(self, forward: Forward) -> None:
        recording = self._recording
        assert recording is not None
        if not recording.complete:
            return
        self._recording = None
        self._planning.begin(recording.finish(), forward)
        self.stage = Stage.PLANNING

    def _take_proposals(self) -> None:
        solution = self._planning.take()
        if solution is None:
            return
        self._proposals, self._tries = solution.proposals, 0
        if self._proposals:
            self.stage = Stage.WAITING
        else:
            self._rest(
                "a plan would save less than 1 % of what torch reserves, less than 2 % with whole "
                "iterations, or less than 5 % with requests that change, where torch gives back "
                "what is idle"
            )

    # Plans of other runs

    def _use_kept(self, forward: Forward) -> None:
        """Serves the run from its first forward on, if a plan of an earlier run fits."""
        proposal = self._kept.find_once(forward)
        if proposal is None or self._recording is None:
            return
        first = all(p.grad is None for p in forward.module.parameters())
        request_workspaces(forward.module, self._device)  # torch would, and they count
        if self._memory.shortage(proposal, first=first) is not None:
            return
        self._planning.inputs = names(proposal.plan, "inputs")
        self._memory.forget_peak()
        self._recording.stop()
        self._recording = None
        try:
            self._serve(proposal, forward, kept=True, filled=not self._memory.goes_in_parts)
        except OutOfMemory:
            self._record(forward)

    # Serving

    def _serve_if_it_fits(self, forward: Forward) -> None:
        plan = self._proposals[0].plan
        problem = None
        if model_mismatch(plan, forward.module):
            problem = _ANOTHER_MODEL
        elif input_mismatch(names(plan, "inputs"), forward.args, forward.kwargs):
            problem = _OTHER_INPUTS
        if problem is not None and self._budget.take():
            self._why = problem
            self._record(forward)
            return
        problem = problem or self._serve_one(forward)
        if problem is None:
            return
        self._tries += 1
        if self._tries == _TRIES:
            self._rest(problem)

    def _serve_one(self, forward: Forward) -> str | None:
        """Puts the best plan that fits in force. Returns the problem if none does."""
        problem = None
        for proposal in self._proposals:
            ahead = self._memory.may_enter_ahead(proposal)
            problem = self._memory.shortage(proposal, first=False, ahead=ahead)
            if problem is not None:
                continue
            try:
                self._serve(proposal, forward, kept=False, filled=not ahead, ahead=ahead)
            except OutOfMemory as error:
                problem = str(error)
            else:
                self._planning.search_longer(proposal)
                return None
        return problem

    def _serve(
        self,
        proposal: Proposal,
        forward: Forward,
        *,
        kept: bool,
        filled: bool,
        ahead: bool = False,
    ) -> None:
        tolerated = self._memory.tolerated(proposal, self._options.tolerance)
        drift = Drift(proposal.beside, tolerated, self._patience)
        self._service = Service(
            self._adapter, proposal, forward, drift, kept=kept, filled=filled, ahead=ahead
        )
        self.stage = Stage.SERVING
        self._models.learn(forward.module)
        self._leaving = None
        reason = "plan of an earlier run" if kept else self._why
        self._journal.plan_changes(proposal, in_force=True, reason=reason)

    def _follow(self, forward: Forward) -> None:
        service = self._service
        assert service is not None
        service.iteration_ends()
        if service.enabled:
            self._journal.count_requests(service.new_requests())
        if not service.enabled:
            self._leave(service.refusal)
            self._rest(service.refusal)
            return
        problem = input_mismatch(service.inputs, forward.args, forward.kwargs)
        if service.is_on_trial:
            self._models.learn(forward.module)  # its requests are judged
        is_another = self._models.is_another(forward.module)
        self._is_unlike = problem is not None or is_another
        aside = service.step_aside(self._is_unlike, partly=self._memory.goes_in_parts)
        if self._leaving is None and is_another:
            follows = Stage.RECORDING if self._exchange() else Stage.RESTING
            self._leaving = _Departure(_ANOTHER_MODEL, follows)
        if self._leaving is None:
            self._leaving = self._reason_to_leave(service, forward, problem if aside else None)
        if self._leaving is not None and not self._depart(forward):
            service.drain()

    def _depart(self, forward: Forward | None) -> bool:
        """Takes a plan that is to go out of force, if its pool can go. True if it has."""
        leaving, service = self._leaving, self._service
        if leaving is None or service is None:
            return False
        may_leave_tensors = service.is_drained or service.is_aside
        if not service.is_empty and not (may_leave_tensors and self._memory.goes_in_parts):
            return False
        self._leave(leaving.reason)
        self._why = leaving.reason
        if leaving.next is Stage.WAITING:
            self._tries = 0
            self.stage = Stage.WAITING
        elif leaving.next is Stage.RECORDING:
            self._record(forward)
        else:
            self._rest(leaving.reason)
        return True

    def _reason_to_leave(
        self, service: Service, forward: Forward, problem: str | None
    ) -> _Departure | None:
        """Follows the plan, and renews it.

        Args:
            service: The plan in force.
            forward: The one that begins.
            problem: With its inputs, for which the pool is away.
        """
        if service.departs():
            reason = "the run departs from the plan of an earlier run"
            return _Departure(reason, Stage.RECORDING)
        outgrown = service.outgrown()
        if outgrown and service.loses(self._memory.peak):
            beside = described(service.beside)
            reason = f"it does worse than torch's policy would, with {beside} beside the pool"
            if self._renewal is not None or self._exchange():
                return _Departure(reason, Stage.RECORDING)
            return _Departure(f"{reason}, and no exchange is left in this hour", Stage.RESTING)
        if self._renewal is not None:
            return self._renew(self._renewal, service, forward)
        solution = self._planning.take()
        if solution is not None and solution.proposals:
            self._proposals = solution.proposals
            return _Departure("a longer search found a better plan", Stage.WAITING)
        self._unlike += problem is not None
        if not outgrown and self._unlike < self._patience:
            return None
        reason = service.departure if outgrown else _OTHER_INPUTS
        if self._exchange():
            self._unlike = 0
            self._planning.cancel()
            self._renewal = Renewal(
                self._adapter, self._options.iterations, service.proposal.plan, reason
            )
            self._renewal.note(forward)
            self._planning.iteration_is_recorded()
        elif outgrown and service.serves_little:
            return _Departure(f"{reason}, and no exchange is left in this hour", Stage.RESTING)
        return None

    def _renew(self, renewal: Renewal, service: Service, forward: Forward) -> _Departure | None:
        """Records and solves while the plan serves; says if there is a better one."""
        if not self._planning.is_busy:
            renewal.note(forward)
            if renewal.complete:
                # A plan whose pool is away serves nothing that a new one could improve on.
                plan = None if service.is_aside else service.proposal.plan
                self._planning.begin(renewal.finish(), forward, in_force=plan)
            return None
        solution = self._planning.take()
        if solution is None:
            return None
        self._renewal = None
        if solution.proposals:
            self._proposals = solution.proposals
            return _Departure(renewal.reason, Stage.WAITING)
        if solution.loses:
            reason = f"{renewal.reason}, and no plan does better than torch's policy"
            return _Departure(reason, Stage.RESTING)
        if service.serves_little:
            # Unplanned requests cost time: each one is looked a place for.
            reason = f"{renewal.reason}, and no plan serves more of them"
            return _Departure(reason, Stage.RESTING)
        service.accept()
        return None

    def _end_renewal(self) -> None:
        if self._renewal is not None:
            self._renewal.stop()
        self._renewal = None
        self._planning.cancel()

    def _leave(self, reason: str) -> None:
        assert self._service is not None
        self._end_renewal()
        self._service.end()
        self._journal.plan_changes(self._service.proposal, in_force=False, reason=reason)
        self._service = None
        self._is_unlike = False

    def _exchange(self) -> bool:
        """Takes a place in the budget; the next exchange takes more patience."""
        if not self._budget.take():
            return False
        self._patience = min(2 * self._patience, _MOST_PATIENCE)
        return True

    # Resting

    def _rest(self, reason: str) -> None:
        self._proposals = []
        self._unlike = 0
        self._rest_ends, self._next_rest = self._next_rest, 2 * self._next_rest
        self.stage = Stage.RESTING
        self._journal.rests(reason)

    def _watch(self, forward: Forward) -> None:
        """Records again once the inputs, or the model, have changed for good, or after a while.

        A recording may have met unusual iterations, or a plan no memory; and a program may come to
        request more without a sign. Each rest is twice as long, so recordings cost ever less.
        """
        changed = input_mismatch(self._planning.inputs, forward.args, forward.kwargs)
        is_another = self._models.is_another(forward.module)
        self._unlike = self._unlike + 1 if changed or is_another else 0
        self._rest_ends -= 1
        if self._unlike >= self._patience and self._exchange():
            self._why = _OTHER_INPUTS if changed else _ANOTHER_MODEL
            self._record(forward)
        elif self._rest_ends <= 0:
            self._why = "recorded again after a while"
            self._record(forward)
