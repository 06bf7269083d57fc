"""Megatron-LM's own `train_step`, `evaluate` and `report_memory`, which newer wheels bring along.

They read their settings from global arguments. Those that a test does not give are None, which is
what they are when nobody asks for anything special.
"""

from __future__ import annotations

import sys
import typing
from argparse import Namespace
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

# Written for a newer Python, whose decorator says something about types.
vars(typing).setdefault("override", lambda function: function)


class _Arguments(Namespace):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Loop:
    """The part of Megatron's `train()` that calls these three.

    Args:
        models: The chunks of the model.
        optimizer: Megatron's.
        forward_step: For the schedules.
        batches: Makes the data of an iteration.
        graphs: True if Megatron's wrapper for graphs of whole iterations runs the schedules, which
            it captures none of so early. It gives them their data as dictionaries.
        sizes: Sequence, microbatch and microbatches, by Megatron's names.
    """

    def __init__(
        self,
        models: list[torch.nn.Module],
        optimizer: Any,
        forward_step: Callable[..., Any],
        batches: Callable[[int], Iterator[torch.Tensor]],
        graphs: bool,
        **sizes: int,
    ) -> None:
        from megatron.core import num_microbatches_calculator, rerun_state_machine
        from megatron.core.timers import Timers
        from megatron.training import global_vars

        total = sizes["micro_batch_size"] * sizes["num_microbatches"]
        arguments = _Arguments(
            **sizes,
            data_parallel_size=1,
            gtp_weight_remat_size=1,
            empty_unused_memory_level=2,
            eval_global_batch_size=total,
            eval_micro_batch_size=sizes["micro_batch_size"],
            eval_iters=1,
            consumed_valid_samples=0,
        )
        global_vars.set_args(arguments)
        global_vars._GLOBAL_TIMERS = Timers(0, "minmax")
        rerun_state_machine.initialize_rerun_state_machine()
        num_microbatches_calculator.init_num_microbatches_calculator(
            0, None, total, sizes["micro_batch_size"], 1
        )
        self._arguments = (forward_step, models, optimizer)
        self._graphs = graphs
        self._batches = batches

    def iteration(self, number: int) -> list[float]:
        """The loss of a `train_step`."""
        from megatron.core.full_cuda_graph import FullCudaGraphWrapper
        from megatron.core.pipeline_parallel import get_forward_backward_func
        from megatron.training import training

        forward_step, models, optimizer = self._arguments
        schedule, batches = get_forward_backward_func(), self._batches(number)
        if self._graphs:
            schedule = FullCudaGraphWrapper(schedule, cuda_graph_warmup_steps=sys.maxsize)
            batches = ({"tokens": batch} for batch in batches)
        losses, *_ = training.train_step(
            forward_step,
            batches,
            models,
            optimizer,
            SimpleNamespace(step=lambda increment: None),
            models[0].config,
            schedule,
            iteration=number,
        )
        return [losses["loss"].item()]

    def evaluation(self, number: int) -> list[float]:
        """The loss of an `evaluate`; then memory is reported."""
        from megatron.training import training

        forward_step, models, _ = self._arguments
        losses, *_ = training.evaluate(
            forward_step, self._batches(1000 + number), models, None, models[0].config
        )
        training.report_memory(f"(after {number} iterations)")
        return [losses["loss"].item()]
