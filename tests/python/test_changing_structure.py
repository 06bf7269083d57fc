"""Programs whose iterations differ in structure: tasks in turns, layers that are dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import stalloc
from stalloc.replaying import replay_stalloc, replay_torch

PROFILED, ITERATIONS = 5, 24
WIDTH, VOCABULARY = 1024, 32_000

Random = np.random.Generator


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(functional.gelu(self.up(self.norm(x))))
        return y


class Body(nn.Module):
    """Token numbers to scores of the vocabulary, or of eight classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.words = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.classes = nn.Linear(WIDTH, 8)

    def forward(self, tokens: Tensor, keep: list[bool], words: bool) -> Tensor:
        x = self.embed(tokens)
        for block, kept in zip(self.blocks, keep, strict=True):
            x = block(x) if kept else x
        y: Tensor = self.words(x) if words else self.classes(x.mean(1))
        return y


Step = Callable[[Any, int, Random], Tensor]


def zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.long)


def length(random: Random) -> int:
    return int(np.clip(random.lognormal(6.0, 0.7, 4), 32, 2048).max())


def words(model: Body, tokens: Tensor, keep: list[bool]) -> Tensor:
    scores = model(tokens, keep, True)
    return functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())


def two_tasks(model: Body, iteration: int, random: Random) -> Tensor:
    tokens, keep = length(random), [True] * 6
    if random.random() < 0.5 or iteration == 1:
        return words(model, zeros(8, tokens), keep)
    scores = model(zeros(16, tokens), keep, False)
    return functional.cross_entropy(scores, zeros(16))


def dropped_layers(model: Body, iteration: int, random: Random) -> Tensor:
    keep = [bool(iteration == 0 or random.random() > 0.2) for _ in range(6)]
    return words(model, zeros(8, length(random)), keep)


def crops(model: Body, iteration: int, random: Random) -> Tensor:
    """Two views of a batch, and a varying number of short ones, whose activations live together."""
    keep = [True] * 6
    large = model(zeros(16, 512), keep, False)
    small = model(zeros(int(random.choice([24, 32, 40])), 128), keep, False)
    return large.square().mean() + small.square().mean()


def recomputed_if_long(model: Body, iteration: int, random: Random) -> Tensor:
    """Activations of batches that are longer than those of the profile are recomputed."""
    tokens = 300 + 50 * iteration if iteration < PROFILED else int(random.integers(700, 2000))
    x = model.embed(zeros(8, tokens))
    for block in model.blocks:
        x = block(x) if iteration < PROFILED else checkpoint(block, x, use_reentrant=False)
    y: Tensor = model.classes(x.mean(1))
    return y.square().mean()


def recomputed_in_turns(model: Body, iteration: int, random: Random) -> Tensor:
    """Batches that are longer than those of the profile are recomputed; half of them are packed."""
    is_packed = iteration >= PROFILED and random.random() < 0.5
    most = 1000 if iteration < PROFILED else 1500
    rows, tokens = (1, 16_000) if is_packed else (8, int(random.integers(300, most)))
    x = model.embed(zeros(rows, tokens))
    for block in model.blocks:
        x = checkpoint(block, x, use_reentrant=False) if rows * tokens > 8000 else block(x)
    y: Tensor = model.words(x).float()
    return y.square().mean()


def probed(model: Body, iteration: int, random: Random) -> Tensor:
    """Each iteration begins with temporaries whose number and sizes nothing tells."""
    for _ in range(int(random.integers(1, 4))):
        torch.zeros(int(random.integers(1000, 4000)), WIDTH).square().mean()
    x = model.embed(zeros(2, 128))
    for block in model.blocks:
        x = block(x)
    y: Tensor = model.classes(x.mean(1))
    return y.square().mean()


def checked(rows: int) -> Body:
    """A model that scores large batches before it trains."""
    model = Body()
    with torch.no_grad():
        for _ in range(2):
            model(zeros(rows, 1024), [True] * len(model.blocks), True)
    return model


def short_texts(model: Body, iteration: int, random: Random) -> Tensor:
    return words(model, zeros(4, 512), [True] * len(model.blocks))


