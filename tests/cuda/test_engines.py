"""Two engines on one GPU: tensors that other processes share, and phases that take turns."""

from __future__ import annotations

from typing import Any

import pytest
import standin
import torch
from alone import run_alone
from training_cuda import Trainer

import stalloc
import stalloc.integrations.openrlhf

MIB = 1 << 20
GIB = 1 << 30


def _share(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.untyped_storage()._share_cuda_())


def _return(handle: tuple[Any, ...]) -> None:
    """The other process drops its tensor."""
    torch.UntypedStorage._release_ipc_counter(handle[4], handle[5], device=handle[0])


def _address(handle: tuple[Any, ...]) -> int:
    """The tensor's address: the one that the stand-in puts into the handle, and the offset."""
    return int.from_bytes(handle[1][-64:-56], "little") + int(handle[3])


def _sharing_step(trainer: Trainer) -> None:
    y = trainer.model(torch.empty(trainer.rows, trainer.width, device=trainer.device))
    address, handle = y.data_ptr(), _share(y.detach())
    assert _address(handle) == address
    y.square().mean().backward()
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    del y
    _return(handle)
    torch.cuda.ipc_collect()
    stalloc.step()


def plan_in_force(trainer: Trainer, *, shares: bool = False) -> stalloc.Plan:
    """A plan that is in force, of iterations with one microbatch."""
    trainer.microbatches = 1
    with stalloc.profile(trainer.model) as prof:
        for _ in range(3):
            if shares:
                _sharing_step(trainer)
            else:
                trainer.step()
    plan = prof.plan()
    stalloc.enable(plan, model=trainer.model)
    for _ in range(3):
        trainer.step()
    return plan


def _output(trainer: Trainer) -> torch.Tensor:
    with torch.enable_grad():
        return trainer.model(torch.empty(trainer.rows, trainer.width, device="cuda")).detach()


def test_a_pool_whose_tensors_are_shared_in_the_profile_is_plain() -> None:
    trainer = Trainer(rows=32)
    plan = plan_in_force(trainer, shares=True)
    assert plan.info["shared"] == "1"
    hits = stalloc.memory_stats()["hits"]
    _sharing_step(trainer)
    assert stalloc.memory_stats()["hits"] > hits


def test_weights_that_are_shared_in_the_profile_leave_the_pool_virtual() -> None:
    trainer = Trainer(rows=32)
    trainer.microbatches = 1
    with stalloc.profile(trainer.model) as prof:
        for _ in range(3):
            _share(trainer.model.get_parameter("blocks.0.scale"))
            trainer.step()
    plan = prof.plan()
    assert "shared" not in plan.info
    reservations = standin.reservations()
    stalloc.enable(plan, model=trainer.model)
    assert standin.reservations() == reservations + 1


def test_a_pool_that_cannot_be_shared_says_how_its_tensors_can() -> None:
    trainer = Trainer(rows=32)
    plan_in_force(trainer, shares=False)
    y = _output(trainer)
    standin.fail("cuMemExportToShareableHandle", 1, 801)
    with pytest.raises(RuntimeError, match="Share it while the profile is recorded, too"):
        _share(y)
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        clone = y.clone()
    handle = _share(clone)
    assert _address(handle) == clone.data_ptr()
    del clone
    _return(handle)
    torch.cuda.ipc_collect()


def test_a_pool_stays_while_another_process_has_a_handle() -> None:
    trainer = Trainer(rows=32)
    plan_in_force(trainer, shares=True)
    y = _output(trainer)
    address, handle = y.data_ptr(), _share(y)
    del y
    with pytest.raises(stalloc.StallocError, match="tensors lie in it"):
        stalloc.release_pool()
    assert _address(handle) == address, "still valid"
    _return(handle)
    torch.cuda.ipc_collect()
    stalloc.release_pool()
    stalloc.acquire_pool()


def test_200_switches_leak_nothing_and_leave_handles_valid() -> None:
    trainer = Trainer(rows=64)
    plan = plan_in_force(trainer, shares=False)
    weight = trainer.model.get_parameter("blocks.0.scale")
    handle = _share(weight.detach())
    assert _address(handle) == weight.data_ptr()
    torch.cuda.empty_cache()
    used = standin.used()
    for _ in range(200):
        with stalloc.phase("rollout"):
            assert standin.used() <= used - plan.pool
            cache = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
            del cache
        assert _address(handle) == weight.data_ptr()
        assert standin.used() == used
        with stalloc.phase("train"):
            trainer.step()
        torch.cuda.empty_cache()
        assert standin.used() == used
    before = stalloc.memory_stats()
    trainer.step()
    after = stalloc.memory_stats()
    assert after["hits"] - before["hits"] == after["planned"]
    _return(handle)


