"""Pools that are given back and taken again, in both modes."""

from __future__ import annotations

from pathlib import Path

import pytest
import standin
import torch
from isolation import isolated, run_isolated
from training_cuda import Trainer

import stalloc
from stalloc import _core

MIB = 1 << 20
GIB = 1 << 30


def _pool(plan: stalloc.Plan) -> int:
    """The address at which the pool begins."""
    segments = [s for s in torch.cuda.memory_snapshot() if s["total_size"] == plan.pool]
    assert len(segments) == 1
    return int(segments[0]["address"])


def _train_infer_train(trainer: Trainer, plan: stalloc.Plan) -> None:
    """Alternates; the plan is in force, with a pool that keeps its addresses."""
    for _ in range(4):
        trainer.step()
    address = _pool(plan)
    for _ in range(3):
        torch.cuda.empty_cache()
        used, reserved = standin.used(), torch.cuda.memory_reserved()
        stalloc.release_pool()
        stalloc.release_pool()  # again is nothing
        assert used - standin.used() >= plan.pool
        assert torch.cuda.memory_reserved() == reserved - plan.pool
        inference = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
        assert not address <= inference.data_ptr() < address + plan.pool
        # Nobody else can get the addresses that are mapped now.
        standin.set_memory(0, standin.used() + MIB)
        with pytest.raises(stalloc.OutOfMemory, match="cannot be reserved"):
            stalloc.acquire_pool()
        standin.set_memory(0, 80 * GIB)
        trainer.step()
        del inference
        stalloc.acquire_pool()
        stalloc.acquire_pool()
        assert _pool(plan) == address
        trainer.step()
        before = stalloc.memory_stats()
        trainer.step()
        after = stalloc.memory_stats()
        assert after["hits"] - before["hits"] == after["planned"]


@isolated
def test_a_pool_comes_back_to_its_addresses() -> None:
    trainer = Trainer()
    plan = trainer.plan()
    reservations = standin.reservations()
    stalloc.enable(plan, model=trainer.model, keep_addresses=True)
    assert standin.reservations() == reservations + 1
    _train_infer_train(trainer, plan)
    stalloc.release_pool()
    stalloc.disable()
    assert standin.reservations() == reservations, "a pool that is away goes altogether"


@isolated
def test_in_compat_mode_too() -> None:
    stalloc.install_compat()
    trainer = Trainer()
    plan = trainer.plan()
    stalloc.enable(plan, model=trainer.model, keep_addresses=True)
    _train_infer_train(trainer, plan)
    stalloc.disable()
    assert standin.reservations() == 0
    assert not standin.complaint()


def test_the_device_is_waited_for_before_memory_goes() -> None:
    trainer = Trainer()
    plan = trainer.plan()
    standin.set_manual(True)
    side = torch.cuda.Stream()
    stalloc.enable(plan, model=trainer.model, keep_addresses=True)
    for _ in range(4):
        trainer.step()
    x = torch.empty(trainer.rows, trainer.width, device="cuda")
    y = trainer.model(x).detach()
    standin.use(side.cuda_stream, y.data_ptr(), y.nbytes, 1)
    y.record_stream(side)
    del x, y
    stalloc.release_pool()  # the fixture looks for misuse: unmapped while in use
    stalloc.acquire_pool()


def test_refuses_to_share_tensors_of_a_virtual_memory_pool() -> None:
    trainer = Trainer()
    plan = trainer.plan()
    stalloc.enable(plan, model=trainer.model, keep_addresses=True)
    for _ in range(4):
        trainer.step()
    y = trainer.model(torch.empty(trainer.rows, trainer.width, device="cuda")).detach()
    begin = _pool(plan)
    assert begin <= y.data_ptr() < begin + plan.pool
    with pytest.raises(RuntimeError, match="cannot be shared with another process"):
        y.untyped_storage()._share_cuda_()
    del y
    trainer.step()  # no error is left behind for the next kernel


def _on_the_cpu() -> None:
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.ones(512, 512)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        stalloc.step()

    with stalloc.profile(model) as prof:
        for _ in range(3):
            step()
    optimizer.zero_grad()
    stalloc.enable(prof.plan(), model=model, keep_addresses=True)
    for _ in range(3):
        step()
    optimizer.zero_grad()
    first = model(torch.ones(512, 512)).detach().data_ptr()
    stalloc.step()
    stalloc.release_pool()
    assert _core.runtime("cpu").statistics()["reserved"] < stalloc.memory_stats()["pool"]
    stalloc.acquire_pool()
    for _ in range(2):
        step()
    optimizer.zero_grad()
    assert model(torch.ones(512, 512)).detach().data_ptr() == first


def test_on_the_cpu_pools_always_keep_them(tmp_path: Path) -> None:
    run_isolated(_on_the_cpu)
