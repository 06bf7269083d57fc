"""The wrapped methods of a booster's objects, and the report of each to the driver.

optimizer.step                    OPTIMIZER; ends the iteration and begins the next
scheduler.forward_backward_step   evaluation if gradients are off
scheduler.forward_step            FORWARD of the chunk's next microbatch
scheduler.backward_step,
scheduler.backward_b_step         BACKWARD of the position that tags its output
scheduler.schedule_w              BACKWARD once more, of the chunk's next microbatch: the gradients
                                  of the weights, which zero-bubble schedules put off

A pipeline's first iteration begins with its first microbatch, when it knows its batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from stalloc._frameworks import installed
from stalloc._frameworks.patches import Argument, Function
from stalloc._frameworks.positions import Positions
from stalloc.driver import Driver

# Short names, by the attribute of the plugin, the stage manager or the schedule that has the size.
_PLUGIN = {"tp": "tp_size", "dp": "dp_size", "sp": "sp_size", "ep": "ep_size"}
_STAGES = {"pp": "num_stages", "vp": "num_model_chunks"}
_SCHEDULE = {
    "mbs": ("microbatch_size", "micro_batch_size"),
    "mb": ("num_microbatches", "num_microbatch"),
}


class Integration(installed.Integration):
    """One installation."""

    def __init__(self, booster: Any, model: nn.Module, optimizer: Any, driver: Driver) -> None:
        super().__init__(optimizer, driver)
        self._scheduler = _scheduler(booster)
        self._model = model
        self._optimizer = optimizer
        self._positions = Positions()
        self._weights = Positions()  # positions whose weight gradients are done

    def follow(self) -> None:
        if not self.patches.wrap(self._optimizer, "step", self._step):
            raise TypeError(
                f"{type(self._optimizer).__name__} has no step(): pass the optimizer that "
                "booster.boost() returned"
            )
        if self._scheduler is None:
            self.driver.begin_iteration(self._model)
            return
        backward = self._positions.followed_backward(self.driver, "output_obj")
        for name, make in {
            "forward_backward_step": self._schedule,
            "forward_step": self._forward,
            "backward_step": backward,
            "backward_b_step": backward,
            "schedule_w": self._weight_gradients,
        }.items():
            self.patches.wrap(self._scheduler, name, make)

    def _step(self, original: Function) -> Function:
        def step(*args: Any, **kwargs: Any) -> Any:
            with self.driver.optimizer():
                result = original(*args, **kwargs)
            self._positions.restart()
            self._weights.restart()
            self.next_iteration(self._model)
            return result

        return step

    def _schedule(self, original: Function) -> Function:
        def forward_backward_step(*args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled():
                return original(*args, **kwargs)
            with self.evaluation():
                return original(*args, **kwargs)

        return forward_backward_step

    def _forward(self, original: Function) -> Function:
        chunk = Argument(original, "model_chunk_id")

        def forward_step(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return original(*args, **kwargs)
            if not self.driver.in_iteration:
                self.driver.begin_iteration(self._model)
            if not self.driver.active:
                return original(*args, **kwargs)
            position = self._positions.forward(chunk.of(args, kwargs) or 0, None)
            with self.driver.forward(*position):
                output = original(*args, **kwargs)
            self._positions.forwarded(position, output)
            return output

        return forward_step

    def _weight_gradients(self, original: Function) -> Function:
        chunk = Argument(original, "model_chunk_id")

        def schedule_w(*args: Any, **kwargs: Any) -> Any:
            if not self.driver.active:
                return original(*args, **kwargs)
            position = self._weights.forward(chunk.of(args, kwargs) or 0, None)
            with self.driver.backward(*position):
                return original(*args, **kwargs)

        return schedule_w


def parallelism_of(booster: Any) -> dict[str, int]:
    """Parallel sizes and the pipeline's batch."""
    plugin, scheduler = getattr(booster, "plugin", None), _scheduler(booster)
    stages = getattr(scheduler, "stage_manager", None)
    sizes: dict[str, int] = {}
    for holder, names in ((plugin, _PLUGIN), (stages, _STAGES)):
        sizes |= {s: v for s, name in names.items() if (v := _size(holder, name))}
    for short, either in _SCHEDULE.items():
        if size := next((v for name in either if (v := _size(scheduler, name))), 0):
            sizes[short] = size
    return sizes


def _scheduler(booster: Any) -> Any:
    return getattr(getattr(booster, "plugin", None), "scheduler", None)


def _size(holder: Any, name: str) -> int:
    value = getattr(holder, name, None)
    return value if isinstance(value, int) else 0
