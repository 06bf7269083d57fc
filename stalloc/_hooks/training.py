"""Finds iteration, microbatch, phase and layer of a training loop without its help.

`TrainingHooks` watches a loop and reports to a `PhaseSink`. The hooks make no tensor, keep none
alive, and change no result. A call of the model, a backward pass and a step cost about 10 us each.

The rules, which make the same loop yield the same phases every time:

- **Root**: the given model, or else the first module that is called for training (in training
  mode, with gradients, with parameters that require some). Only its calls begin microbatches. Calls
  of other modules (a discriminator, a loss with parameters) belong to the current phase. If the
  root that
  was found is deleted, or an iteration was trained without it (as after a warm-up of a model that
  is thrown away), the next module that is called becomes the root. So does a twin of the root: see
  `stalloc._hooks.others`.
- **Forward** of the next microbatch begins when the root is called for training and lasts until
  the next phase: the loss is part of it. A call that raises gives its number back. Microbatches
  count from 0 in each iteration.
- **Evaluation**: a call of the root with gradients off, in inference mode, or after
  `model.eval()`, gradients or not, is unplanned. To *train* in eval mode, open phases explicitly.
  A call with gradients off inside a custom autograd function (a checkpoint over the whole model)
  is training.
- **Evaluation mode**: once the root has trained, `model.eval()` begins an evaluation, or its first
  forward if `eval()` was not seen. Batches, losses and metrics belong to it, until `model.train()`.
  A training forward ends it, too, and so do a backward pass, a step and an explicit phase. These
  three also tell that the loop trains in this mode (a generator through a discriminator), in which
  only the root's forwards are evaluations from then on.
- **Evaluation of another model**: a call of a module with parameters, not for training, between an
  optimizer's step and the root's next training forward, begins an evaluation, too. It lasts until
  something trains. See `stalloc._hooks.others` for calls that come in each iteration, and for rare
  ones for training.
- **Extents**, the sizes of the dimensions of the root's inputs, are reported for each training
  forward.
- **Recomputation** inside a backward pass begins no phase.
- **Backward** begins when the autograd engine is called, for the newest forward without a backward;
  then OTHER begins. If all forwards have had theirs, it counts for the last one again; before the
  first forward, as microbatch -1. A gradient taken inside the root's forward belongs to it.
- **Optimizer**: while a `torch.optim.Optimizer` steps; then OTHER. Code in a closure gets phases as
  anywhere, and OPTIMIZER resumes after each backward. A step inside a backward pass (fused into it)
  begins no phase.
- **The iteration ends** when `end_iteration` is called. Before the first such call, it ends at the
  first training forward after the closing optimizer's step, in a closure, too.
  `stalloc._hooks.iterations` finds the closing optimizer. A step that a gradient scaler skips ends
  no iteration: a loop whose steps may be skipped calls `stalloc.step()`. `early_ends` is the number
  of steps before the first call that end no iteration.
- **Without optimizers** (weights updated by hand), with `guesses_ends`, it ends at the first
  training forward after a backward pass. The first step of an optimizer ends the guessing: the
  iterations guessed before it are parts of one iteration, such as microbatches that accumulate
  gradients.
- **Without modules** there is no forward. The iteration ends where the closing optimizer's step
  returns, and by guess where the engine returns.
- **Explicit** phases replace all of this while open. A phase that another phase or the end of an
  iteration interrupted continues as a new occurrence: an occurrence is one uninterrupted run of
  requests. Only after unplanned stretches does the same occurrence continue.
- **Threads**: the thread that attached is the one that trains. Other threads are not
  seen, except for recomputed layers and optimizer steps inside a backward pass.

After an exception, the next event repairs the state.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from stalloc._hooks import frames, modes, optimizers, registry
from stalloc._hooks.engine import add_listener, remove_listener
from stalloc._hooks.extents import ExtentReader
from stalloc._hooks.modules import LayerHooks, Pattern, before_first_forwards, root_hook
from stalloc._hooks.others import OtherModels
from stalloc._hooks.phases import PhaseTracker, Scope
from stalloc._hooks.sink import PhaseSink

Accepts = Callable[[nn.Module, int], bool]
OnForward = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]

_lock = threading.Lock()
_attached: tuple[TrainingHooks, ...] = ()


def attached() -> tuple[TrainingHooks, ...]:
    """All hooks that are attached, on any thread."""
    return _attached


class TrainingHooks:
    """Reports the position of a training loop to `sink`: the attaching thread's, as a rule.

    Args:
        sink: Receives the reports.
        model: The root; None: the first module that is called. With DistributedDataParallel or
            torch.compile, the wrapper or the wrapped module.
        layers: Report every submodule's calls, too: for profiling. Costs about 8 us a call.
        dynamic: Patterns for modules whose requests change in size from iteration to iteration:
            names of classes or of modules, or classes. Without `layers`, only the modules that
            match are reported.
        accepts: Called as `accepts(module, waited)` for a module that is called first, while other
            modules have trained `waited` iterations. True if the module may be the root. None: any
            module may be.
        on_forward: Called as `on_forward(module, args, kwargs)` before each training forward of
            the root, when an iteration that is over has been ended and the forward phase not yet
            begun. An exception reaches the caller of the model before anything begins.
        early_ends: How often an optimizer's step seems to end an iteration and does not, before
            `end_iteration` is called for the first time.
        guesses_ends: End iterations without optimizers, too.
        on_first_step: Called when the first optimizer's step begins and `guesses_ends` is true. The
            iterations that the sink has heard of up to now are parts of one.
        on_rootless: Called before a backward pass while no module was called for training.
        waits_for_slower: The loop has a slower optimizer, whose steps end the iterations; see
            `stalloc._hooks.iterations`.
        on_slower: Called after the step that tells that there is one, or that the first cycle goes
            on. The iterations that the sink has heard of up to now are parts of one.
    """

    def __init__(
        self,
        sink: PhaseSink,
        model: nn.Module | None = None,
        *,
        layers: bool = False,
        dynamic: Iterable[Pattern] = (),
        accepts: Accepts | None = None,
        on_forward: OnForward | None = None,
        early_ends: int = 0,
        guesses_ends: bool = False,
        on_first_step: Callable[[], None] | None = None,
        on_rootless: Callable[[], object] | None = None,
        waits_for_slower: bool = False,
        on_slower: Callable[[], None] | None = None,
    ) -> None:
        self._sink = sink
        self._early_ends = early_ends
        self._guesses_ends = guesses_ends
        self._on_first_step = on_first_step
        self._on_rootless = on_rootless
        self._waits_for_slower = waits_for_slower
        self._on_slower = on_slower
        self._root = weakref.ref(model) if model is not None else None
        self._finds_root = model is None
        self._all_layers = layers
        self._dynamic = tuple(dynamic)
        self._accepts = accepts
        self._on_forward = on_forward
        self._handles: list[registry.Handle] = []
        self._root_handles: list[registry.Handle] = []
        self._extents = ExtentReader()
        self._discovery: registry.Handle | None = None
        self._is_attached = False
        self._any_thread = False
        self._reset()

    def _reset(self) -> None:
        self._thread = threading.get_ident()
        self._has_called = self._has_trained = False  # a model, on this thread
        self._tracker = PhaseTracker(
            self._sink, self._early_ends, self._guesses_ends, self._waits_for_slower
        )
        self._layers = LayerHooks(self._sink, self._thread, self._all_layers, self._dynamic)
        self._others = OtherModels(
            self._drives,
            _is_training_forward,
            lambda: self._tracker.iteration,
            self._tracker.begin_other_forward,
            self._succeed,
        )
        self._layers_at_backward = 0
        self._roots = 0  # that were found
        self._root_trains = False  # was called for training in this iteration
        self._others_train = False  # a backward pass came without
        self._waited = 0  # iterations in a row that others trained
        self._has_seen_model = False

    @property
    def attached(self) -> bool:
        """True while the sink gets reports."""
        return self._is_attached

    @property
    def in_first_cycle(self) -> bool:
        """True if the optimizer that stepped last had not stepped before."""
        return self._tracker.in_first_cycle

    @property
    def guesses_ends(self) -> bool:
        """True until an optimizer's step or a call tells an end, if ends were to be guessed."""
        return self._tracker.guesses_ends

    def awaits_first_step(self) -> bool:
        """True if an optimizer is still to make its first step; see `stalloc._hooks.optimizers`."""
        return optimizers.awaits_first_step(self._tracker.stepped)

    @property
    def root(self) -> nn.Module | None:
        """The module whose calls are forwards; None before it is found and after it is gone."""
        return self._root() if self._root is not None else None

    def follow(self, model: nn.Module | None, dynamic: Iterable[Pattern] | None = None) -> None:
        """Makes `model` the root instead of the one given or found, between two iterations.

        If `model` is None, the root stays. `dynamic` has the new patterns of dynamic modules; if it
        is None, the patterns stay.
        """
        if model is None and dynamic is None:
            return
        if dynamic is not None:
            self._dynamic = self._layers.patterns = tuple(dynamic)
        if model is not None:
            self._finds_root = False
            self._root = weakref.ref(model)
        if self._is_attached and (root := self.root) is not None:
            self._end_discovery()
            self._unwatch()
            self._watch(root)

    def follow_any_thread(self) -> None:
        """Follows the first thread that trains instead of the attaching one, before `attach`.

        A thread that calls a module for training is taken for it, until another one begins a
        backward pass before this one has.
        """
        self._any_thread = True

    def attach(self) -> TrainingHooks:
        """Begins to watch, in phase OTHER of a new iteration; nothing if attached already."""
        global _attached
        with _lock:
            if self._is_attached:
                return self
            self._reset()
            self._tracker.start()
            self._is_attached = True
            _attached = (*_attached, self)
        try:
            self._handles.append(registry.before_every_step(self._step_begins))
            self._handles.append(registry.after_every_step(self._step_ends))
            add_listener(self)
            modes.add_listener(self)
            if self.root is not None:
                self._watch(self.root)
            elif self._finds_root:
                self._discover()
            self._others.begin_gap()
        except BaseException:
            self.detach()
            raise
        return self

    def detach(self, *, silently: bool = False) -> None:
        """Removes every hook and patch, and leaves the sink in phase OTHER; may be repeated.

        `silently` sends no report to the sink: it follows another run already.
        """
        global _attached
        with _lock:
            if not self._is_attached:
                return
            self._is_attached = False
            _attached = tuple(hooks for hooks in _attached if hooks is not self)
        remove_listener(self)
        modes.remove_listener(self)
        self._end_discovery()
        self._unwatch()
        self._others.close()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._finds_root:
            self._root = None
        if not silently:
            self._layers.close(0)
            self._tracker.stop()

    def __enter__(self) -> TrainingHooks:
        return self.attach()

    def __exit__(self, *_: object) -> None:
        self.detach()

    def join_forward(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Takes part in a call of the root that has begun, whose beginning the hooks have missed.

        To be called from a hook before the root's forward, right after `attach`. The call may be
        that of a closure, inside of an optimizer's step.
        """
        self._tracker.join_steps(frames.stepping_optimizers())
        self._root_called(module, args, kwargs)

    def end_iteration(self) -> None:
        """Ends the iteration; from now on optimizer steps no longer do. Nothing if not attached."""
        if not self._is_attached:
            return
        self._close_layers_left_open(module_calls=0)
        self._tracker.end_iteration()
        self._iteration_over()
        self._others.begin_gap()

    # The root

    def _watch(self, root: nn.Module) -> None:
        self._others.follow(root)
        # Prepended in this order, the phase begins before the root's own layer does.
        self._layers.watch(root, self._root_handles)
        self._root_handles.append(
            registry.before_forward(root, root_hook(self._root_called), with_kwargs=True)
        )
        self._root_handles.append(registry.after_forward(root, root_hook(self._root_returned)))
        if isinstance(root, nn.ModuleList) and len(root) > 0:
            # Chunks of a pipeline, which are called instead. The first begins a microbatch here.
            chunk_hook = root_hook(self._chunk_called)
            self._root_handles.append(
                registry.before_forward(root[0], chunk_hook, with_kwargs=True)
            )

    def _unwatch(self) -> None:
        for handle in self._root_handles:
            handle.remove()
        self._root_handles = []

    def _root_called(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        # Replicas of DataParallel share their original's hooks.
        if module is not self.root or not self._drives_call(module):
            return
        self._close_layers_left_open(module_calls=1)
        training = _is_training_forward(module)
        self._root_trains = self._root_trains or training
        if training:
            self._others.end_gap()
        self._others.enter(module)
        if self._tracker.expect_forward(training):
            if self._on_forward is not None:
                self._on_forward(module, args, kwargs)
                if not self._is_attached:
                    return
            if self._tracker.takes_extents():
                self._read_extents(module, args, kwargs)
        self._tracker.begin_forward(training, evaluates=not _is_set_to_train(module))

    def mode_changed(self, module: nn.Module, training: bool) -> None:
        """Called by `stalloc._hooks.modes`; not for users."""
        if self._root is None or module is not self.root or not self._drives():
            return
        if training:
            self._tracker.end_evaluation()
        else:
            self._tracker.begin_evaluation()

    def _chunk_called(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if self._drives() and self._tracker.takes_told_extents():
            self._read_extents(module, args, kwargs)

    def _read_extents(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        inputs = {**self._tracker.further_inputs(), **kwargs}
        self._sink.set_extents(*self._extents.read(module, args, inputs))

    def _root_returned(self, module: nn.Module, _: tuple[Any, ...], result: object) -> None:
        if not self._drives() or module is not self.root:
            return
        self._others.leave(module)
        # With an exception, an always-called hook gets no result while the exception is handled.
        raised = result is None and sys.exc_info()[0] is not None
        self._tracker.end_forward(raised)

    def _discover(self) -> None:
        self._discovery = before_first_forwards(self._module_called)

    def _end_discovery(self) -> None:
        if self._discovery is not None:
            self._discovery.remove()
            self._discovery = None

    def _root_is_gone(self, root: weakref.ref[nn.Module]) -> None:
        """Called where the last reference to a root goes, on any thread.

        If roots come and go, as where each client of federated learning trains a copy, the next
        one's first call is its forward already. The first root may have been a warm-up, which is a
        part of start-up, as is what the next one makes in its first iteration.
        """
        if root is self._root and self._roots > 1 and self._drives():
            self._discover_again_if_gone()

    def _discover_again_if_gone(self) -> None:
        if self._root is not None and self.root is None and self._finds_root:
            self._root = None
            self._discover()

    def _iteration_over(self) -> None:
        if self._root_trains:
            self._waited = 0
        elif self._others_train:
            self._waited += 1
            if self._finds_root:
                self._end_discovery()
                self._discover()
        self._root_trains = self._others_train = False

    def _module_called(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not self._drives_call(module) or not _trains(module):
            return
        self._has_seen_model = True
        if module is self.root:  # which has been idle for a while
            self._end_discovery()
            return
        if self._accepts is not None and not self._accepts(module, self._waited):
            return
        self._end_discovery()
        self._succeed(module, args)

    def _succeed(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Makes a module the root whose call has begun."""
        self._unwatch()
        self._root = weakref.ref(module, self._root_is_gone)
        self._roots += 1
        self._watch(module)
        # The hooks just made miss this call's beginning.
        self._root_called(module, args, frames.kwargs_of_module_call())
        if self._layers.root_layer is not None:
            self._layers.enter(self._layers.root_layer)

    # The engine

    def backward_begins(self) -> bool:
        """Called by the engine; not for users."""
        if not self._drives():
            if not self._has_trained and torch._C._current_graph_task_id() == -1:
                self._may_follow_this_thread()
            return False
        self._has_trained = True
        if self._on_rootless is not None and self._is_rootless():
            self._on_rootless()
            if not self._is_attached:
                return False
        self._others.end_gap()
        if not self._root_trains:
            self._others.trains_without_root()
        self._layers_at_backward = self._layers.depth()
        self._others_train = self._others_train or not self._root_trains
        return self._tracker.begin_backward()

    def backward_ends(self) -> None:
        """Called by the engine; not for users."""
        if self._is_attached:
            self._layers.close(self._layers_at_backward)
            self._tracker.end_backward(self._is_rootless())
            if self._tracker.is_over:  # by a step inside of the backward pass
                self._others.begin_gap()
            self._discover_again_if_gone()

    # Optimizers

    def _step_begins(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if self._is_attached and self._tracker.guesses_ends:
            self._tracker.guess_no_longer()
            if self._on_first_step is not None:
                self._on_first_step()
        if self._drives():
            self._others.end_gap()
            self._tracker.begin_step(optimizer)

    def _step_ends(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        over = False
        if self._drives():
            over = self._tracker.end_step(optimizer, self._is_rootless())
            if not self._tracker.in_step:
                self._others.begin_gap()
        elif torch._C._current_graph_task_id() != -1:
            over = self._tracker.count_step(optimizer)
        if over and self._tracker.found_slower:
            self._root_trains = True  # in a part of the iteration
            self._others.follow_no_twins()
            if self._on_slower is not None:
                self._on_slower()
        if over:
            self._iteration_over()

    # Scopes

    def open(self, scope: Scope) -> bool:
        """Opens an explicit phase; False on a thread other than the one that trains."""
        if threading.get_ident() != self._thread:
            return False
        if scope.phase is not None:
            self._others.end_gap()
        self._tracker.open(scope)
        return True

    def close(self, scope: Scope) -> None:
        """Closes a phase of `open`."""
        if self._is_attached:
            self._tracker.close(scope)

    def tell_inputs(self, inputs: Mapping[str, object]) -> None:
        """Reports the extents of the open explicit forward phase."""
        if self._drives() and self._tracker.takes_told_extents():
            self._sink.set_extents(*self._extents.read_named(inputs))

    # Spans

    def enter_span(self, name: str) -> None:
        """Begins a dynamic span."""
        if self._is_attached:
            self._layers.enter(self._layers.span(name))

    def leave_span(self, name: str) -> None:
        """Ends a dynamic span."""
        if self._is_attached:
            self._layers.leave(self._layers.span(name))

    # Parts

    def _drives(self) -> bool:
        """True on the thread that trains, outside any backward pass."""
        return (
            threading.get_ident() == self._thread
            and self._is_attached
            and torch._C._current_graph_task_id() == -1
        )

    def _drives_call(self, module: nn.Module) -> bool:
        """The same where a module is called, which may tell the thread that trains."""
        if self._any_thread and not self._has_called and _trains(module):
            self._has_called = True
            self._may_follow_this_thread()
        return self._drives()

    def _may_follow_this_thread(self) -> None:
        if self._any_thread and self._is_attached:
            self._thread = self._layers.thread = threading.get_ident()

    def _is_rootless(self) -> bool:
        """True as long as no module that could be the root was called for training."""
        return self._finds_root and not self._has_seen_model

    def _close_layers_left_open(self, module_calls: int) -> None:
        if self._layers.depth() and frames.module_calls() <= module_calls:
            self._layers.close(0)


def _is_training_forward(module: nn.Module) -> bool:
    return _is_set_to_train(module) and (torch.is_grad_enabled() or frames.in_autograd_function())


def _trains(module: nn.Module) -> bool:
    in_backward = torch._C._current_graph_task_id() != -1  # on a thread of autograd's
    return (
        not in_backward
        and _is_training_forward(module)
        and any(parameter.requires_grad for parameter in module.parameters())
    )


def _is_set_to_train(module: nn.Module) -> bool:
    training: bool = getattr(module, "training", False)  # a frozen script module has none
    return training
