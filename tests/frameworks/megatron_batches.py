"""The batches of a training on Megatron, of one length or of many, and the step that feeds them.

The step does as Megatron's `pretrain_gpt.py`: the first stage of a pipeline gets the tokens, the
last one the labels, and those in between nothing but the output of the stage before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

VOCABULARY = 128


@dataclass(frozen=True)
class Batches:
    """The microbatches of each iteration.

    Attributes:
        lengths: "same", or which lengths are drawn: "iterations" or "microbatches".
        longest: Tokens of the longest microbatch.
        rows: Sequences of each microbatch.
        first: Iteration in which, as in every 16th after it, all microbatches are the longest.
    """

    lengths: str = "same"
    longest: int = 32
    rows: int = 2
    first: int = 3

    @property
    def differ(self) -> bool:
        """True if the microbatches of one iteration differ in length."""
        return self.lengths == "microbatches"

    def announced(self, number: int) -> int:
        """The length that the schedule of an iteration is told."""
        return self.longest if self.differ else self.length(number, 0)

    def length(self, number: int, microbatch: int) -> int:
        """Tokens of a microbatch of an iteration."""
        if self.lengths == "same" or number % 16 == self.first:
            return self.longest
        drawn = microbatch if self.differ else 0
        return random.Random(1000 * number + drawn).randint(self.longest // 6, self.longest)

    def __call__(self, number: int) -> Iterator[torch.Tensor]:
        """The microbatches of an iteration."""
        generator = torch.Generator().manual_seed(number)
        microbatch = 0
        while True:
            length = self.length(number, microbatch)
            # Squared: some tokens are much more common than others, and experts with them.
            yield (VOCABULARY * torch.rand(self.rows, length + 1, generator=generator) ** 2).long()
            microbatch += 1


def forward(
    batches: Iterator[torch.Tensor], model: torch.nn.Module
) -> tuple[torch.Tensor, Callable[[torch.Tensor], Any]]:
    """The forward of the next microbatch."""
    stage: Any = model.module
    inputs = positions = labels = None
    if stage.pre_process or stage.post_process:
        batch: Any = next(batches)
        tokens = batch["tokens"] if isinstance(batch, dict) else batch
        if stage.pre_process:
            inputs = tokens[:, :-1].contiguous()
            positions = torch.arange(inputs.shape[1]).expand(len(inputs), -1)
        if stage.post_process:
            labels = tokens[:, 1:].contiguous()
    return model(inputs, positions, None, labels=labels), _loss


def _loss(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = output.float().mean()
    return loss, {"loss": loss.detach().clone()}
