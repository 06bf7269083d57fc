"""Mixtures of experts whose batches change in length: identical to the bit, within the pool."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from isolation import isolated
from moe import Experts, MoeModel, MoeTrainer
from training import assert_same

import stalloc
from stalloc import _core

LONGEST = 256
PROFILED = (LONGEST, 96, 160, LONGEST, 64, 200)
SERVED = 40
# The segments of the fallback, which a toy model feels.
SLACK = 2 << 20


def twins(recompute: bool = False) -> tuple[MoeTrainer, MoeTrainer]:
    """Two trainers of equal models, whose batches have one microbatch."""
    torch.manual_seed(0)
    model = MoeModel(recompute, width=96, layers=3, experts=8)
    return MoeTrainer(copy.deepcopy(model), 1), MoeTrainer(model, 1)


def train(trainer: MoeTrainer, lengths: tuple[int, ...] | list[int]) -> None:
    for length in lengths:
        trainer.backward(0, length)
        trainer.finish()


@pytest.mark.parametrize("tagged", [True, False])
@pytest.mark.parametrize("longest", [LONGEST, 2 * LONGEST])
@isolated
def test_unseen_lengths_lie_in_the_pool(tagged: bool, longest: int) -> None:
    torch.set_num_threads(1)  # no scratch space of other threads
    draw = random.Random(longest)
    served = [draw.randint(8, longest) for _ in range(SERVED)]
    served[SERVED // 2] = longest
    plain, planned = twins()
    train(plain, (*PROFILED, *served))
    with stalloc.profile(planned.model, dynamic=[Experts] if tagged else ()) as prof:
        train(planned, PROFILED)
    plan = prof.plan()
    assert tagged or plan.dynamic, "experts that nobody tagged are found"
    stalloc.enable(plan)
    for length in served:
        train(planned, [length])
        _core.runtime("cpu").check()
    assert_same(plain, planned)
    stats = stalloc.memory_stats()
    assert stats["strays"] == 0
    assert stats["hit_rate"] >= 0.99
    assert stats["run_peak_reserved"] <= 1.02 * stats["run_peak_allocated"] + SLACK


@isolated
def test_few_iterations_do_not_make_experts_look_static() -> None:
    torch.set_num_threads(1)
    _, planned = twins()
    with stalloc.profile(planned.model, dynamic=()) as prof:
        train(planned, PROFILED[:4])
    assert prof.plan().dynamic


@isolated
def test_a_loss_that_the_loop_keeps_does_not_hold_the_pool() -> None:
    torch.set_num_threads(1)
    plain, planned = twins()
    lengths = [int(96 * 1.15**step) for step in range(15)]  # each longer than all before

    def grow(trainer: MoeTrainer) -> None:
        for length in lengths:
            loss = trainer.loss(0, length)  # the one before lives until here
            loss.backward()
            trainer.losses.append(loss.item())
            trainer.finish()
            _core.runtime("cpu").check()

    train(plain, PROFILED[1:5])
    grow(plain)
    with stalloc.profile(planned.model, dynamic=()) as prof:
        train(planned, PROFILED[1:5])
    stalloc.enable(prof.plan())
    grow(planned)
    assert_same(plain, planned)
    stats = stalloc.memory_stats()
    assert stats["run_peak_reserved"] <= 1.05 * stats["run_peak_allocated"] + SLACK


@pytest.mark.parametrize("tagged", [True, False])
@isolated
def test_recomputed_layers_around_experts_stay_static(tagged: bool) -> None:
    """Autograd asks for the recomputation from a node of the experts, which come last."""
    torch.set_num_threads(1)
    lengths = (128, 40, 100, 64, 90, 111)
    plain, planned = twins(recompute=True)
    train(plain, (*PROFILED, *lengths))
    with stalloc.profile(planned.model, dynamic=[Experts] if tagged else ()) as prof:
        train(planned, PROFILED)
    stalloc.enable(prof.plan())
    train(planned, lengths)
    assert_same(plain, planned)
    assert stalloc.memory_stats()["hit_rate"] >= 0.99
