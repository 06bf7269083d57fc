"""The state machine of `stalloc.auto`: it makes the calls that a user would make.

    RECORDING -> PLANNING -> WAITING -> SERVING       a plan went into force
        ^                       |          |
        |                       v          |
        |                    RESTING       |          torch serves: no plan saves, or none fits
        +----------------------------------+          the plan is outgrown: back to torch, record

Everything happens where an iteration ends: at the first training forward after the optimizer's
step, or after `stalloc.step()`. Hooks of its own tell that. The pool of a plan that serves
transients is empty there. So at no moment are there two pools, or a pool beside the memory that it
replaces.

An error ends it with a warning, and training goes on under torch. In a forked child it does
nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from stalloc import _adapters, _automatic, session
from stalloc._auto.background import Background
from stalloc._auto.budget import Budget
from stalloc._auto.drift import Drift
from stalloc._auto.ends import IterationEnds
from stalloc._auto.journal import Journal
from stalloc._auto.proposal import Proposal, propose
from stalloc._auto.room import Room
from stalloc._auto.settings import SWITCH, AutoOptions
from stalloc._auto.status import AutoStatus, Stage
from stalloc._fit import input_mismatch, model_mismatch, names
from stalloc.errors import OutOfMemory, StallocError, StallocWarning
from stalloc.hooks import TrainingHooks
from stalloc.profiling import Profile, profile

_LEAST_GAIN = 0.01  # share of torch's reserved bytes; less is not worth a change
_TRIES = 8  # iterations to wait for a moment in which the plan fits
_PATIENCE = 3  # iterations of drift; doubled with each exchange
_MOST_PATIENCE = 96


class Auto:
    """The result of `stalloc.auto`, and a context manager that ends it."""

    def __init__(
        self,
        model: torch.nn.Module | None,
        device: torch.device,
        options: AutoOptions,
        on: bool = True,
    ) -> None:
        self._options = options
        self._stage = Stage.OFF
        self._journal = Journal("" if on else f"switched off by {SWITCH}=0")
        self._process = os.getpid()
        self._worker: int | None = None  # the thread that makes a call
        self._ends = IterationEnds()
        self._profile: Profile | None = None
        self._background: Background[Proposal] | None = None
        self._proposal: Proposal | None = None
        self._session: session.Session | None = None
        self._drift: Drift | None = None
        self._why = "first plan"
        self._tries = 0
        self._patience = _PATIENCE
        self._budget = Budget(options.exchanges)
        if not on:
            return
        self._device = device
        self._adapter = _adapters.adapter(device)
        self._room = Room(self._adapter)
        self._hooks = TrainingHooks(self._ends, model, on_forward=self._on_forward)
        self._begin(model)

    def __enter__(self) -> Auto:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def enabled(self) -> bool:
        """True until it has ended. In a forked child it has."""
        return self._stage is not Stage.OFF and self._process == os.getpid()

    def status(self) -> AutoStatus:
        """Its state."""
        self._count_requests()
        return self._journal.copy(self._stage if self.enabled else Stage.OFF)

    def stop(self, *, silently: bool = False) -> None:
        """Ends it, and a plan that it has put in force. May be repeated.

        Args:
            silently: Leave out the line about the run.
        """
        if not self.enabled:
            return
        self._journal.ends(self._stage)
        with self._working():
            self._end()
        if not silently:
            self._journal.tell_end()

    # For the explicit calls

    @property
    def at_work(self) -> bool:
        """True inside of a call that this object makes; not for users."""
        return self._worker == threading.get_ident()

    def stepped(self) -> None:
        """The user called `stalloc.step()`; not for users."""
        if self.enabled:
            self._hooks.end_iteration()

    def give_way(self, reason: str) -> None:
        """An explicit call takes over; not for users."""
        self._journal.status["reason"] = reason
        self.stop()

    # Stages

    def _begin(self, model: torch.nn.Module | None) -> None:
        self._hooks.attach()
        _automatic.current = self
        try:
            with self._working():
                self._record(model)
        except BaseException:
            with self._working():
                self._end()
            raise
        atexit.register(self.stop)

    def _on_forward(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        ended = self._ends.take()
        if not ended or not self.enabled:
            return
        self._journal.count(ended, served=self._stage is Stage.SERVING)
        with self._guarded(), self._working():
            self._iteration_over(module, args, kwargs)

    def _iteration_over(self, root: torch.nn.Module, args: Any, kwargs: Any) -> None:
        self._room.note()
        if self._stage is Stage.SERVING:
            self._follow(root, args, kwargs)
        if self._stage is Stage.RECORDING:
            self._plan_if_recorded()
        if self._stage is Stage.PLANNING:
            self._take_proposal()
        if self._stage is Stage.WAITING:
            self._serve_if_it_fits(root, args, kwargs)

    def _record(self, root: torch.nn.Module | None) -> None:
        self._profile = profile(
            root,
            device=self._device,
            layers=False,
            iterations=self._options.iterations,
            exact=False,
        )
        self._profile.__enter__()
        self._stage = Stage.RECORDING

    def _record_again(self, root: torch.nn.Module, args: Any, kwargs: Any) -> None:
        self._record(root)
        assert self._profile is not None
        self._profile._hooks.join_forward(root, args, kwargs)

    def _plan_if_recorded(self) -> None:
        recorded = self._profile
        assert recorded is not None
        if not recorded.complete:
            return
        recorded.stop()
        self._profile = None
        trace = recorded.trace
        if len(trace.requests) == 0:
            raise StallocError(
                f"the program asked for no memory on {self._device}: name the device that it "
                "trains on"
            )
        work = partial(propose, trace, self._options.time_limit)
        self._background = Background(work, self._options.threads)
        self._stage = Stage.PLANNING

    def _take_proposal(self) -> None:
        assert self._background is not None
        if not self._background.done:
            return
        self._proposal = self._background.result()
        self._background = None
        self._tries = 0
        if self._proposal.gain < _LEAST_GAIN:
            self._rest("a plan would save less than 1 % of what torch reserves")
        else:
            self._stage = Stage.WAITING

    def _rest(self, reason: str) -> None:
        self._proposal = None
        self._stage = Stage.RESTING
        self._journal.rests(reason)

    def _serve_if_it_fits(self, root: torch.nn.Module, args: Any, kwargs: Any) -> None:
        proposal = self._proposal
        assert proposal is not None
        plan = proposal.plan
        problem = model_mismatch(plan, root) or input_mismatch(names(plan, "inputs"), args, kwargs)
        if problem is not None and self._budget.take():
            self._why = problem
            self._record_again(root, args, kwargs)
            return
        problem = problem or self._room.shortage(plan)
        if problem is None:
            try:
                self._serve(proposal, root, args, kwargs)
                return
            except OutOfMemory as error:
                problem = str(error)
        self._tries += 1
        if self._tries == _TRIES:
            self._rest(problem)

    def _serve(self, proposal: Proposal, root: torch.nn.Module, args: Any, kwargs: Any) -> None:
        self._session = session.enable(proposal.plan, model=root, strict=False)
        active = session.current_session()
        if active is None:
            raise StallocError(self._session.refusal or "the plan was refused")
        self._stage = Stage.SERVING
        self._room.entered()
        self._drift = Drift(
            proposal.beside, self._room.tolerated(proposal, self._options.tolerance), self._patience
        )
        active._hooks.join_forward(root, args, kwargs)
        self._journal.plan_changes(proposal, in_force=True, reason=self._why)

    def _follow(self, root: torch.nn.Module, args: Any, kwargs: Any) -> None:
        assert self._session is not None
        assert self._drift is not None
        assert self._proposal is not None
        self._count_requests()
        if not self._session.enabled:
            reason = self._session.refusal or "it was disabled"
            self._out_of_force(reason)
            self._rest(reason)
            return
        beside = self._room.beside()
        if not self._drift.persists(beside) or not self._room.pool_is_empty():
            return
        loses = self._proposal.plan.pool + beside > self._proposal.before
        more = "more than torch's policy would, with" if loses else "it is outgrown:"
        reason = f"{more} {self._room.described(beside)} beside the pool"
        if self._budget.take():
            self._why = reason
            self._patience = min(2 * self._patience, _MOST_PATIENCE)
            self._out_of_force(reason)
            self._record_again(root, args, kwargs)
        elif loses:
            self._out_of_force(reason)
            self._rest(f"{reason}, and no exchange is left in this hour")

    def _out_of_force(self, reason: str) -> None:
        self._count_requests()
        session.disable()
        self._session = None
        assert self._proposal is not None
        self._journal.plan_changes(self._proposal, in_force=False, reason=reason)

    # Parts

    def _count_requests(self) -> None:
        if self._session is not None and self._session.enabled:
            self._journal.count_requests(*self._room.new_requests())

    def _end(self) -> None:
        atexit.unregister(self.stop)
        self._hooks.detach()
        if self._profile is not None:
            self._profile.stop()
        if self._background is not None:
            self._background.cancel()
        self._count_requests()
        if self._session is not None and self._session.enabled:
            session.disable()
        self._profile = self._background = self._session = None
        self._stage = Stage.OFF
        if _automatic.current is self:
            _automatic.current = None

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        before, self._worker = self._worker, threading.get_ident()
        try:
            yield
        finally:
            self._worker = before

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            with self._working():
                self._end()
            reason = self._journal.status["reason"] = " ".join(str(error).split())
            warnings.warn(
                f"stalloc.auto ends, and training goes on under torch: {reason}",
                StallocWarning,
                stacklevel=2,
            )
