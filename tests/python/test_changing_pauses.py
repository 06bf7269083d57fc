"""Work between the planned phases: checkpoints that copy weights, and scores before a forward."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import stalloc
from stalloc.replaying import replay_stalloc, replay_torch

PROFILED, ITERATIONS = 5, 18
WIDTH, VOCABULARY, ROWS = 1024, 16_000, 8

Optimizer = torch.optim.Optimizer


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU())
            for _ in range(6)
        )
        self.downs = nn.ModuleList(nn.Linear(4 * WIDTH, WIDTH) for _ in range(6))
        self.words = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block, down in zip(self.blocks, self.downs, strict=True):
            x = x + down(block(x))
        y: Tensor = self.words(x)
        return y


def length(iteration: int, seed: int) -> int:
    random = np.random.default_rng([seed, iteration])
    return int(np.clip(random.lognormal(5.5, 0.6, 4), 32, 1024).max())


def copies(model: Model, optimizer: Optimizer) -> list[Tensor]:
    states = [s for state in optimizer.state.values() for s in state.values()]
    return [t.clone() for t in [*model.parameters(), *states]]


Kept = list[list[Tensor]]
Pause = Callable[[int, int, Model, Optimizer, Kept], None]


def checkpoint(iteration: int, seed: int, model: Model, optimizer: Optimizer, kept: Kept) -> None:
    if iteration % 6 == 5:
        copies(model, optimizer)


def best(iteration: int, seed: int, model: Model, optimizer: Optimizer, kept: Kept) -> None:
    """Keeps copies until better ones are made."""
    if iteration % 6 == 5:
        kept[:] = [copies(model, optimizer)]


def scores(iteration: int, seed: int, model: Model, optimizer: Optimizer, kept: Kept) -> None:
    """Scores the next batch by its hidden states, as reinforcement learning does."""
    with torch.no_grad():
        hidden = torch.zeros(ROWS, length(iteration + 1, seed), WIDTH, dtype=torch.bfloat16)
        (hidden @ model.words.weight.T).float().log_softmax(-1).amax(-1)


def record(pause: Pause, seed: int, iterations: int) -> stalloc.Trace:
    kept: Kept = []
    with stalloc.profile(device="meta") as prof, torch.device("meta"):
        model = Model().bfloat16()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for i in range(iterations):
            tokens = torch.zeros(ROWS, length(i, seed), dtype=torch.long)
            functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            pause(i, seed, model, optimizer, kept)
            prof.step()
    return prof.trace


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pause", [checkpoint, scores])
def test_a_pause_uses_the_idle_pool(pause: Pause, seed: int) -> None:
    plan = record(pause, seed, PROFILED).plan()
    run = record(pause, seed, ITERATIONS)
    ours = replay_stalloc(run, plan)
    assert ours.peak_reserved <= 1.02 * ours.peak_load
    assert ours.peak_reserved <= replay_torch(run, expandable_segments=True).peak_reserved
    assert ours.peak_reserved <= replay_torch(run).peak_reserved


@pytest.mark.parametrize("seed", range(3))
def test_kept_copies_need_less_than_beside_the_pool(seed: int) -> None:
    plan = record(best, seed, PROFILED).plan()
    run = record(best, seed, ITERATIONS)
    ours = replay_stalloc(run, plan)
    assert ours.peak_reserved <= 1.06 * ours.peak_load
    assert ours.peak_reserved <= replay_torch(run).peak_reserved
