"""The patches of Megatron, and the report of each to the driver.

train_step            the iteration, from its first schedule to its return
forward_backward_*    begins an iteration; evaluation when forward_only
forward_step          FORWARD of a microbatch and chunk
backward_step*        BACKWARD of the position that tags its output tensor
*Optimizer.step       OPTIMIZER
clip_grad_by_*        OTHER inside: its requests depend on the norm
evaluate, save_*      unplanned
token dispatchers     a dynamic span from dispatch to combine
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from stalloc import hooks
from stalloc._frameworks import installed, megatron_config
from stalloc._frameworks.patches import Argument, Function
from stalloc._frameworks.positions import Positions
from stalloc.driver import Driver
from stalloc.errors import StallocError
from stalloc.hooks import PhaseKind
from stalloc.options import Dynamic, Options

TARGET = "megatron"
"""The target of the installation: the package, which a process has once."""

_SCHEDULES = (
    "forward_backward_no_pipelining",
    "forward_backward_pipelining_without_interleaving",
    "forward_backward_pipelining_with_interleaving",
)
_BACKWARDS = ("backward_step", "backward_step_multimodule")
_UNPLANNED = ("evaluate", "evaluate_and_print_results", "save_checkpoint_and_time")
# Both have been the names of the first and last method that the routing decides the sizes in.
_DISPATCH = ("token_dispatch", "token_permutation")
_COMBINE = ("token_combine", "token_unpermutation")
_SPAN = "megatron.moe"


class Integration(installed.Integration):
    """One installation."""

    def __init__(self, options: Options) -> None:
        driver = Driver(
            replace(options, dynamic=self._dynamic_modules),
            parallelism=self._parallelism,
            framework=f"megatron-core {megatron_config.version()}",
        )
        super().__init__(TARGET, driver)
        self._dynamic = options.dynamic
        self._handle: RemovableHandle | None = None
        self._positions = Positions()
        self._chunks: list[nn.Module] = []
        self._batch: Mapping[str, Any] = {}  # arguments of the schedule
        self._in_train_step = False
        self._stepped = False
        self._optimizers = 0
        self._padded = False

    def follow(self) -> None:
        schedules = _import("megatron.core.pipeline_parallel.schedules")
        if schedules is None:
            raise StallocError(
                "megatron.core.pipeline_parallel.schedules can't be imported: install "
                "megatron-core, or run this where Megatron-LM is on PYTHONPATH"
            )
        for name in _SCHEDULES:
            self.patches.wrap(schedules, name, self._schedule)
        found = self.patches.wrap(schedules, "forward_step", self._forward_step)
        backward = self._positions.followed_backward(self.driver, "output_tensor")
        for name in _BACKWARDS:
            found = self.patches.wrap(schedules, name, backward) or found
        if not found:
            self.driver.stand_aside(
                "this Megatron has neither forward_step nor backward_step in its module schedules"
            )
        if (training := _import("megatron.training.training")) is not None:
            self.patches.wrap(training, "train_step", self._train_step)
            for name in _UNPLANNED:
                self.patches.wrap(training, name, self.unplanned)
        if (optimizers := _import("megatron.core.optimizer")) is not None:
            base = optimizers.MegatronOptimizer
            self.patches.wrap_in_subclasses(base, "step", self._optimizer_step)
            if (module := _import("megatron.core.optimizer.optimizer")) is not None:
                self.patches.wrap(module, "clip_grad_by_total_norm_fp32", self._clip)
        dispatchers = _import("megatron.core.transformer.moe.token_dispatcher")
        if dispatchers is not None:
            base = dispatchers.MoETokenDispatcher
            for name in _DISPATCH:
                self.patches.wrap_in_subclasses(base, name, self._dispatch)
            for name in _COMBINE:
                self.patches.wrap_in_subclasses(base, name, self._combine)
        self._handle = register_optimizer_step_post_hook(self._optimizer_stepped)

    def uninstall(self) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._chunks = []
        super().uninstall()

    # Iterations

    def _train_step(self, original: Function) -> Function:
        model = Argument(original, "model")
        schedule = Argument(original, "forward_backward_func")

        def train_step(*args: Any, **kwargs: Any) -> Any:
            self.driver.end_iteration()  # of a loop that was left for this one
            self._in_train_step = True
            self._chunks = _as_list(model.of(args, kwargs))
            try:
                if type(schedule.of(args, kwargs)).__name__ == "FullCudaGraphWrapper":
                    self.driver.stand_aside(megatron_config.FULL_GRAPHS)
                return original(*args, **kwargs)
            finally:
                self._in_train_step = False
                self.driver.end_iteration()

        return train_step

    def _schedule(self, original: Function) -> Function:
        def forward_backward(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("forward_only"):
                with self.evaluation():
                    return original(*args, **kwargs)
            if not self.evaluations:
                self._chunks = _as_list(kwargs.get("model"))
                self._batch = kwargs
                self._begin()
                self._positions.restart()
            return original(*args, **kwargs)

        return forward_backward

    def _begin(self) -> None:
        """Begins an iteration unless one has begun already."""
        over = self._stepped and not self._in_train_step
        if self.driver.in_iteration and not over:
            return
        self._stepped = False
        config = megatron_config.config_of(self._chunks)
        if (reason := megatron_config.unplannable(config)) is not None:
            self.driver.stand_aside(reason)
        elif not megatron_config.ramping_up():
            self._padded = bool(getattr(config, "moe_pad_expert_input_to_capacity", False))
            self.driver.begin_iteration(self._chunks or None)

    def _parallelism(self) -> Mapping[str, int]:
        return megatron_config.parallelism(len(self._chunks), self._batch)

    def _dynamic_modules(self) -> Dynamic:
        if self._dynamic is None and self._padded:
            return ()
        return self._dynamic() if callable(self._dynamic) else self._dynamic

    # Phases

    def _forward_step(self, original: Function) -> Function:
        model = Argument(original, "model")
        microbatch = Argument(original, "current_microbatch")
        chunk = Argument(original, "vp_stage")
        received = Argument(original, "input_tensor")

        def forward_step(*args: Any, **kwargs: Any) -> Any:
            if self.evaluations:
                return original(*args, **kwargs)
            if not self.driver.in_iteration:
                self._begin()  # a schedule that was looked up before install()
            if not self.driver.active:
                return original(*args, **kwargs)
            position = self._positions.forward(
                self._chunk_of(model.of(args, kwargs), chunk.of(args, kwargs)),
                microbatch.of(args, kwargs),
            )
            # Stages after the first may get no arguments, only the output of the stage before.
            inputs = {"input_tensor": received.of(args, kwargs)}
            with self.driver.forward(*position, inputs):
                output = original(*args, **kwargs)
            self._positions.forwarded(position, output)
            return output

        return forward_step

    def _chunk_of(self, model: object, vp_stage: int | None) -> int:
        for i, chunk in enumerate(self._chunks):
            if chunk is model:
                return i
        return vp_stage or 0

    def _optimizer_step(self, original: Function) -> Function:
        def step(*args: Any, **kwargs: Any) -> Any:
            # One optimizer may be made of several, each of which steps inside.
            outermost = self._optimizers == 0
            self._optimizers += 1
            try:
                with self.driver.optimizer() if outermost else contextlib.nullcontext():
                    return original(*args, **kwargs)
            finally:
                self._optimizers -= 1
                self._stepped = True  # or skipped, which ends the iteration all the same

        return step

    def _clip(self, original: Function) -> Function:
        def clip(*args: Any, **kwargs: Any) -> Any:
            with self.driver.phase(PhaseKind.OTHER):
                return original(*args, **kwargs)

        return clip

    def _optimizer_stepped(self, *_: object) -> None:
        self._stepped = True

    # Mixtures of experts

    def _dispatch(self, original: Function) -> Function:
        def dispatch(*args: Any, **kwargs: Any) -> Any:
            if self.driver.active and not self._padded:
                hooks.enter_dynamic(_SPAN)
            return original(*args, **kwargs)

        return dispatch

    def _combine(self, original: Function) -> Function:
        def combine(*args: Any, **kwargs: Any) -> Any:
            output = original(*args, **kwargs)
            if self.driver.active and not self._padded:
                hooks.leave_dynamic(_SPAN)
            return output

        return combine


def _import(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _as_list(model: Any) -> list[nn.Module]:
    if model is None:
        return []
    return list(model) if isinstance(model, (list, tuple)) else [model]
