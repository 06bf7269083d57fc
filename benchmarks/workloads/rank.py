"""Runs training iterations of one rank on the meta device, in the schedule's true order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from configs import Config, Overlap
from models import Implementation
from optimizer import GradientBuffer, Optimizer
from schedule import Step, steps
from stage import Stage
from streams import HostActivations, Transfers
from torch import Tensor

import stalloc
from stalloc.hooks import phase

ROUTED = "RoutedExperts"


@dataclass
class _InFlight:
    """The tensors that a microbatch keeps from forward to backward of a chunk.

    Attributes:
        x: The chunk's input, unless it embeds tokens.
        output: Its output.
        mask: The attention mask that the published scripts load; recomputed layers keep it.
    """

    x: Tensor | None
    output: Tensor
    mask: Tensor | None = None


@dataclass
class Rank:
    """A rank with its model, gradients and optimizer.

    Attributes:
        config: The configuration.
        device: The device that it trains on.
        between: Called before each forward and backward.
        stage: Its model.
    """

    config: Config
    device: str = "meta"
    between: Callable[[], None] = lambda: None
    stage: Stage = field(init=False)

    def __post_init__(self) -> None:
        self.stage = Stage(self.config, self.device)
        self._gradients = GradientBuffer(self.stage)
        self._optimizer = Optimizer(self.config, self._gradients)
        overlap = self.config.overlap
        self._transfers = Transfers() if overlap is Overlap.TRANSFERS else None
        self._saved = HostActivations(self.stage) if overlap is Overlap.OFFLOAD else nullcontext()

    def iterate(self, iteration: int) -> None:
        """One iteration: every microbatch forward and backward, then the optimizer's step.

        Args:
            iteration: Its number in the run, which the routing depends on.
        """
        self.stage.shared.routing.iteration = iteration
        self._gradients.zero()
        self._run_schedule()
        with phase("optimizer"):
            self._gradients.reduce_norms()
            self._optimizer.step()

    def _run_schedule(self) -> None:
        parallelism, stage = self.config.parallelism, self.config.stage
        order = list(steps(parallelism, stage))
        in_flight: dict[tuple[int, int], _InFlight] = {}
        received = self._receive(order[0])
        for step, following in zip(order, [*order[1:], None], strict=True):
            self.between()
            if step.backward:
                self._backward(step, in_flight.pop((step.chunk, step.microbatch)), received)
            else:
                in_flight[step.chunk, step.microbatch] = self._forward(step, received)
            # As Megatron-LM does, what the next step needs is received when this one sends.
            received = self._receive(following) if following else None

    def _receive(self, step: Step) -> Tensor | None:
        parallelism = self.config.parallelism
        stage, chunk = self.config.stage, step.chunk
        first = stage == 0 and chunk == 0
        last = stage == parallelism.pipeline - 1 and chunk == parallelism.chunks - 1
        if last if step.backward else first:
            return None
        model = self.config.model
        received = torch.empty(
            (model.sequence // parallelism.tensor, parallelism.microbatch, model.hidden),
            dtype=torch.bfloat16,
            device=self.device,
            requires_grad=not step.backward,
        )
        if self._transfers is not None:
            self._transfers.receive(received)
        return received

    def _forward(self, step: Step, x: Tensor | None) -> _InFlight:
        self.stage.shared.routing.microbatch = step.microbatch
        parallelism, model = self.config.parallelism, self.config.model
        with phase("forward", step.microbatch, step.chunk):
            shape = (parallelism.microbatch, model.sequence)
            tokens = labels = None
            if self.stage.chunks[step.chunk].embedding is not None:
                tokens = torch.empty(shape, dtype=torch.int64, device=self.device)
            if self.stage.chunks[step.chunk].head is not None:
                labels = torch.empty(shape, dtype=torch.int64, device=self.device)
            mask = None
            if model.implementation is not Implementation.CORE:
                shape = (parallelism.microbatch, 1, model.sequence, model.sequence)
                mask = torch.empty(shape, dtype=torch.bool, device=self.device)
            with self._saved:
                output = self.stage(step.chunk, tokens if x is None else x, labels)
            if labels is not None:
                output = output / parallelism.microbatches
            else:
                if self._transfers is not None:
                    self._transfers.send(output)
                # deallocate_output_tensor: once sent, only its graph is needed.
                output.data = torch.empty((1,), dtype=output.dtype, device=self.device)
        return _InFlight(x, output, mask if self.config.recompute else None)

    def _backward(self, step: Step, flight: _InFlight, grad: Tensor | None) -> None:
        self.stage.shared.routing.microbatch = step.microbatch
        with phase("backward", step.microbatch, step.chunk):
            if flight.x is not None:
                flight.x.retain_grad()
            if grad is None:
                grad = torch.ones_like(flight.output)  # as Megatron-LM's custom_backward
            # The engine itself: backward() would insist that the output still has its shape.
            torch.autograd.Variable._execution_engine.run_backward(
                (flight.output,), (grad,), False, False, (), True, True
            )
            # The input's gradient goes to the previous stage and is freed with the microbatch.
            if flight.x is not None and self._transfers is not None:
                self._transfers.send(flight.x.grad)


def record(config: Config, iterations: int = 3) -> stalloc.Trace:
    """A trace of start-up with a warm-up iteration, then of `iterations` more.

    Start-up (weights, gradients, optimizer states) belongs to the first recorded iteration, which
    comparing iterations leaves out.
    """
    return record_run(config, range(iterations + 1))


def record_run(config: Config, iterations: Iterable[int]) -> stalloc.Trace:
    """A trace of some of a run's iterations, by their numbers; the first one is the warm-up."""
    with stalloc.profile(device="meta", dynamic=(ROUTED,)) as prof:
        rank = Rank(config)
        for iteration in iterations:
            rank.iterate(iteration)
            prof.step()
    return prof.trace
