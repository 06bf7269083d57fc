"""`stalloc fits --world`: stages of a pipeline that ask each other for shapes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from isolation import isolated
from processes import python
from torch import Tensor, nn
from torch.distributed import pipelining

import stalloc
from stalloc._hooks import optimizers

_distributed: Any = dist
_pipelining: Any = pipelining
WIDTH, SIZE, BATCH, MICROBATCHES = 64, 4, 4096, 8


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def loss(y: Tensor, target: Tensor) -> Tensor:
    return (y - target).square().mean()


def training(schedule: str, examples: bool) -> Callable[[], Any]:
    def build() -> Any:
        _distributed.init_process_group("nccl")
        rank, chunks = int(os.environ["RANK"]), 2 if schedule == "ScheduleInterleaved1F1B" else 1
        device = torch.device("cuda", rank)
        models = [block().to(device) for _ in range(chunks)]
        stages = []
        for i, model in enumerate(models):
            number, given = rank + SIZE * i, {}
            if examples:
                shape = (BATCH // MICROBATCHES, WIDTH)
                given = {
                    "input_args": torch.zeros(shape, device=device, requires_grad=number > 0),
                    "output_args": torch.zeros(shape, device=device, requires_grad=True),
                }
            stages.append(_pipelining.PipelineStage(model, number, SIZE * chunks, device, **given))
        kind = getattr(_pipelining, schedule)
        run = kind(stages if chunks > 1 else stages[0], MICROBATCHES, loss_fn=loss)
        optimizer = torch.optim.SGD([p for m in models for p in m.parameters()], lr=0.1)

        def step() -> None:
            x, target = (torch.zeros(BATCH, WIDTH, device=device) for _ in range(2))
            arguments = (x,) if rank == 0 else ()
            run.step(*arguments, **({"target": target} if rank == SIZE - 1 else {}))
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


@isolated
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_stages_that_exchange_shapes_are_those_with_examples(rank: int) -> None:
    for schedule in ("Schedule1F1B", "ScheduleInterleaved1F1B"):
        told, asked = (
            stalloc.estimate(training(schedule, examples), world=SIZE, rank=rank, plan=False)
            for examples in (True, False)
        )
        assert told.load == asked.load
        assert told.iterations == asked.iterations == 3


@isolated
def test_schedules_hold_as_many_microbatches_as_they_do() -> None:
    def load(schedule: str, rank: int) -> int:
        return stalloc.estimate(training(schedule, False), world=SIZE, rank=rank, plan=False).load

    activations = BATCH // MICROBATCHES * WIDTH * 4
    assert load("ScheduleGPipe", 0) - load("Schedule1F1B", 0) >= 3 * activations


SCRIPT = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

dist.init_process_group("nccl")
rank, device = dist.get_rank(), torch.device("cuda", dist.get_rank())

class Layer(nn.Linear):
    def forward(self, x):
        return super().forward(x).relu()

model = Layer(64, 64).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
nn.kept = Layer  # as FSDP2 does: with it, all that the script has made
stage = PipelineStage(model, rank, 4, device)
schedule = Schedule1F1B(stage, 4, loss_fn=lambda y, t: (y - t).square().mean())
for _ in range(10):
    x = (torch.zeros(64, 64, device=device),) if rank == 0 else ()
    target = {"target": torch.zeros(64, 64, device=device)} if rank == 3 else {}
    schedule.step(*x, **target)
    optimizer.step()
    optimizer.zero_grad()
"""


def test_no_optimizer_of_an_attempt_that_ended_is_awaited(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    options = ("--gpu", "H100", "--world", "4", "--rank", "2", "--json")
    done = python("-m", "stalloc", "fits", *options, script)
    assert json.loads(done.stdout)["iterations"] == 3


class Unhashable(torch.optim.SGD):
    __hash__ = None  # type: ignore[assignment]


@isolated
def test_an_optimizer_without_a_hash_can_be_retired() -> None:
    optimizer = Unhashable([torch.zeros(1, requires_grad=True)])
    assert optimizers.any_exists()
    optimizers.retire()
    assert not optimizers.any_exists()
    del optimizer