def test_states_that_are_offloaded_to_pinned_memory_keep_their_address_and_values() -> None:
    """Pinned memory of the stand-in is real memory. A switch leaves the pinned pool where it is."""
    trainer = Trainer(rows=64, width=1024)
    trainer.microbatches = 1
    kept: list[torch.Tensor] = []

    def step() -> None:
        kept.append(torch.full((MIB,), len(kept), dtype=torch.uint8, pin_memory=True))
        staged = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)  # of this iteration alone
        trainer.step()
        del staged

    with stalloc.profile(trainer.model, pinned=True) as prof:
        for _ in range(3):
            step()
            kept.clear()
    plan = prof.plan()
    stalloc.enable(plan, model=trainer.model, pinned=prof.plan_pinned())
    step()
    states = [
        value
        for state in trainer.optimizer.state.values()
        for value in state.values()
        if value.is_cuda
    ]
    assert states
    host = [torch.empty_like(state, device="cpu", pin_memory=True) for state in states]
    for number, copy in enumerate(host):
        copy.fill_(number)
    places = [tensor.data_ptr() for tensor in (*host, *kept)]
    weights = [parameter.data_ptr() for parameter in trainer.model.parameters()]
    used, reserved = standin.used(), stalloc.memory_stats("pinned")["reserved"]
    locked = standin.calls("cudaHostAlloc"), standin.calls("cudaFreeHost")
    for turn in range(20):
        for state in states:
            state.untyped_storage().resize_(0)
        with stalloc.phase("rollout"):
            assert standin.used() <= used - plan.pool
            before = stalloc.memory_stats("pinned")
            assert before["reserved"] == reserved
            staged = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
            after = stalloc.memory_stats("pinned")
            assert after["allocated"] == before["allocated"] + MIB, "stalloc serves it"
            del staged
            cache = torch.empty(GIB, dtype=torch.uint8, device="cuda")
            del cache
        for state, copy in zip(states, host, strict=True):
            state.untyped_storage().resize_(copy.nbytes)
            state.copy_(copy, non_blocking=True)
        with stalloc.phase("train"):
            trainer.step()
        assert [tensor.data_ptr() for tensor in (*host, *kept)] == places, turn
        assert [parameter.data_ptr() for parameter in trainer.model.parameters()] == weights
        assert all(bool((copy == number).all()) for number, copy in enumerate(host)), turn
        assert all(bool((tensor == number).all()) for number, tensor in enumerate(kept)), turn
    assert (standin.calls("cudaHostAlloc"), standin.calls("cudaFreeHost")) == locked
    host.clear()
    kept.clear()
    del copy
    torch.cuda.synchronize()
    stalloc.disable()
    assert stalloc.memory_stats("pinned")["reserved"] == 0


def test_the_figure_of_the_pool_is_right_after_a_switch() -> None:
    trainer = Trainer(rows=512)
    plan = plan_in_force(trainer)
    trainer.step(2 * trainer.rows)
    assert stalloc.memory_stats()["pool"] < plan.pool, "some of its addresses lack memory"
    with stalloc.phase("rollout"):
        pass
    stats = stalloc.memory_stats()
    assert stats["pool"] == stats["reserved"] - stats["fallback_reserved"]


