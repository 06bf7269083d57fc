"""Which methods of a booster's objects are wrapped, and what each tells the driver.

optimizer.step                    OPTIMIZER; ends the iteration and begins the next
scheduler.forward_backward_step   evaluation when gradients are off
scheduler.forward_step            FORWARD of the chunk's next microbatch
scheduler.backward_step,
backward_b_step                 BACKWARD of what its output is tagged with
scheduler.schedule_w              BACKWARD once more, of the chunk's next microbatch: the
gradients of the weights, which zero-bubble schedules put off
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from stalloc._frameworks.patches import Argument, Function, Patches
from stalloc._frameworks.places import Places
from stalloc.driver import Driver, Stage

# Short names, by the attribute of the plugin, the stage manager or the schedule that has the size.
_PLUGIN = {"tp": "tp_size", "dp": "dp_size", "sp": "sp_size", "ep": "ep_size"}
_STAGES = {"pp": "num_stages", "vp": "num_model_chunks"}
_SCHEDULE = {
    "mbs": ("microbatch_size", "micro_batch_size"),
    "mb": ("num_microbatches", "num_microbatch"),
}


class Integration:
    """One installation."""

    driver: Driver

    def __init__(self, booster: Any, model: nn.Module, optimizer: Any) -> None:
        self._plugin = getattr(booster, "plugin", None)
        self._scheduler = getattr(self._plugin, "scheduler", None)
        self._model = model
        self._optimizer = optimizer
        self._patches = Patches()
        self._places = Places()
        self._weights = Places()  # whose weights' gradients have been computed

    def install(self, driver: Driver) -> None:
        """Wraps what there is, and begins the first iteration; nothing in mode off."""
        self.driver = driver
        if driver.stage is Stage.OFF:
            return
        if not self._patches.wrap_method(self._optimizer, "step", self._step):
            raise TypeError(
                f"{type(self._optimizer).__name__} has no step() of its class's: pass the "
                "optimizer that booster.boost() returned"
            )
        if self._scheduler is not None:
            for name, make in {
                "forward_backward_step": self._schedule,
                "forward_step": self._forward,
                "backward_step": self._backward,
                "backward_b_step": self._backward,
                "schedule_w": self._weight_gradients,
            }.items():
                self._patches.wrap_method(self._scheduler, name, make)
        driver.begin_iteration(self._model)

    def uninstall(self) -> None:
        """Undoes `install`."""
        self._patches.undo()
        self.driver.finish()

    def layout(self) -> dict[str, int]:
        """Parallel sizes and the pipeline's batch."""
        sizes: dict[str, int] = {}
        stages = getattr(self._scheduler, "stage_manager", None)
        for holder, names in ((self._plugin, _PLUGIN), (stages, _STAGES)):
            sizes |= {s: v for s, name in names.items() if (v := _size(holder, name))}
        for short, either in _SCHEDULE.items():
            if size := next((v for name in either if (v := _size(self._scheduler, name))), 0):
                sizes[short] = size
        return sizes

    def _step(self, original: Function) -> Function:
        def step(*args: Any, **kwargs: Any) -> Any:
            with self.driver.optimizer():
                result = original(*args, **kwargs)
            self.driver.end_iteration()
            self._places.restart()
            self._weights.restart()
            self.driver.begin_iteration(self._model)
            return result

        return step

    def _schedule(self, original: Function) -> Function:
        def forward_backward_step(*args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled():
                return original(*args, **kwargs)
            with self.driver.evaluation():
                return original(*args, **kwargs)

        return forward_backward_step

    def _forward(self, original: Function) -> Function:
        chunk = Argument(original, "model_chunk_id")

        def forward_step(*args: Any, **kwargs: Any) -> Any:
            if not self.driver.active or not torch.is_grad_enabled():
                return original(*args, **kwargs)
            place = self._places.forward(chunk.of(args, kwargs) or 0, None)
            with self.driver.forward(*place):
                output = original(*args, **kwargs)
            self._places.forwarded(place, output)
            return output

        return forward_step

    def _backward(self, original: Function) -> Function:
        output = Argument(original, "output_obj")

        def backward_step(*args: Any, **kwargs: Any) -> Any:
            if not self.driver.active:
                return original(*args, **kwargs)
            with self.driver.backward(*self._places.backward(output.of(args, kwargs))):
                return original(*args, **kwargs)

        return backward_step

    def _weight_gradients(self, original: Function) -> Function:
        chunk = Argument(original, "model_chunk_id")

        def schedule_w(*args: Any, **kwargs: Any) -> Any:
            if not self.driver.active:
                return original(*args, **kwargs)
            place = self._weights.forward(chunk.of(args, kwargs) or 0, None)
            with self.driver.backward(*place):
                return original(*args, **kwargs)

        return schedule_w


def _size(holder: Any, name: str) -> int:
    value = getattr(holder, name, None)
    return value if isinstance(value, int) else 0
