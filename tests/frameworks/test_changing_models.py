"""Real models whose batches change: identical to the bit, served as planned, within the pool."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from changing_models import NAMES, kind
from isolation import run_isolated
from trainers import Run, prepare

import stalloc
from stalloc import _core

ROWS = 4
STEPS = 200
TARGET = 0.99  # hits, of all requests
# The pool's alignment and the segments of the fallback, which a toy model feels.
SLACK = 2 << 20


def shapes(longest: int, seed: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Rows and size of each profiled batch, and of each one that is served."""
    profiled = [1, 1 / 3, 1 / 2, 1 / 4, 2 / 3, 5 / 6, 1 / 5, 3 / 4, 1]
    draw = random.Random(seed)
    served = [(ROWS, draw.randint(4, longest)) for _ in range(STEPS)]
    served[STEPS // 2] = (ROWS - 1, longest // 2)  # the last batches of epochs
    served[STEPS - 20] = (1, longest)
    return [(ROWS, int(longest * part)) for part in profiled], served


def train(name: str, planned: bool) -> tuple[Run, dict[str, Any]]:
    """Trains a model on the same batches with or without a plan."""
    prepare()
    model_kind = kind(name)
    torch.manual_seed(0)
    model = model_kind.make()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    profiled, served = shapes(model_kind.longest, seed=len(name))
    run = Run()

    def step(rows: int, size: int) -> None:
        loss = model_kind.loss(model, torch.Generator().manual_seed(len(run.losses)), rows, size)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.losses.append(loss.item())

    if not planned:
        for batch in (*profiled, *served):
            step(*batch)
        return run.keep(model), {}
    with stalloc.profile(model) as prof:
        for batch in profiled:
            step(*batch)
    plan = prof.plan()
    stalloc.enable(plan)
    for batch in served:
        step(*batch)
        _core.runtime("cpu").check()
    stats = dict(stalloc.memory_stats())
    stats["load"] = max(stats["run_peak_allocated"], plan.bound)
    stalloc.disable()
    return run.keep(model), stats


@pytest.mark.parametrize("name", NAMES)
def test_two_hundred_unseen_shapes(name: str) -> None:
    plain, _ = run_isolated(train, name, False)
    planned, stats = run_isolated(train, name, True)
    plain.assert_same(planned)
    assert stats["strays"] == 0
    assert stats["run_peak_reserved"] <= 1.02 * stats["load"] + SLACK
    assert stats["hit_rate"] >= TARGET, stats
