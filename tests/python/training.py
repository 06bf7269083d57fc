"""A small model and its training loop, for tests that train with and without a plan."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import stalloc
from stalloc.driver import Driver
from stalloc.options import Options
from stalloc.ranks import Parallelism


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unsqueeze(1).chunk(3, dim=-1)
        x = x + functional.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
        return x + self.mlp(x)


class Model(nn.Module):
    """A transformer with tied weights; blocks are checkpointed as `recompute` says, in turn."""

    def __init__(
        self, width: int = 64, layers: int = 4, recompute: tuple[str | None, ...] = (None,)
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 128, bias=False)
        self.head.weight = self.embedding.weight
        self.recompute = recompute

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for i, block in enumerate(self.blocks):
            how = self.recompute[i % len(self.recompute)]
            x = checkpoint(block, x, use_reentrant=how == "reentrant") if how else block(x)
        return self.head(x)


def make_driver(
    mode: str | None = None,
    folder: Path | None = None,
    *,
    parallelism: Parallelism | Callable[[], Parallelism] | None = None,
    framework: str = "",
    **options: Any,
) -> Driver:
    return Driver(Options(mode, folder, **options), parallelism=parallelism, framework=framework)


def tokens(step: int, microbatch: int, length: int = 32, rows: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return torch.randint(128, (rows, length + 1), generator=generator)


def loss_of(model: nn.Module, t: Tensor) -> Tensor:
    return functional.cross_entropy(model(t[:, :-1]).flatten(0, 1), t[:, 1:].flatten())


@dataclass
class Trainer:
    """Trains `model`; whatever a test lets it do, it does the same with and without a plan.

    One thread trains: others would ask for scratch space at moments that differ from run to run.
    """

    model: nn.Module
    microbatches: int = 3
    losses: list[float] = field(default_factory=list)
    optimizer: torch.optim.Optimizer = field(init=False)
    steps: int = 0

    def __post_init__(self) -> None:
        torch.set_num_threads(1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def backward(self, microbatch: int, length: int = 32) -> None:
        loss = loss_of(self.model, tokens(self.steps, microbatch, length))
        loss.backward()
        self.losses.append(loss.item())

    def finish(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        stalloc.step()

    def step(self, length: int = 32, microbatches: int | None = None) -> None:
        for i in range(microbatches or self.microbatches):
            self.backward(i, length)
        self.finish()

    def evaluate(self, batches: int = 3) -> None:
        self.model.eval()
        with torch.no_grad():
            for i in range(batches):
                self.losses.append(loss_of(self.model, tokens(99, i, length=40, rows=5)).item())
        self.model.train()


def twins(**options: object) -> tuple[Trainer, Trainer]:
    """Two trainers of equal models."""
    torch.manual_seed(0)
    model = Model(**options)  # type: ignore[arg-type]
    return Trainer(copy.deepcopy(model)), Trainer(model)


def profiled_plan(trainer: Trainer, steps: int = 3) -> stalloc.Plan:
    with stalloc.profile(trainer.model) as prof:
        for _ in range(steps):
            trainer.step()
    return prof.plan()


def assert_same(a: Trainer, b: Trainer) -> None:
    """Losses and weights are identical to the bit."""
    assert a.losses == b.losses
    for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True):
        assert torch.equal(p, q)
