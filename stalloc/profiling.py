"""Profiling a training run: `with stalloc.profile(model) as prof`."""

from __future__ import annotations

import gc
import importlib
import json
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from stalloc import _adapters, _automatic, _core
from stalloc._hooks import optimizers
from stalloc._hooks.iterations import MOST_STEPS
from stalloc._pinned import DEVICE as PINNED
from stalloc._pinned import Pinned, info_of
from stalloc.dynamic import dynamic_patterns
from stalloc.errors import StallocError, TraceError
from stalloc.hooks import TrainingHooks, input_signature, model_signature
from stalloc.trace import Trace

if TYPE_CHECKING:
    from stalloc._script import Guess
    from stalloc.planner import Streams
    from stalloc.plans import Plan

GUESSED_ENDS = "backward"
"""Value of the key `ends` in the info of a trace without optimizer steps and calls of `step()`."""

SLOWER_ENDS = "slower optimizer"
"""The value if iterations end with the step of an optimizer that steps less often than another."""

# The profile that is being recorded, of which there is one at a time.
_active: Profile | None = None

# The models that were trained while profiles of this process were recorded, by their identity.
_trained: list[weakref.ref[torch.nn.Module]] = []


class Profile:
    """Records every allocation and free of a device, with phase, microbatch and layer.

    Made by `profile`; a context manager. Record at least two complete iterations, better three: the
    first one warms up (it allocates the optimizer's states), and stalloc compares the others.

    """

    def __init__(
        self,
        model: torch.nn.Module | None,
        device: torch.device,
        dynamic: Sequence[str],
        layers: bool,
        iterations: int | None,
        exact: bool = True,
        pinned: bool = False,
        target: str | None = None,
    ) -> None:
        # The program may replace its model: nothing here keeps one alive.
        self._given = weakref.ref(model) if model is not None else None
        self._found: weakref.ref[torch.nn.Module] | None = None
        self._found_signature = ""
        self._other_models: list[str] = []  # signatures of those found before
        self._device = device
        self._dynamic = dynamic
        self._target = target
        self._pretended: ExitStack | None = None
        self._values: Any = None
        # For scripts: called before each operator of a program whose CPU only pretends.
        self.watch: Callable[[], None] = lambda: None
        self._adapter = _adapters.pretended_cpu() if target == "cpu" else _adapters.adapter(device)
        self._pinned = Pinned(self._adapter) if pinned else None
        self._pinned_trace: Trace | None = None
        self._exact = exact
        self._hooks = TrainingHooks(
            self._adapter.runtime,
            model,
            layers=layers,
            dynamic=dynamic,
            on_forward=self._on_forward,
            guesses_ends=True,
            on_first_step=self._adapter.runtime.join_iterations,
            on_rootless=self._stop_if_complete,
            on_slower=self._join_cycle,
        )
        self._iterations = iterations
        # For estimates: iterations that have ended by a guess and do not suffice yet, as long as
        # there is no optimizer. Backward passes that come before training end such ones, too.
        self.patience = 0
        self._ends_are_guessed = True
        self._awaits_step = False  # there is an optimizer, which may accumulate gradients
        self._has_slower = False
        self._searched = 0  # recorded iterations when a slower optimizer was looked for
        self._finds_slower = False
        self._ends_are_explicit = False
        self._early_ends = 0  # iterations that seemed to end before the first step()
        self._inputs: set[str] = set()
        self._info: dict[str, str] = {}
        self._trace: Trace | None = None
        self._is_ending = False

    @property
    def is_ending(self) -> bool:
        """True while `stop` is at work, on any thread."""
        return self._is_ending

    @property
    def complete(self) -> bool:
        """True if all requested iterations are recorded, or recording has ended."""
        return _active is not self or self._has_all()

    def follow(
        self,
        model: torch.nn.Module | None,
        dynamic: Iterable[str | type] | None,
        info: Mapping[str, str],
    ) -> None:
        """A driver takes over, which knows the model and the ends of iterations.

        Args:
            model: The module whose calls are forwards; None: the first module that is called.
            dynamic: As for `profile`; None: no change.
            info: More entries for the info of the trace.
        """
        if dynamic is not None:
            self._dynamic = dynamic_patterns(dynamic)
        self._hooks.follow(model, None if dynamic is None else self._dynamic)
        if model is not None and self.model is not model and self._given is None:
            self._meet(model)
        self._info.update(info)

    @property
    def model(self) -> torch.nn.Module | None:
        """The model whose calls begin microbatches.

        Without a model in `profile`, this is the one that was found last: None until its first
        training forward, and after it is gone.
        """
        root = self._found if self._given is None else self._given
        return root() if root is not None else None

    def __enter__(self) -> Profile:
        global _active
        _automatic.take_over("stalloc.profile()")
        if _active is not None:
            raise StallocError("a profile is being recorded already; leave its `with` block first")
        # On another device, too: the plan's hooks would take the profiled run for theirs.
        if (planned := _adapters.planned_device()) is not None:
            raise StallocError(
                f"a plan is enabled on {planned}; call stalloc.disable() before profiling"
            )
        # Garbage of earlier work would be freed at a random moment of the profile.
        gc.collect()
        self._adapter.runtime.start_recording()
        if self._pinned is not None:
            self._pinned.start_recording()
        try:
            self._adapter.install()
            self._adapter.record_exactly(self._exact)
            self._adapter.follow_order(True)
            if self._exact:
                self._adapter.give_back()
            self._hooks.attach()
            self._pretend()
        except BaseException:
            self._end()
            raise
        _active = self
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            if self._pretended is not None:
                self._pretended.close()

    def _pretend(self) -> None:
        """From now on the CPU only pretends, if that is the target."""
        if self._target != "cpu":
            return
        # By name: runs without a device stand above profiles, which they make.
        patches = importlib.import_module("stalloc._estimate.patches")
        with ExitStack() as entered:
            self._values = entered.enter_context(patches.pretended_cpu(self.watch))
            self._pretended = entered.pop_all()

    @property
    def guesses(self) -> list[Guess]:
        """Values that the program read from tensors without memory, with the lines that read."""
        return [] if self._values is None else [*self._values.guesses]

    def step(self) -> None:
        """Marks the end of an iteration.

        Without any call, an iteration ends with the first forward after the optimizer's step, or
        after a backward pass if no optimizer ever steps. The first call joins the iterations that
        ended like that before it, unless the optimizer that stepped last had stepped before: in the
        first cycle of several optimizers they were parts of one iteration, later they were whole
        iterations.
        """
        if _active is self and not self._ends_are_explicit:
            self._ends_are_explicit = True
            if self._hooks.guesses_ends:
                self._adapter.runtime.join_iterations()
            elif self._hooks.in_first_cycle:
                self._early_ends += self._adapter.runtime.recorded_iterations
                self._adapter.runtime.join_iterations()
            else:
                self._early_ends = 0
        self._hooks.end_iteration()

    def stop(self) -> None:
        """Ends recording, as leaving the `with` block does. The trace can be had from then on."""
        global _active
        if _active is not self:
            return
        self._is_ending = True
        try:
            _active = None
            self._finish()
        finally:
            self._is_ending = False

    def _finish(self) -> None:
        self._trace = Trace(self._end())
        self._trace.info = self._trace.info | self._describe()
        if self.model is not None and self._device.type != "meta":
            _trained[:] = [model for model in _trained if model() is not None]
            _trained.append(weakref.ref(self.model))
        if self._pinned_trace is not None:
            self._pinned_trace.info = self._trace.info | {"device": PINNED}

    def _end(self) -> _core.Trace:
        self._ends_are_guessed = self._hooks.guesses_ends
        self._hooks.detach()
        self._adapter.follow_order(False)
        if self._pinned is not None:
            self._pinned_trace = self._pinned.finish_recording()
        self._adapter.uninstall()
        return self._adapter.runtime.finish_recording()

    @property
    def trace(self) -> Trace:
        """The recorded trace.

        Raises:
            StallocError: During the recording.
        """
        if self._trace is None:
            raise StallocError(
                "the trace is complete when the `with stalloc.profile(...)` block ends"
            )
        return self._trace

    @property
    def pinned_trace(self) -> Trace:
        """The recorded requests for pinned memory.

        Raises:
            StallocError: During the recording, or if it was not asked for.
        """
        if self._pinned is None:
            raise StallocError("pinned memory was not recorded: stalloc.profile(..., pinned=True)")
        if self._pinned_trace is None:
            raise StallocError(
                "the trace is complete when the `with stalloc.profile(...)` block ends"
            )
        return self._pinned_trace

    def plan_pinned(self, *, alignment: int = 512, time_limit: float | None = None) -> Plan:
        """Plans the address of every static request for pinned memory.

        Args:
            alignment: Bytes; every address is a multiple of it.
            time_limit: Seconds to look for a better plan than the first one; see `Trace.plan`.

        Raises:
            StallocError: Pinned memory was not recorded.
            TraceError: If no complete iteration was recorded.
        """
        trace = self.pinned_trace
        self.check()
        plan = trace.plan(alignment=alignment, time_limit=time_limit, streams="separate")
        plan.info = plan.info | info_of(trace)
        return plan

    def plan(
        self,
        *,
        algorithm: str | None = None,
        alignment: int = 512,
        time_limit: float | None = None,
        regions: bool = True,
        dynamic: bool = True,
        streams: Streams | str = "auto",
        extents: Mapping[str, int] | None = None,
    ) -> Plan:
        """Plans the address of every static request.

        Args:
            algorithm: A planner's name; None runs several and keeps the best plan.
            alignment: Bytes; every address is a multiple of it.
            time_limit: Seconds to look for a better plan than the first one; see `Trace.plan`.
            regions: Reserve regions in the pool for dynamic requests.
            dynamic: Serve dynamic requests in the pool at all.
            streams: "auto", "ordered" or "separate": if streams may share addresses; see
                `Trace.plan`.
            extents: The largest batches to plan for, as in `{"ids.1": 8192}`; see `Trace.plan`.

        Raises:
            TraceError: If no complete iteration was recorded.
            PlanError: There is no such planner or extent, or the options make no sense.
        """
        self.check()
        return self.trace.plan(
            algorithm=algorithm,
            alignment=alignment,
            time_limit=time_limit,
            regions=regions,
            dynamic=dynamic,
            streams=streams,
            extents=extents,
        )

    def check(self) -> None:
        """Checks that there is something to plan.

        Raises:
            TraceError: If no end of an iteration was seen.
        """
        if len(self.trace.iterations) > 1 or not self._ends_are_guessed:
            return
        raise TraceError(
            "no complete iteration was seen: there was no step of a torch.optim.Optimizer, and no "
            "two forwards with a backward pass in between; call stalloc.step() at the end of each "
            "iteration"
        )

    def _on_forward(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if self._stop_if_complete():
            return
        if self._given is None and self.model is not module:
            self._meet(module)
        self._inputs.add(input_signature(args, kwargs))

    def _stop_if_complete(self) -> bool:
        if not self._has_all():
            return False
        self.stop()
        return True

    def _has_all(self) -> bool:
        recorded = self._adapter.runtime.recorded_iterations
        if self._iterations is None or recorded < self._iterations:
            return False
        if self._hooks.guesses_ends:
            self._awaits_step = self._awaits_step or optimizers.any_exists()
            return not self._awaits_step and recorded >= self.patience
        return not self._awaits_slower(recorded)

    def _awaits_slower(self, recorded: int) -> bool:
        if recorded > MOST_STEPS or self._has_slower or self._ends_are_explicit:
            return False
        if self._searched != recorded:  # once an iteration: a search is slow
            self._searched = recorded
            self._finds_slower = self._hooks.awaits_first_step()
        return self._finds_slower

    def _join_cycle(self) -> None:
        self._has_slower = True
        self._early_ends = self._adapter.runtime.recorded_iterations
        self._adapter.runtime.join_iterations()

    def _meet(self, module: torch.nn.Module) -> None:
        if self._found_signature:
            self._other_models.append(self._found_signature)
        self._found = weakref.ref(module)
        self._found_signature = model_signature(module)

    def _describe(self) -> dict[str, str]:
        model = self.model
        info = {
            "device": self._device.type,
            "torch": torch.__version__,
            "python": ".".join(map(str, sys.version_info[:3])),
            "model": model_signature(model) if model is not None else self._found_signature,
            "inputs": json.dumps(sorted(self._inputs)),
            "dynamic": json.dumps(self._dynamic),
        }
        if self._target is not None:
            info["target"] = self._target
        if self._other_models:
            info["other_models"] = json.dumps(self._other_models)
        if self._early_ends and self._ends_are_explicit:
            info["early_ends"] = str(self._early_ends)
        if self._ends_are_guessed:
            info["ends"] = GUESSED_ENDS
        elif self._has_slower and not self._ends_are_explicit:
            info["ends"] = SLOWER_ENDS
        return info | self._info


def profile(
    model: torch.nn.Module | None = None,
    *,
    device: torch.device | str | None = None,
    dynamic: Iterable[str | type] | None = None,
    layers: bool = True,
    iterations: int | None = None,
    exact: bool = True,
    pinned: bool = False,
    target: str | None = None,
) -> Profile:
    """Records a training run's allocations, to be planned.

    Example::

        with stalloc.profile(model) as prof:
            for _ in range(3):
                train_step(next(batches))
                prof.step()
        plan = prof.plan()

    Args:
        model: The module whose training forward begins a microbatch. None takes the outermost
            module that is called first.
        device: The device; None means the model's. On "meta" nothing is computed and no
            memory is needed, so that a model of any size can be profiled.
        dynamic: Classes, or patterns of module names or class names, of modules whose requests have
            sizes that are not known ahead. None means `stalloc.dynamic.DEFAULT_DYNAMIC`, and `()`
            none. Classes go by name. Other requests are dynamic if their size or
            presence differs between the profiled iterations.
        layers: Record the module of each request. Costs two Python calls a module and forward.
        iterations: The number of iterations to record; the rest of the block runs unrecorded. None
            records to the end of the block.
        exact: On a GPU, allocate each recorded request directly from the device. This is slower,
            but a model that fits without fragmentation can be profiled even if torch's cache would
            run out of memory. False records through the cache.
        pinned: Record requests for pinned host memory, too; `Profile.plan_pinned` plans them. In
            native mode only.
        target: With device "meta", the device that the plan is for, whose kernels' requests are
            recorded: "cuda", or "cpu". On "cpu" the program in the block is the one that trains
            there, unchanged: tensors on the CPU that hold the training's numbers have no memory. It
            is for as many threads as torch has now. None is "cuda".

    Raises:
        TypeError: If `dynamic` holds anything else, or the model is no module.
        ValueError: If the target is unknown, or the device is not "meta" with one.
        StallocError: If the device is not one that stalloc knows, or pinned memory cannot be
            planned beside it. On entering the block: if a
            profile is being recorded already, or a plan is enabled, on whatever device.
    """
    patterns = dynamic_patterns(dynamic)
    where = _adapters.device_of(model, device)
    if target not in (None, "cuda", "cpu"):
        raise ValueError(f"target is 'cuda', 'cpu' or None, not {target!r}")
    if target is not None and where.type != "meta":
        raise ValueError(f"target={target!r} goes with device='meta', not {str(where)!r}")
    return Profile(model, where, patterns, layers, iterations, exact, pinned, target)


def active_profile() -> Profile | None:
    """The profile that is being recorded."""
    return _active


def has_trained_in_profile(model: torch.nn.Module) -> bool:
    """True if the model was trained in a profile of this process: its optimizer has states."""
    return any(trained() is model for trained in _trained)
