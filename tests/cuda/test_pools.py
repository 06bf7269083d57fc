"""Pools that are given back and taken again, in both modes."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
import standin
import torch
from alone import run_alone
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


# The header of a handle of virtual memory: the process, the size and the number of chunks.
HEADER = struct.Struct("=i4xQQ")
NOT_SUPPORTED = 801


def _tensor_of_the_pool(
    trainer: Trainer, plan: stalloc.Plan, keep_addresses: bool | None = None
) -> torch.Tensor:
    """A planned tensor, once the plan is followed."""
    stalloc.enable(plan, model=trainer.model, keep_addresses=keep_addresses)
    for _ in range(4):
        trainer.step()
    y = trainer.model(torch.empty(trainer.rows, trainer.width, device="cuda")).detach()
    assert 0 <= y.data_ptr() - _pool(plan) < plan.pool
    return y


@pytest.mark.parametrize("keep_addresses", [None, True])
@isolated
def test_tensors_of_a_virtual_memory_pool_are_shared_chunk_by_chunk(
    keep_addresses: bool | None,
) -> None:
    trainer = Trainer()
    plan = trainer.plan()
    y = _tensor_of_the_pool(trainer, plan, keep_addresses)
    begin = _pool(plan)
    device, handle, size, offset = y.untyped_storage()._share_cuda_()[:4]
    assert (device, size) == (0, y.nbytes)
    assert handle[1:2] == b"e"
    process, chunk, chunks = HEADER.unpack_from(handle, 2)
    assert process == os.getpid()
    assert (y.data_ptr() - begin) % chunk == offset, "the handle begins at the chunk of the tensor"
    assert chunk * chunks - chunk < offset + y.nbytes <= chunk * chunks
    files = struct.unpack(f"={chunks}i", handle[-4 * chunks :])
    assert all("standin" in os.readlink(f"/proc/self/fd/{file}") for file in files)
    assert y.untyped_storage()._share_cuda_()[1] == handle, "a chunk has one file"


def test_another_process_maps_a_tensor_of_a_virtual_memory_pool() -> None:
    result = run_alone(
        """
import torch, stalloc
from alone import describe_tensor
from training_cuda import Trainer
trainer = Trainer()
stalloc.enable(trainer.plan(), model=trainer.model)
for _ in range(4): trainer.step()
y = trainer.model(torch.empty(trainer.rows, trainer.width, device="cuda")).detach()
assert y.untyped_storage()._share_cuda_()[1][1:2] == b"e"
context = torch.multiprocessing.get_context("spawn")
tensors, results = context.SimpleQueue(), context.SimpleQueue()
process = context.Process(target=describe_tensor, args=(tensors, results))
process.start()
tensors.put(y)
assert results.get() == tuple(y.shape)
process.join()
assert process.exitcode == 0
"""
    )
    assert result.returncode == 0, result.stderr


@isolated
def test_the_files_of_a_shared_pool_are_closed_with_it() -> None:
    def files() -> int:
        names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return sum("standin" in os.readlink(name) for name in names if os.path.islink(name))

    trainer = Trainer()
    plan = trainer.plan()
    before = files()
    y = _tensor_of_the_pool(trainer, plan)
    handle = y.untyped_storage()._share_cuda_()
    assert files() > before
    del y
    torch.UntypedStorage._release_ipc_counter(handle[4], handle[5], device=handle[0])
    torch.cuda.ipc_collect()
    stalloc.disable()
    torch.cuda.empty_cache()
    assert files() == before


@isolated
def test_a_driver_that_shares_no_virtual_memory_is_said_so() -> None:
    trainer = Trainer()
    y = _tensor_of_the_pool(trainer, trainer.plan())
    standin.fail("cuMemExportToShareableHandle", 1, NOT_SUPPORTED)
    with pytest.raises(RuntimeError, match="cannot be shared with another process"):
        y.untyped_storage()._share_cuda_()
    del y
    trainer.step()  # no error is left behind for the next kernel


@isolated
def test_a_driver_that_makes_no_shareable_memory_still_has_pools() -> None:
    trainer = Trainer()
    plan = trainer.plan()
    standin.fail("cuMemCreate", 1, NOT_SUPPORTED)
    y = _tensor_of_the_pool(trainer, plan, keep_addresses=True)
    with pytest.raises(RuntimeError, match="cannot be shared with another process"):
        y.untyped_storage()._share_cuda_()


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
