"""The stages of torch.distributed.pipelining: each reports its current microbatch.

Schedules call a stage's methods with the microbatch's number, in any order. A rank's stages, in
ascending order, are its chunks. The part of a backward that makes the weights' gradients, which
zero-bubble schedules put off, is another occurrence of the same backward.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from stalloc._frameworks.patches import Function, Patches
from stalloc.driver import Driver

Phase = Callable[[int, int], AbstractContextManager[None]]

_BACKWARDS = ("backward_one_chunk", "backward_weight_one_chunk")


def stages_of(schedule: Any) -> list[Any]:
    """The stages of this rank, in ascending order."""
    stages = getattr(schedule, "_stages", None) or [schedule._stage]
    return sorted(stages, key=lambda stage: int(stage.stage_index))


def chunks_of(schedule: Any) -> list[nn.Module]:
    """Their parts of the model."""
    return [stage.submod for stage in stages_of(schedule)]


class Stages:
    """Follows the stages of a schedule."""

    def __init__(self, driver: Driver, patches: Patches) -> None:
        self._driver = driver
        self._patches = patches
        self._before = 0  # microbatches of this iteration's earlier runs of the schedule
        self._microbatches = 0

    def begin(self, schedule: Any, continues: bool) -> None:
        """The schedule is about to run, for a new iteration or for the current one."""
        self._before = self._before + self._microbatches if continues else 0
        self._microbatches = int(schedule._n_microbatches)

    def follow(self, schedule: Any) -> None:
        """Wraps the methods of the schedule's stages."""
        chunks = {}
        for chunk, stage in enumerate(stages_of(schedule)):
            chunks[id(stage)] = chunk
            self._patches.wrap(stage, "forward_one_chunk", self._in(self._driver.forward, chunk))
            for name in _BACKWARDS:
                self._patches.wrap(stage, name, self._in(self._driver.backward, chunk))

        def wrap_loss(original: Function) -> Function:
            def loss(
                stage: Any, output: Any, targets: Any, mb_index: int, *args: Any, **kwargs: Any
            ) -> Any:
                # Part of the last stage's forward.
                phase = self._driver.forward(self._before + mb_index, chunks.get(id(stage), 0))
                with phase:
                    return original(stage, output, targets, mb_index, *args, **kwargs)

            return loss

        self._patches.wrap(schedule, "_maybe_compute_loss", wrap_loss)

    def _in(self, phase: Phase, chunk: int) -> Callable[[Function], Function]:
        """Makes a wrapper that runs a stage's method in the phase of the microbatch it is for.

        That is the first argument of all of them, under various names.
        """

        def wrap(original: Function) -> Function:
            name = next(iter(inspect.signature(original).parameters))

            def method(*args: Any, **kwargs: Any) -> Any:
                number = kwargs[name] if name in kwargs else args[0]
                with phase(self._before + number, chunk):
                    return original(*args, **kwargs)

            return method

        return wrap