def test_only_the_chunks_of_tensors_stay_and_come_back_at_their_addresses() -> None:
    trainer = Trainer(rows=512)
    plan = plan_in_force(trainer, shares=False)
    torch.cuda.empty_cache()
    used = standin.used()
    chunk = max(2 * MIB, plan.pool // 1024 // (2 * MIB) * 2 * MIB)
    for _ in range(3):
        y = _output(trainer)
        reservations = standin.reservations()
        with stalloc.phase("rollout"):
            kept = standin.used() - (used - plan.pool)
            assert kept <= y.nbytes + 3 * chunk, "two at its ends, and the first"
            y.add_(1)
            cache = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
            del cache
        assert standin.used() == used
        assert standin.reservations() == reservations
        y.add_(1)
        del y
        with stalloc.phase("train"):
            trainer.step()
        before = stalloc.memory_stats()
        trainer.step()
        after = stalloc.memory_stats()
        assert after["hits"] - before["hits"] == after["planned"]
        torch.cuda.empty_cache()


@pytest.mark.filterwarnings("ignore:stalloc. phase 'rollout' begins while tensors lie in")
def test_a_plain_pool_stays_while_a_tensor_lies_in_it() -> None:
    trainer = Trainer(rows=32)
    plan = plan_in_force(trainer, shares=True)
    y = _output(trainer)
    torch.cuda.empty_cache()
    used = standin.used()
    assert stalloc.memory_stats()["live_blocks"] == 1
    with stalloc.phase("rollout"):
        assert standin.used() == used
    del y
    with stalloc.phase("rollout"):
        assert standin.used() <= used - plan.pool
    assert standin.used() == used


def test_an_allocation_of_a_plain_pool_is_the_whole_pool() -> None:
    trainer = Trainer(rows=512)
    plan = plan_in_force(trainer, shares=True)
    y = _output(trainer)
    begin, size = standin.allocation_around(y.data_ptr())
    assert size == plan.pool
    assert begin <= y.data_ptr() < y.data_ptr() + y.nbytes <= begin + size
    with pytest.raises(stalloc.StallocError, match="tensors lie in it"):
        stalloc.release_pool(partly=True)
    assert standin.allocation_around(y.data_ptr()) == (begin, size), "still registered"


def test_an_allocation_of_a_virtual_pool_is_a_chunk() -> None:
    trainer = Trainer(rows=512)
    plan_in_force(trainer)
    y = _output(trainer)
    begin, size = standin.allocation_around(y.data_ptr())
    assert begin <= y.data_ptr() < begin + size
    assert size < y.nbytes, "a registration of it does not cover the tensor"


def test_an_allocation_of_an_expandable_segment_is_a_part_of_it() -> None:
    result = run_alone(
        """
import standin, torch
torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
y = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
begin, size = standin.allocation_around(y.data_ptr())
assert begin <= y.data_ptr() < begin + size < y.data_ptr() + y.nbytes
"""
    )
    assert result.returncode == 0, result.stderr


def test_a_switch_without_memory_leaves_training_going() -> None:
    trainer = Trainer(rows=64)
    plan_in_force(trainer, shares=False)
    kept = []

    def roll_out() -> None:
        with stalloc.phase("rollout"):
            kept.append(torch.empty(GIB, dtype=torch.uint8, device="cuda"))
            standin.set_memory(0, standin.used() + MIB)

    with pytest.raises(stalloc.OutOfMemory, match="could not come back at phase 'rollout'"):
        roll_out()
    standin.set_memory(0, standin.used() + 2 * GIB)
    trainer.step()
    kept.clear()
    with stalloc.phase("train"):
        trainer.step()
        before = stalloc.memory_stats()
        trainer.step()
        after = stalloc.memory_stats()
    assert after["hits"] - before["hits"] == after["planned"]


def test_an_exception_in_a_phase_is_not_hidden_by_a_lack_of_memory() -> None:
    trainer = Trainer(rows=64)
    plan_in_force(trainer, shares=False)

    def roll_out() -> None:
        with stalloc.phase("rollout"):
            standin.set_memory(0, standin.used() + MIB)
            raise KeyError

    with pytest.warns(stalloc.StallocWarning, match="could not come back"):  # noqa: SIM117
        with pytest.raises(KeyError):
            roll_out()
    standin.set_memory(0, 80 * GIB)
    with stalloc.phase("train"):
        trainer.step()


def test_an_exception_in_a_turn_is_not_hidden_by_a_lack_of_memory() -> None:
    trainer = Trainer(rows=64)
    plan_in_force(trainer)

    class Worker:
        def offload_states(self, fails: bool = False) -> None:
            if fails:
                standin.set_memory(0, standin.used() + MIB)
                raise KeyError

        def reload_states(self) -> None:
            pass

    worker = Worker()
    stalloc.integrations.openrlhf.share(worker)
    worker.offload_states()
    with pytest.warns(stalloc.StallocWarning, match="could not come back"):  # noqa: SIM117
        with pytest.raises(KeyError):
            worker.offload_states(fails=True)


@pytest.mark.filterwarnings("ignore:stalloc. phase 'rollout' begins while tensors lie in")
@pytest.mark.parametrize("keeps_tensor", [False, True])
def test_an_exception_in_a_phase_is_not_hidden_by_a_lost_device(keeps_tensor: bool) -> None:
    trainer = Trainer(rows=64)
    plan_in_force(trainer)
    y = _output(trainer) if keeps_tensor else None

    def roll_out() -> None:
        with stalloc.phase("rollout"):
            standin.lose_device(700)
            raise KeyError

    with pytest.warns(stalloc.StallocWarning, match="illegal memory access"):  # noqa: SIM117
        with pytest.raises(KeyError):
            roll_out()
    standin.lose_device(0)
    del y
    with stalloc.phase("train"):
        trainer.step()


def test_a_driver_that_fails_at_a_switch_holds_no_memory() -> None:
    trainer = Trainer(rows=64)
    plan = plan_in_force(trainer)
    torch.cuda.empty_cache()
    used = standin.used()

    def roll_out() -> None:
        with stalloc.phase("rollout"):
            standin.fail("cuMemSetAccess", 1, 999)

    with pytest.raises(stalloc.StallocError, match="unknown error"):
        roll_out()
    assert standin.used() <= used - plan.pool
    with stalloc.phase("train"):
        trainer.step()
    torch.cuda.empty_cache()
    assert standin.used() == used


def _is_whole(tensor: torch.Tensor) -> bool:
    """True if the driver's allocation around the tensor holds all of it."""
    begin, size = standin.allocation_around(tensor.data_ptr())
    return tensor.data_ptr() + tensor.nbytes <= begin + size


def test_new_memory_is_plain_while_an_engine_works() -> None:
    plan = plan_in_force(Trainer(rows=1024), shares=False)
    assert plan.pool >= 256 * MIB, "torch's segments are expandable beside it"

    def request() -> torch.Tensor:
        return torch.empty(GIB, dtype=torch.uint8, device="cuda")

    assert not _is_whole(request())
    with stalloc.phase("rollout"):
        cache = request()
        assert _is_whole(cache)
        _return(_share(cache))
        with stalloc.phase("train"):
            assert not _is_whole(request())
        assert _is_whole(cache)
        assert _is_whole(request())
    del cache
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    assert not _is_whole(request())


def test_segments_are_plain_where_nccl_registers_memory() -> None:
    result = run_alone(
        """
import os
os.environ["TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"] = "1"
import torch
from test_engines import GIB, MIB, _is_whole, plan_in_force
from training_cuda import Trainer

assert plan_in_force(Trainer(rows=1024)).pool >= 256 * MIB
assert _is_whole(torch.empty(GIB, dtype=torch.uint8, device="cuda"))
"""
    )
    assert result.returncode == 0, result.stderr


def test_a_phase_leaves_the_memory_of_tensors_in_expandable_segments() -> None:
    trainer = Trainer(rows=1024)
    plan = plan_in_force(trainer, shares=False)
    assert plan.pool >= 256 * MIB
    weight = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    assert not _is_whole(weight)

    def memory() -> list[int]:
        return [standin.memory_at(weight.data_ptr() + at) for at in range(0, 64 * MIB, 2 * MIB)]

    registered = memory()
    assert 0 not in registered
    with stalloc.phase("rollout"):
        assert memory() == registered
    trainer.step()
    assert memory() == registered


_MEMORY = ("Create", "Map", "SetAccess", "Unmap", "Release", "AddressReserve", "AddressFree")
_CALLS = (
    *(f"cuMem{name}" for name in _MEMORY),
    "cudaMalloc",
    "cudaFree",
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
)


def _calls_of_a_switch() -> dict[str, int]:
    before = {name: standin.calls(name) for name in _CALLS}
    with stalloc.phase("rollout"):
        pass
    return {name: standin.calls(name) - before[name] for name in _CALLS}


def test_a_switch_and_back_costs_four_driver_calls_a_chunk() -> None:
    trainer = Trainer(rows=512)
    plan = plan_in_force(trainer, shares=False)
    torch.cuda.empty_cache()
    assert plan.pool >= 100 * MIB
    for _ in range(5):  # small chunks, since memory may move
        assert _calls_of_a_switch()["cuMemRelease"] * 2 * MIB >= plan.pool
        trainer.step()
    for _ in range(3):
        trainer.step()
        calls = _calls_of_a_switch()
        assert calls["cuMemCreate"] <= 17, calls
        assert sum(calls.values()) == 4 * calls["cuMemCreate"] + 2, calls


def test_a_tensor_in_a_large_chunk_brings_the_small_ones_back() -> None:
    trainer = Trainer(rows=512)
    plan = plan_in_force(trainer, shares=False)
    for _ in range(6):
        calls = _calls_of_a_switch()
    assert calls["cuMemCreate"] <= 17, "they are large"
    x = torch.empty(trainer.rows, trainer.width, device=trainer.device)
    y = trainer.model(x).detach()
    used = standin.used()
    with stalloc.phase("rollout"):
        kept = plan.pool - (used - standin.used())
        assert y.nbytes <= kept < plan.pool / 2
    del x, y
    stalloc.step()
    for _ in range(2):
        assert _calls_of_a_switch()["cuMemCreate"] * 2 * MIB >= plan.pool - 2 * MIB
        before = stalloc.memory_stats()
        trainer.step()
        after = stalloc.memory_stats()
        assert after["hits"] - before["hits"] == after["planned"]
