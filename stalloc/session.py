"""Training under a plan: `stalloc.enable(plan)`, `stalloc.step()`, `stalloc.disable()`."""

from __future__ import annotations

import os
import warnings
import weakref
from pathlib import Path
from typing import Any

import torch

from stalloc import _adapters, _automatic, _compat
from stalloc._expandable import Switch, has_virtual_memory, may_expand, show_sharing
from stalloc._fit import (
    count,
    device_to_serve,
    environment_mismatch,
    input_mismatch,
    may_be_part,
    model_mismatch,
    names,
)
from stalloc._hooks.modules import ModuleName
from stalloc._pinned import Pinned
from stalloc._pinned import check as check_pinned
from stalloc._torch_modules import cuda_module, torch_module
from stalloc.correction import Correction, Corrector
from stalloc.errors import OutOfMemory, PlanError, StallocError, StallocWarning
from stalloc.hooks import TrainingHooks, model_signature
from stalloc.plans import Plan
from stalloc.profiling import (
    GUESSED_ENDS,
    SLOWER_ENDS,
    active_profile,
    has_trained_in_profile,
)
from stalloc.replaying import LEAST_RESERVED
from stalloc.statistics import count_anew, count_on


class Session:
    """The result of `enable`, and a context manager that disables the plan at its end.

    An object of this class itself is a refused plan, which is never in force.

    Attributes:
        plan: The plan.
        refusal: The reason why the plan does not fit this run; None while it fits.
        followed: True once a framework's driver reports phases, see `follow`.
    """

    def __init__(self, plan: Plan, refusal: str | None = None) -> None:
        self.plan = plan
        self.refusal = refusal
        self.followed = False
        self._corrector: Corrector | None = None

    @property
    def correction(self) -> Correction | None:
        """The plan of the first iterations' requests, and its differences to the plan given.

        None until they have passed, and if the plan is not corrected.
        """
        return self._corrector.correction if self._corrector is not None else None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        if _session is self:
            disable()

    @property
    def enabled(self) -> bool:
        """True while the plan is in force: not refused, disabled, replaced, or left to a parent."""
        return False

    @property
    def startup(self) -> bool:
        """True if the plan serves the run from its start, before there is a model."""
        return False

    def follow(self, model: torch.nn.Module | None, problem: str | None) -> None:
        """A driver takes over: calls of its model, if it has one, are the forwards from now on.

        Gives up if the plan is for another model, or there is a problem.

        Raises:
            PlanError: The plan does not fit, and it was enabled with `strict`.
        """
        self.followed = True

    def trust(self, *, makes_states: bool = False) -> None:
        """The program is the profiled one, so that its first departures end no phase of the plan.

        A request that departs is no state of the optimizer (Note [Trust] in
        csrc/runtime/matcher.h), unless it `makes_states` in this iteration.
        """

    def give_up(self, problem: str) -> None:
        """Takes the plan out of force because it does not fit. A refused plan stays refused.

        Raises:
            PlanError: It was enabled with `strict`. Otherwise this is a warning.
        """


