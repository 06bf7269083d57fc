"""A run of benchmarks/gpu without a GPU: what no kernel computes here is drawn.

Arguments: the fields of Run as a JSON object; with "tries" its first step tries kernels in each
block, as a compiler does whose cache is empty. Prints the figures of the run.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "gpu"))

import models
from training import MEASURED, Run

SKEW = 0.12  # of the experts' popularity, and four times that of a step's
TRIALS = 3
FLUSHED = 64 << 20  # elements of the buffer by which a trial empties the GPU's cache


class DrawnExperts(models.RoutedExperts):
    """Sends as many tokens to each expert as are drawn."""

    step = calls = 0  # of all layers
    layers: ClassVar[dict[int, int]] = {}

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layers.setdefault(id(self), len(self.layers))
        drawn = np.random.default_rng([DrawnExperts.step, DrawnExperts.calls])
        DrawnExperts.calls += 1
        count = len(self.experts)
        popularity = np.random.default_rng(layer).normal(0, SKEW, count)
        shares = np.exp(popularity + drawn.normal(0, SKEW / 4, count))
        tokens = x.numel() // x.shape[-1] * self.top_k
        self.counts = iter(drawn.multinomial(tokens, shares / shares.sum()).tolist())
        return super().forward(x)

    def chosen_by(self, chosen: Tensor, _: int) -> tuple[Tensor, Tensor]:
        found = torch.empty(2, next(self.counts), dtype=torch.long, device=chosen.device)
        return found[0], found[1]


class Program(Run):
    """A run whose first step may try kernels."""

    tries = False

    def make(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model, optimizer = super().make()
        for block in model.blocks:  # also without trials: hooks change the requests
            block.register_forward_pre_hook(_Once(self.tries))
            block.register_full_backward_hook(_Once(self.tries))
        return model, optimizer

    def step(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        DrawnExperts.step, DrawnExperts.calls = step % MEASURED, 0
        super().step(model, optimizer, step)


class _Once:
    """A hook that may try kernels when it is called first: on copies, with a large buffer."""

    def __init__(self, tries: bool) -> None:
        self.tries = tries

    def __call__(self, _: torch.nn.Module, values: Any, *__: Any) -> None:
        for _ in range(TRIALS if self.tries else 0):
            copy = values[0].clone()
            buffer = torch.empty(FLUSHED, dtype=torch.int32, device=copy.device)
            del copy, buffer
        self.tries = False


def main() -> None:
    """Trains, and prints what it came to."""
    fields = json.loads(sys.argv[1])
    Program.tries = fields.pop("tries", False)
    models.RoutedExperts = DrawnExperts  # type: ignore[misc]
    result = Program(**fields).train()
    result.pop("losses", None)
    print(json.dumps(result), flush=True)
    os._exit(0)  # torch's threads may abort a process that ends in the usual way
