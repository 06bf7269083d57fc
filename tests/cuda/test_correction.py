"""In native mode, plans of the meta device are corrected by the device's first iterations."""

from __future__ import annotations

import pytest
import standin
import torch
from torch import Tensor, nn
from training_cuda import Block

import stalloc
from stalloc import _core
from stalloc.correction import RECORDED

MIB = 1 << 20
WIDTH, ROWS, BLOCKS = 4096, 512, 4
SCRATCH = 96 * MIB
"""Bytes of a temporary that only the GPU makes."""


class Program(Block):
    """A block whose kernels need scratch memory on the GPU alone."""

    def __init__(self) -> None:
        super().__init__(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            scratch = torch.empty(SCRATCH // 4, device=x.device)
            del scratch
        y: Tensor = super().forward(x)
        return y


class Training:
    def __init__(self, device: str) -> None:
        self.device = device
        self.model = nn.Sequential(*(Program() for _ in range(BLOCKS))).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=True)

    def step(self) -> Tensor:
        x = torch.empty(ROWS, WIDTH, device=self.device)
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def plan_without_gpu() -> stalloc.Plan:
    with stalloc.profile(device="meta") as prof, torch.device("meta"):
        training = Training("meta")
        for _ in range(3):
            training.step()
            prof.step()
    return prof.plan()


def test_the_exchange_needs_no_more_memory_than_the_plan_before() -> None:
    plan = plan_without_gpu()
    with stalloc.enable(plan, startup=True) as session:
        training = Training("cuda")
        kept = [training.step() for _ in range(RECORDED)]
        # No room for a second pool.
        standin.set_memory(0, standin.used(0) + SCRATCH)
        kept.append(training.step())
        assert session.correction is not None
        assert session.correction.exchanged
        kept.append(training.step())
        settled, calls = stalloc.memory_stats(), standin.calls("cudaMalloc")
        for _ in range(3):
            training.step()
        stats = stalloc.memory_stats()
        _core.runtime("cuda:0").check()
        assert len({loss.data_ptr() for loss in kept}) == len(kept)
    requests = stats["requests"] - settled["requests"]
    assert requests >= 3 * stats["planned"] > 0
    assert stats["served_as_planned"] - settled["served_as_planned"] == requests
    assert standin.calls("cudaMalloc") == calls
    more = [change for change in session.correction.changes if change.what == "more"]
    assert any(change.size_b == SCRATCH and change.requests == BLOCKS for change in more)


@pytest.mark.parametrize("short", [False, True])
def test_plain_memory_is_exchanged_while_nothing_lies_in_it(short: bool) -> None:
    plan = plan_without_gpu()
    with stalloc.enable(plan, startup=True, keep_addresses=False) as session:
        training = Training("cuda")
        for _ in range(RECORDED):
            assert session.correction is None
            training.step()
            if short:
                torch.cuda.empty_cache()
                standin.set_memory(0, standin.used(0))
            stalloc.step()
            standin.set_memory(0, 80 << 30)
        assert session.correction is not None
        assert session.correction.plan.pool > plan.pool
        assert session.correction.exchanged is not short
        assert session.plan is (plan if short else session.correction.plan)
        before = stalloc.memory_stats()
        for _ in range(3):
            training.step()
            stalloc.step()
        stats = stalloc.memory_stats()
        assert session.enabled
    requests = stats["requests"] - before["requests"]
    assert requests >= 3 * stats["planned"] > 0
    departed = requests - (stats["served_as_planned"] - before["served_as_planned"])
    assert (departed >= 3 * BLOCKS) if short else departed == 0
    assert stats["hits"] - before["hits"] > 2 * stats["planned"]


def test_plain_memory_with_a_tensor_in_it_keeps_its_plan() -> None:
    plan = plan_without_gpu()
    with stalloc.enable(plan, startup=True, keep_addresses=False) as session:
        training = Training("cuda")
        for _ in range(RECORDED):
            loss = training.step()
            assert stalloc.memory_stats()["live_blocks"] > 0
            stalloc.step()
            del loss
        assert session.correction is not None
        assert session.correction.saves
        assert not session.correction.exchanged
        assert session.plan is plan


def test_a_capture_is_not_disturbed() -> None:
    plan = plan_without_gpu()
    with stalloc.enable(plan, startup=True) as session:
        training = Training("cuda")
        for _ in range(RECORDED):
            training.step()
        x = torch.empty(ROWS, WIDTH, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            training.model(x)
        assert session.correction is None
        graph.replay()
        training.step()
        assert session.correction is not None
        assert session.correction.exchanged
        _core.runtime("cuda:0").check()