class Tables(nn.Module):
    """Scores of four tables' rows, of whose numbers nothing is known ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, rows: list[int]) -> Tensor:
        kept = [
            functional.gelu(table(torch.ones(n, WIDTH, dtype=torch.bfloat16)))
            for table, n in zip(self.tables, rows, strict=True)
        ]
        y: Tensor = sum((x.square().mean() for x in kept), torch.zeros(()))
        return y


def rows_of_tables(model: nn.Module, iteration: int, random: Random) -> Tensor:
    y: Tensor = model(random.integers(20_000, 120_000, 4).tolist())
    return y


def record(step: Step, seed: int, iterations: int, make: Callable[[], nn.Module]) -> stalloc.Trace:
    random = np.random.default_rng(seed)
    with stalloc.profile(device="meta") as prof, torch.device("meta"):
        model = make().bfloat16()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for i in range(iterations):
            step(model, i, random).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            prof.step()
    return prof.trace


@pytest.mark.parametrize("seed", range(4))
def test_dropped_layers_need_little_more_than_their_load(seed: int) -> None:
    assert_reserves(dropped_layers, seed, most=1.05)


# The regions of the scores of words are idle while classes are learnt, in a pool for both.
@pytest.mark.parametrize("seed", range(3))
def test_tasks_in_turns_lend_each_other_their_memory(seed: int) -> None:
    assert_reserves(two_tasks, seed, most=1.07)


# Each of these batches must not get a part of what the layout has for it and none needs.
@pytest.mark.parametrize("seed", range(2))
def test_recomputed_batches_in_turns_do_not_add_memory_each(seed: int) -> None:
    assert_reserves(recomputed_in_turns, seed, most=1.05)


# The float32 weights of start-up come where later iterations make such temporaries.
def test_weights_that_are_cast_lie_in_the_pool() -> None:
    assert_reserves(probed, 0, most=1.05)


# Start-up is the peak. Small temporaries of the check must not take memory of the pool beside large
# ones that lie beside it, nor the region of the states which come later.
@pytest.mark.parametrize(
    ("fallback", "rows"),
    [
        *(("stalloc", rows) for rows in (8, 16, 32, 64)),
        pytest.param(
            "torch",
            8,
            marks=pytest.mark.xfail(
                strict=True,
                reason="torch's cache counts as in use until torch is asked again: 1.065",
            ),
        ),
        *(("torch", rows) for rows in (16, 32, 64)),
    ],
)
def test_a_check_before_the_first_step_needs_no_memory_of_the_plan(
    fallback: Literal["stalloc", "torch"], rows: int
) -> None:
    assert_reserves(short_texts, 0, most=1.05, make=lambda: checked(rows), fallback=fallback)


# The laws of activations that are kept tell of more than twice the load.
@pytest.mark.parametrize("seed", range(2))
def test_recomputed_batches_need_no_memory_for_what_they_leave_out(seed: int) -> None:
    assert_reserves(recomputed_if_long, seed, most=1.05)


# Planned for the largest crops, the small ones would need half as much again.
@pytest.mark.parametrize("seed", range(3))
def test_small_crops_need_no_memory_for_large_ones(seed: int) -> None:
    assert_reserves(crops, seed, most=1.05)


# A region for the largest number of rows of each table would add up.
@pytest.mark.parametrize("seed", range(3))
def test_sizes_that_vary_by_themselves_share_their_memory(seed: int) -> None:
    assert_reserves(rows_of_tables, seed, most=1.05, make=Tables)


def assert_reserves(
    step: Step,
    seed: int,
    most: float,
    make: Callable[[], nn.Module] = Body,
    fallback: Literal["stalloc", "torch"] = "stalloc",
) -> None:
    plan = record(step, seed, PROFILED, make).plan()
    run = record(step, seed, ITERATIONS, make)
    ours = replay_stalloc(run, plan, fallback=fallback)
    assert ours.peak_reserved <= most * ours.peak_load
    assert ours.peak_reserved <= replay_torch(run).peak_reserved
