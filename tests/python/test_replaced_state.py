"""Training that replaces its state in every step: the results are those without a plan."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from isolation import isolated
from torch import Tensor
from training import Trainer, assert_same, twins

import stalloc
from stalloc import _core, importers
from stalloc.replaying import PAGE, replay_stalloc

ADAMW = Path(__file__).parents[2] / "benchmarks" / "replay" / "adamw.py"

LENGTH = 64
"""Tokens of a row. Activations are then larger than each state, and about as large as all."""


class FunctionalAdamW(torch.optim.Optimizer):
    """AdamW that makes every new weight and state anew.

    Args:
        parameters: The weights.
        together: True if it makes all of the new before it frees any of the old, else it goes from
            weight to weight.
    """

    def __init__(self, parameters: Any, *, together: bool) -> None:
        super().__init__(parameters, {"lr": 1e-3, "decay": 1e-2})
        self._together = together
        self._steps = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Replaces weights and states."""
        assert closure is None
        self._steps += 1
        made = []
        for group in self.param_groups:
            for p in group["params"]:
                made.append((p, *self._renewed(p, group["lr"], group["decay"])))
                if not self._together:
                    self._replace(*made.pop())
        for p, weight, mean, square in made:
            self._replace(p, weight, mean, square)

    def _renewed(self, p: Tensor, lr: float, decay: float) -> tuple[Tensor, Tensor, Tensor]:
        state = self.state[p]
        if not state:
            state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
        assert p.grad is not None
        mean = torch.lerp(state["mean"], p.grad, 0.1)
        square = torch.lerp(state["square"], p.grad.square(), 0.001)
        scale = lr * (1 - 0.999**self._steps) ** 0.5 / (1 - 0.9**self._steps)
        weight = torch.addcdiv(p * (1 - lr * decay), mean, square.sqrt().add_(1e-8), value=-scale)
        return weight, mean, square

    def _replace(self, p: Tensor, weight: Tensor, mean: Tensor, square: Tensor) -> None:
        p.data = weight
        self.state[p].update(mean=mean, square=square)


def trainers(*, together: bool) -> tuple[Trainer, Trainer]:
    pair = twins()
    for trainer in pair:
        trainer.optimizer = FunctionalAdamW(trainer.model.parameters(), together=together)
    return pair


def plan_of(trainer: Trainer) -> stalloc.Plan:
    with stalloc.profile(trainer.model) as prof:
        for _ in range(4):
            trainer.step(LENGTH)
    return prof.plan()


def is_joined(plan: stalloc.Plan) -> bool:
    """True if all of the state shares the slots of one generation."""
    table = plan.slot_decisions
    return bool((table.box[table.over > 0] >= 0).all()) and plan.slots.count.tolist() == [2]


def check() -> None:
    _core.runtime("cpu").check()


@pytest.mark.parametrize("together", [False, True], ids=["one_by_one", "together"])
@isolated
def test_replaced_state_is_served_from_slots(together: bool) -> None:
    plain, planned = trainers(together=together)
    for _ in range(12):
        plain.step(LENGTH)
    plan = plan_of(planned)
    state = plan.slot_decisions.over > 0
    assert state.sum() >= 3 * len(list(planned.model.parameters()))
    assert is_joined(plan) == together
    assert plan.gap <= 0.015
    stalloc.enable(plan)
    for _ in range(8):
        planned.step(LENGTH)
        check()
    stats = stalloc.memory_stats()
    assert stats["hits"] >= 0.99 * 8 * stats["planned"] > 0
    assert stats["conflicts"] == 0
    assert_same(plain, planned)


@isolated
def test_a_run_comes_back_to_its_slots_after_departures() -> None:
    plain, planned = trainers(together=True)

    def train(trainer: Trainer) -> None:
        kept: list[Tensor] = []
        for step in range(14):
            trainer.step(96 if step == 6 else LENGTH)
            if step == 8:  # a checkpoint keeps a generation for a while
                kept = [p.data for p in trainer.model.parameters()]
            if step == 10:
                kept = kept[:1]
            if step == 11:
                trainer.evaluate()
                kept.clear()

    train(plain)
    plan = plan_of(trainers(together=True)[0])
    assert is_joined(plan)
    stalloc.enable(plan)
    train(planned)
    before = stalloc.memory_stats()["hits"]
    planned.step(LENGTH)
    stats = stalloc.memory_stats()
    assert stats["hits"] - before == stats["planned"]
    check()
    plain.step(LENGTH)
    assert_same(plain, planned)


@pytest.mark.parametrize("order", ["each", "pair", "kind", "all"])
def test_the_plan_of_a_large_functional_adamw_is_near_its_bound(order: str) -> None:
    spec = importlib.util.spec_from_file_location("adamw", ADAMW)
    assert spec is not None
    assert spec.loader is not None
    adamw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(adamw)
    content = adamw.recording(order)
    trace = importers.from_bytes(content, order, repetitions=6).trace
    plan = trace.plan(time_limit=2.0)
    assert plan.gap <= 0.015
    assert plan.gap == 0 or order != "all"
    row = replay_stalloc(trace, plan)
    assert row.hit_rate == 1
    assert row.peak_reserved <= plan.pool + plan.resident + PAGE