class _Active(Session):
    """A plan that was put in force."""

    def __init__(
        self,
        plan: Plan,
        model: torch.nn.Module | None,
        strict: bool,
        reuse: bool,
        startup: bool,
        keep_addresses: bool | None,
        hand_back: bool = True,
        pinned: Plan | None = None,
        filled: bool = True,
        ahead: bool = False,
        corrects: bool = False,
    ) -> None:
        super().__init__(plan)
        self._corrects = corrects
        self._filled = filled
        self._ahead = ahead
        self._switch: Switch | None = None  # of expandable segments that this has turned on
        self.pinned = pinned
        self._reuse = reuse
        self._startup = startup
        self._keep_addresses = keep_addresses
        self._hand_back = hand_back
        self._strict = strict
        self._other_models = set(names(plan, "other_models")) - {plan.info.get("model")}
        self._inputs = names(plan, "inputs")
        self._adapter = _adapters.adapter(device_to_serve(plan, model))
        self._pinned = Pinned(self._adapter) if pinned is not None else None
        self._hooks = self._make_hooks(model)
        self._fits = False
        self._part = ""  # signature of a trained module that may be a part of the model

    def _make_hooks(self, model: torch.nn.Module | None) -> TrainingHooks:
        # The program may replace its model: nothing here keeps one alive.
        self._model = weakref.ref(model) if model is not None else None
        plan = self.plan
        return TrainingHooks(
            self._adapter.runtime,
            model,
            dynamic=[*names(plan, "dynamic"), *map(ModuleName, plan.dynamic)],
            accepts=self._accept,
            on_forward=self._forward_begins,
            early_ends=count(plan, "early_ends"),
            guesses_ends=plan.info.get("ends") == GUESSED_ENDS,
            waits_for_slower=plan.info.get("ends") == SLOWER_ENDS,
        )

    @property
    def enabled(self) -> bool:
        return _session is self and self._adapter.runtime.enabled

    @property
    def startup(self) -> bool:
        return self._startup

    def follow(self, model: torch.nn.Module | None, problem: str | None) -> None:
        super().follow(model, problem)
        if problem is None and model is not None:
            problem = model_mismatch(self.plan, model)
        if problem is not None:
            self.give_up(problem)
        elif model is not None:
            self._model = weakref.ref(model)
            self._hooks.follow(model)

    def trust(self, *, makes_states: bool = False) -> None:
        self._adapter.runtime.trust_all(makes_states)

    def give_up(self, problem: str) -> None:
        self.refusal = problem
        if _session is self:
            disable()
        _refuse(problem, self._strict)

    def _kind_of_memory(self) -> bool | None:
        """Returns the runtime's `keep_addresses`.

        False if NCCL is to register the memory, or if other processes got handles of such tensors
        in the profile: CUDA shares and registers plain memory only.
        """
        if not self._adapter.name.startswith("cuda"):
            return self._keep_addresses
        if not _adapters.registers_memory():
            shares = self._keep_addresses is None and "shared" in self.plan.info
            return False if shares else self._keep_addresses
        if self._keep_addresses:
            raise StallocError(
                "keep_addresses=True needs a pool of virtual memory, which NCCL cannot register, "
                "and TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK or NCCL_GRAPH_REGISTER asks for "
                "that; leave out keep_addresses, or unset the variable"
            )
        return False

    def _start(self, previous: _Active | None) -> None:
        """Puts the plan in force instead of `previous`, which stays in force if that fails."""
        try:
            self._adapter.install()
            if self._adapter.is_native:
                cuda_module().when_sharing_is_unknown(show_sharing)
            expands = self._may_expand()
            kind = self._kind_of_memory()
            if self._adapter.name.startswith("cuda") and kind is not False:
                _adapters.keep_graphs_unregistered()
            if not self._adapter.runtime.keep_addresses(kind):
                raise StallocError(
                    f"the driver of {self._adapter.name} has no virtual memory calls, without "
                    "which a pool cannot keep its addresses; leave keep_addresses out: the pool "
                    "can be released all the same"
                )
            # The pool replaces what torch has cached.
            self._adapter.give_back()
            self._leave_small(_small_of(self.plan))
            self._adapter.runtime.enable(
                self.plan._core,
                self._reuse,
                self._startup,
                self._hand_back,
                self._filled,
                self._ahead,
            )
            count_anew(self._adapter)
            self._adapter.refresh()
        except BaseException:
            if previous is None:
                self._adapter.uninstall()
            raise
        self._expand(expands, previous)
        if previous is not None:
            previous._stop_recording()
        if previous is not None and previous._pinned is not None:
            previous._pinned.disable()
        if previous is not None:
            previous._hooks.detach(silently=previous._adapter.runtime is self._adapter.runtime)
            if previous._adapter.name != self._adapter.name:
                previous._adapter.runtime.disable()
                previous._adapter.uninstall()
        try:
            if self._pinned is not None and self.pinned is not None:
                self._pinned.enable(self.pinned)
            if self._corrects:  # before the hooks tell where the run is
                self._corrector = Corrector(self._adapter, self.plan, self._startup, self._exchange)
            self._hooks.attach()
        except BaseException:
            self._stop()
            if previous is not None:
                previous._start(None)
            raise

    def _may_expand(self) -> bool:
        """True if torch's allocator is to use expandable segments for what lies beside the pool.

        `stalloc.auto` decides that itself.
        """
        if _automatic.current is not None or self._kind_of_memory() is False:
            return False
        size = self.plan.pool + self.plan.resident
        return size >= LEAST_RESERVED and may_expand(self._adapter)

    def _expand(self, expands: bool, previous: _Active | None) -> None:
        """Turns expandable segments on or off, unless the plan before has left them so."""
        switch = previous._switch if previous is not None else None
        if expands and switch is None:
            switch = Switch(self._adapter)
            switch.set(True)
        elif switch is not None and not expands:
            switch.set(False)
            # Torch no longer uses what it has cached in them.
            self._adapter.give_back()
            switch = None
        self._switch = switch

    def _leave_small(self, size: int) -> None:
        """Numbers that a GPU gets as arguments are tensors on the CPU, unknown to other plans."""
        if self._adapter.name == "cpu":
            torch_module().leave_small_cpu(size)

    def _stop_recording(self) -> None:
        if self._corrector is not None:
            self._corrector.stop()

    def _stop(self) -> None:
        self._stop_recording()
        self._hooks.detach()
        if self._pinned is not None:
            self._pinned.disable()
        self._adapter.runtime.disable()
        self._expand(False, self)
        self._leave_small(0)
        self._adapter.refresh()
        self._adapter.uninstall()

    def _accept(self, module: torch.nn.Module, waited: int) -> bool:
        """True if a module that is called first is the root: the model, or another one to refuse.

        A module that may be a part of the model, called before the whole, is not the root: the
        session waits for the model until two iterations were trained without it.
        """
        if self._fits:
            return True
        running = model_signature(module)
        if running in self._other_models or not may_be_part(running, self.plan):
            return True
        self._part = self._part or running
        if waited >= 2:
            self.give_up(
                f"it was profiled with the model {self.plan.info['model']}, which was not called "
                f"for training; {self._part} was. Profile again, or name the model: "
                "enable(plan, model=...)"
            )
        return False

    def _forward_begins(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        self._check_forward(module, args, kwargs)
        if self._corrector is not None and self._corrector.forward_begins(module, args, kwargs):
            self._hooks.join_forward(module, args, kwargs)

    def iteration_ends(self) -> None:
        """The user called `stalloc.step()`; not for users."""
        self._hooks.end_iteration()
        if self._corrector is not None:
            self._corrector.iteration_ends()

    def _exchange(self, plan: Plan) -> bool:
        """Puts the plan's correction in force, unless two pools would exist or memory is short.

        Raises:
            StallocError: Neither plan can be put in force.
        """
        if not self._pool_goes():
            return False
        before, runtime = self.plan, self._adapter.runtime
        self._hooks.detach()
        count_on(self._adapter)
        runtime.disable()
        self._adapter.give_back()
        try:
            try:
                self._serve(plan)
            except OutOfMemory:
                self._serve(before)
        except BaseException:
            disable()
            raise
        return self.plan is plan

    def _pool_goes(self) -> bool:
        """True if the pool's idle memory goes to the device with the plan."""
        if self._adapter.runtime.statistics()["live_blocks"] == 0:
            return True
        is_virtual = self._kind_of_memory() is not False and has_virtual_memory(self._adapter)
        return self._adapter.name == "cpu" or is_virtual

    def _serve(self, plan: Plan) -> None:
        """Serves a plan in the middle of the run, whose pool gets memory as it is used."""
        self.plan = plan
        self._hooks = self._make_hooks(self._model() if self._model is not None else None)
        self._leave_small(_small_of(plan))
        self._adapter.runtime.enable(plan._core, self._reuse, False, self._hand_back, False)
        self._adapter.refresh()
        self._hooks.attach()
        self.trust()

    def _check_forward(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Refuses, at the first forward of the run, a plan of another model or batch."""
        if self._fits or (self._other_models and model_signature(module) in self._other_models):
            return
        self._fits = True
        problem = model_mismatch(self.plan, module) or input_mismatch(self._inputs, args, kwargs)
        if problem:
            self.give_up(problem)
        elif not self._startup and has_trained_in_profile(module):
            self.trust()


def _small_of(plan: Plan) -> int:
    """The most bytes of requests that are left to the CPU."""
    return _adapters.SMALL if plan.info.get("device") == "meta" else 0


# The plan in force: at most one.
_session: _Active | None = None


def enable(
    plan: Plan | str | os.PathLike[str],
    *,
    model: torch.nn.Module | None = None,
    strict: bool = True,
    reuse: bool = True,
    startup: bool = False,
    keep_addresses: bool | None = None,
    mode: str | None = None,
    hand_back: bool | None = None,
    pinned: Plan | str | os.PathLike[str] | None = None,
    correct: bool | None = None,
) -> Session:
    """Reserves the plan's pool and serves the run's tensors from it, from now on.

    Best called between two iterations. Live tensors keep their memory. On a GPU, torch's cached
    memory is given back first, and torch's allocator uses expandable segments for what lies beside
    a pool of virtual memory, until the plan is disabled. They stay as they are if the program has
    chosen settings for that allocator (`PYTORCH_ALLOC_CONF`), has loaded an inference engine as one
    of several processes, or has a plan of less than 256 MiB. A plan that is in force is replaced. A
    difference between run and profile costs memory or speed, never a value.

    Args:
        plan: A plan, or the path of its file.
        model: The module whose training forward begins a microbatch. None takes the
            outermost module that is called first.
        strict: Raise PlanError for a plan that does not fit this run (another model, inputs of
            another type, or larger than profiled in a dimension that never changed in the profile,
            another torch). Otherwise a warning says so and the run goes on unplanned. The
            model and the inputs are known at the first training forward, or in the third iteration
            if that forward may belong to a part of the model.
        reuse: Serve dynamic requests inside the pool, from regions and reusable space. Otherwise
            the fallback serves all of them.
        startup: The run begins here, before the model is built, as in the profile. Weights,
            gradients and the optimizer's states then lie in the plan's resident region, which is
            reserved too, and the plan serves the first iteration like any other. The fallback
            serves start-up requests that the plan does not know.
        keep_addresses: A pool that is released and acquired again keeps its addresses, as it always
            does on the CPU. On a GPU, such a pool needs the driver's virtual memory calls, and
            tensors in it are shared with other processes as torch's expandable segments are, by
            files instead of handles of CUDA IPC. None: a pool has such memory, in
            which it grows while tensors lie in it, if the driver has these calls; the resident
            region has not, and no pool has if NCCL is to register memory
            (TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK=1, NCCL_GRAPH_REGISTER=1), or if a tensor
            of the pool was shared with another process while the profile was recorded. False: no
            pool has. If it must grow for a batch while tensors lie in it, a second piece is added,
            which costs some memory; what an evaluation needs besides lies beside the pool. With
            virtual memory, NCCL_GRAPH_REGISTER is set to 0 unless it is set.
        mode: The way to intercept torch's allocator for GPUs. "compat" uses torch's pluggable
            allocator interface for the rest of the process, and must come before the first use of
            the GPU. None keeps compat mode if it is on, and is native mode otherwise.
        hand_back: Give a freed block on at once if its addresses are needed, although other streams
            (`record_stream`) still use it: on the GPU, its own stream then waits for them. That
            saves memory, and stalls a producer that is far ahead of its consumer. False: it keeps
            its addresses until these streams are found done, as with torch's allocator. None: True,
            unless the environment variable `STALLOC_HAND_BACK` is 0.
        pinned: A plan of pinned host memory, or the path of its file: `Profile.plan_pinned` makes
            it. Requests for pinned memory are served from its pool, which is locked once. None:
            torch's allocator serves them.
        correct: Record the first iterations while the plan serves them, and plan them again.
            `Session.correction` has that plan and the differences. It goes into force between two
            iterations if it serves more of the requests, or the same in less memory. None: for a
            plan that was made on the meta device, such as an estimate's.

    Returns:
        A session, which may be used as a context manager: it disables the plan at its end.

    Raises:
        TypeError: If the plan or the model is something else.
        ValueError: If the mode is unknown, or `STALLOC_HAND_BACK` is neither 0 nor 1.
        PlanError: If the plan is damaged, or (when strict) does not fit.
        OutOfMemory: If a pool cannot be reserved.
        StallocError: While a profile is being recorded, or if it is too late for the mode.

    If it raises, nothing has changed: a plan that was in force still is. Only compat mode stays on
    if a later step fails.
    """
    _automatic.take_over("stalloc.enable()")
    if active_profile() is not None:
        raise StallocError("a profile is being recorded; leave its `with` block before enable()")
    if mode not in (None, "compat"):
        raise ValueError(f"mode is 'compat' or None, not {mode!r}")
    if hand_back is None:
        hand_back = _hands_back()
    if isinstance(plan, (str, os.PathLike)):
        plan = Plan.load(Path(plan))
    if not isinstance(plan, Plan):
        raise TypeError(f"enable() takes a Plan or the path of one, not {type(plan).__name__}")
    if isinstance(pinned, (str, os.PathLike)):
        pinned = Plan.load(Path(pinned))
    if pinned is not None:
        if not isinstance(pinned, Plan):
            raise TypeError(f"pinned is a Plan or the path of one, not {type(pinned).__name__}")
        check_pinned(pinned)
    _adapters.check_model(model)
    problem = _mismatch(plan, model)
    if problem:
        _refuse(problem, strict)
        disable()
        return Session(plan, problem)
    if mode == "compat":
        _compat.install_compat()
    if correct is None:
        correct = plan.info.get("device") == "meta"
    return _put_in_force(
        _Active(
            plan,
            model,
            strict,
            reuse,
            startup,
            keep_addresses,
            hand_back,
            pinned,
            corrects=correct,
        )
    )


def enable_gradually(plan: Plan, model: torch.nn.Module, *, ahead: bool) -> Session:
    """Puts a plan in force whose pool gets memory as it is used; not for users.

    A device that cannot add memory to a pool gives all of it at once.

    Args:
        plan: The plan.
        model: The model.
        ahead: The first iteration serves only requests that live on into the next one.
    """
    if problem := _mismatch(plan, model):
        _refuse(problem, strict=False)
        disable()
        return Session(plan, problem)
    return _put_in_force(
        _Active(
            plan,
            model,
            strict=False,
            reuse=True,
            startup=False,
            keep_addresses=None,
            hand_back=_hands_back(),
            filled=False,
            ahead=ahead,
        )
    )


def _mismatch(plan: Plan, model: torch.nn.Module | None) -> str | None:
    problem = environment_mismatch(plan)
    return problem or (model_mismatch(plan, model) if model is not None else None)


def _put_in_force(session: _Active) -> Session:
    global _session
    session._start(_session)
    _session = session
    return session


def _hands_back() -> bool:
    value = os.environ.get("STALLOC_HAND_BACK") or "1"
    if value not in ("0", "1"):
        raise ValueError(f"STALLOC_HAND_BACK is 0 or 1, not {value!r}")
    return value == "1"


def disable() -> None:
    """Ends the plan, and `stalloc.auto`. No-op when neither is on.

    May be called at any time. Live blocks stay valid; the pool goes back to the device with the
    last of them.
    """
    global _session
    _automatic.take_over("stalloc.disable()")
    session, _session = _session, None
    if session is not None:
        session._stop()


def release_pool(*, partly: bool = False) -> int:
    """Gives the plan's pool back to the device, such as for inference between iterations.

    The fallback serves everything until `acquire_pool`. No-op if the pool is released, but that
    memory goes, with `partly`, in which tensors lay that have gone since.

    Args:
        partly: Tensors may lie in the pool. Their memory stays, and the rest goes: chunks of
            virtual memory (on the CPU: pages) and pieces of plain memory in which no tensor lies.

    Returns:
        The bytes of the pool that stay.

    Raises:
        StallocError: If no plan is in force, or tensors lie in the pool. With `partly`, only if
            they lie in all of its memory, such as in a pool that is one piece of plain memory.
    """
    session = _in_force()
    left = session._adapter.runtime.release_pool(partly)
    session._adapter.refresh()
    return left


def acquire_pool() -> None:
    """Reserves the pool again and serves from it. No-op if it is reserved.

    Raises:
        StallocError: If no plan is in force.
        OutOfMemory: If the device lacks the memory; then nothing has changed.
    """
    session = _in_force()
    try:
        session._adapter.runtime.acquire_pool()
    except OutOfMemory:
        session._adapter.give_back()
        session._adapter.runtime.acquire_pool()
    session._adapter.refresh()


def _in_force() -> _Active:
    session = current_session()
    if session is None:
        raise StallocError("no plan is in force, so there is no pool; call stalloc.enable() first")
    return session


def step() -> None:
    """Marks the end of an iteration of a planned or profiled run; otherwise a no-op.

    Without any call, an iteration ends with the first forward after the optimizer's step, or after
    a backward pass if no optimizer ever steps.
    """
    if _session is not None:
        _session.iteration_ends()
    elif (profile := active_profile()) is not None:
        profile.step()
    _automatic.stepped()


def current_session() -> _Active | None:
    """The plan in force."""
    return _session if _session is not None and _session.enabled else None


def _refuse(problem: str, strict: bool) -> None:
    if strict:
        raise PlanError(f"the plan does not fit this run: {problem}")
    warnings.warn(
        f"stalloc: the plan does not fit this run and was refused; training goes on unplanned: "
        f"{problem}",
        StallocWarning,
        stacklevel=3,
    )
