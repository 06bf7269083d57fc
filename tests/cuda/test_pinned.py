"""Pinned host memory: profiled, planned and served, with copies that are late."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import standin
import torch
import torch.distributed as dist
from alone import run_alone
from isolation import isolated
from pinned import offload_weights
from torch.utils.data import DataLoader
from training_pinned import MIB, Buffers, Offloading, pinned

import stalloc
from stalloc import _core
from stalloc.driver import Driver
from stalloc.options import Options


def plans(trainer: Offloading, steps: int = 4) -> tuple[stalloc.Plan, stalloc.Plan]:
    with stalloc.profile(trainer.model, pinned=True) as prof:
        for _ in range(steps):
            trainer.step()
    return prof.plan(), prof.plan_pinned()


@pytest.fixture
def _late() -> Iterator[None]:
    """Work of new streams waits for a command."""
    standin.set_manual(True)
    yield
    standin.drain_all()
    standin.set_manual(False)


def test_offloaded_activations_lie_as_planned() -> None:
    trainer = Offloading(rows=24, width=1000)
    plan, pinned_plan = plans(trainer)
    assert pinned_plan.info["device"] == "pinned"
    assert pinned_plan.pool <= 1.01 * pinned_plan.load_bytes
    with stalloc.enable(plan, model=trainer.model, pinned=pinned_plan):
        trainer.step()
        calls = standin.calls("cudaHostAlloc")
        for _ in range(5):
            trainer.step()
        assert standin.calls("cudaHostAlloc") == calls
        stats = stalloc.memory_stats("pinned")
        assert stats["hit_rate"] == 1
        assert stats["peak_reserved"] <= 1.01 * stats["peak_allocated"]
        assert "pinned host memory" in stalloc.memory_summary()
    assert stalloc.memory_stats("pinned")["reserved"] == 0


def test_torchs_statistics_include_the_pool() -> None:
    trainer = Offloading(rows=24, width=1000)
    plan, pinned_plan = plans(trainer)
    with stalloc.enable(plan, model=trainer.model, pinned=pinned_plan):
        trainer.step()
        theirs = torch.cuda.host_memory_stats()
        assert theirs["allocated_bytes.current"] >= pinned_plan.pool


def test_blocks_lie_as_planned_if_copies_are_done() -> None:
    loop = Buffers()
    plan, pinned_plan = loop.plans()
    assert pinned_plan.pool == 5 * MIB
    loop.addresses.clear()
    with stalloc.enable(plan, model=loop.model, pinned=pinned_plan):
        loop.step()
    assert len(set(loop.addresses)) == 1


@pytest.mark.usefixtures("_late")
def test_a_block_waits_for_its_copies() -> None:
    """A copy that is late writes to the block after its tensor is gone."""
    loop = Buffers()
    plan, pinned_plan = loop.plans()
    source = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    side = torch.cuda.ExternalStream(standin.new_stream())
    kept: list[torch.Tensor] = []

    def copy(buffer: torch.Tensor) -> None:
        with torch.cuda.stream(side):
            buffer.copy_(source[: buffer.numel()], non_blocking=True)

    with stalloc.enable(plan, model=loop.model, pinned=pinned_plan):
        loop.copies = copy
        loop.addresses.clear()
        loop.step()
        assert len(set(loop.addresses)) == 3
        # More is served while these wait, and keeps its values when the copies arrive.
        loop.copies = lambda buffer: kept.append(buffer.fill_(7))
        loop.step()
        standin.drain_all()
        assert all(bool((buffer == 7).all()) for buffer in kept)
        kept.clear()
        # Then the planned addresses serve again.
        loop.copies = lambda buffer: None
        loop.step()
        loop.addresses.clear()
        loop.step()
        assert len(set(loop.addresses)) == 1
    standin.destroy_stream(side.cuda_stream)


@pytest.mark.usefixtures("_late")
def test_a_profile_has_the_end_of_the_copies() -> None:
    """A block that a copy still uses when the next request comes shares no address with that."""
    source = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    side = torch.cuda.ExternalStream(standin.new_stream())

    def copy(buffer: torch.Tensor) -> None:
        with torch.cuda.stream(side):
            buffer.copy_(source[: buffer.numel()], non_blocking=True)

    loop = Buffers(copy)
    with stalloc.profile(loop.model, pinned=True) as prof:
        for _ in range(3):
            loop.step()
            standin.drain_all()
    assert prof.plan_pinned().pool == 11 * MIB
    standin.destroy_stream(side.cuda_stream)


@pytest.mark.usefixtures("_late")
def test_copies_of_a_view_that_numpy_has_made_count() -> None:
    loop = Buffers()
    plan, pinned_plan = loop.plans()
    source = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    side = torch.cuda.ExternalStream(standin.new_stream())
    with stalloc.enable(plan, model=loop.model, pinned=pinned_plan):
        block = pinned(3 * MIB)
        view = torch.from_numpy(block.numpy()[MIB : 2 * MIB])
        with torch.cuda.stream(side):
            view.copy_(source, non_blocking=True)
        address = block.data_ptr()
        del view, block
        gc.collect()
        other = pinned(3 * MIB).fill_(7)
        assert other.data_ptr() != address
        standin.drain_all()
        assert bool((other == 7).all())
    standin.destroy_stream(side.cuda_stream)


def test_a_block_of_a_captured_copy_is_never_reused() -> None:
    """Each replay of the graph uses it again. It stays, so this has a process of its own."""
    result = run_alone(
        """
import torch, stalloc
from training_pinned import Buffers, pinned, MIB
loop = Buffers()
plan, pinned_plan = loop.plans()
source = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
with stalloc.enable(plan, model=loop.model, pinned=pinned_plan):
    block = pinned(3 * MIB)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        block.copy_(source, non_blocking=True)
    address = block.data_ptr()
    del block
    loop.addresses.clear()
    loop.step()
    loop.step()
    assert address not in loop.addresses
"""
    )
    assert result.returncode == 0, result.stderr


def test_requests_during_a_capture_are_torchs() -> None:
    loop = Buffers()
    plan, pinned_plan = loop.plans()
    source = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    with stalloc.enable(plan, model=loop.model, pinned=pinned_plan):
        before = stalloc.memory_stats("pinned")["requests"]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = pinned(3 * MIB)
            kept.copy_(source, non_blocking=True)
        assert stalloc.memory_stats("pinned")["requests"] == before
        del kept, graph


@pytest.mark.parametrize("ahead", [False, True])
def test_batches_of_a_data_loader_cost_their_size(ahead: bool) -> None:
    """Also if a thread of its own pins them."""
    rows = torch.arange(24 * 70_000, dtype=torch.int32).view(24, 70_000)

    def loader() -> Iterator[torch.Tensor]:
        return iter(DataLoader(rows, batch_size=4, pin_memory=True))  # type: ignore[arg-type]

    model = torch.nn.Linear(1, 1, device="cuda", bias=False)

    def train() -> None:
        for number, batch in enumerate(loader()):
            assert batch.is_pinned()
            batch.to("cuda", non_blocking=True)
            assert torch.equal(batch, rows[4 * number : 4 * number + 4])
            stalloc.step()

    def train_ahead() -> None:
        batches: list[torch.Tensor] = []
        pinner = threading.Thread(target=lambda: batches.extend(loader()))
        pinner.start()
        pinner.join()
        for number, batch in enumerate(batches):
            batch.to("cuda", non_blocking=True)
            assert torch.equal(batch, rows[4 * number : 4 * number + 4])
            stalloc.step()

    run = train_ahead if ahead else train
    with stalloc.profile(model, pinned=True) as prof:
        run()
    with stalloc.enable(prof.plan(), model=model, pinned=prof.plan_pinned()):
        calls = standin.calls("cudaHostAlloc")
        run()
        assert standin.calls("cudaHostAlloc") == calls
        stats = stalloc.memory_stats("pinned")
        assert stats["peak_reserved"] <= 1.01 * stats["peak_allocated"]


@isolated
def test_fsdp2_offloads_to_the_pool() -> None:
    run = offload_weights()

    def step() -> None:
        run()
        stalloc.step()

    with stalloc.profile(device="cuda", pinned=True) as prof:
        for _ in range(4):
            step()
    pinned_plan = prof.plan_pinned()
    assert pinned_plan.pool <= 1.01 * pinned_plan.load_bytes
    stalloc.enable(prof.plan(), pinned=pinned_plan)
    step()
    calls, waits = standin.calls("cudaHostAlloc"), standin.host_waits()
    for _ in range(4):
        step()
    assert standin.calls("cudaHostAlloc") == calls
    assert standin.host_waits() == waits
    assert stalloc.memory_stats("pinned")["hit_rate"] == 1
    assert standin.misuses() == 0, standin.complaint()
    stalloc.disable()
    dist.destroy_process_group()


def test_a_driver_plans_it_if_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLOC_PINNED", "1")
    trainer = Offloading(rows=24, width=1000)
    for _ in range(2):  # the second one finds the plans
        driver = Driver(Options(folder=tmp_path, warmup=1, iterations=4, strict=True))
        for _ in range(8):
            with driver.iteration(trainer.model):
                trainer.step()
        stats = stalloc.memory_stats("pinned")
        assert stats["enabled"]
        assert stats["hit_rate"] == 1
        driver.finish()
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {
        f"rank0.{kind}.json" for kind in ("plan", "trace", "pinned.plan", "pinned.trace")
    }


def test_growing_batches_of_a_thread_take_no_more_than_the_largest_two() -> None:
    loop = Buffers()
    plan, pinned_plan = loop.plans()

    def pin() -> None:
        last = pinned(MIB)
        for size in range(2 * MIB, 8 * MIB, MIB // 4):
            last = pinned(size)
        del last

    with stalloc.enable(plan, model=loop.model, pinned=pinned_plan):
        thread = threading.Thread(target=pin)
        thread.start()
        thread.join()
        stats = stalloc.memory_stats("pinned")
        assert stats["peak_reserved"] <= pinned_plan.pool + 16 * MIB


@pytest.mark.usefixtures("_late")
@pytest.mark.parametrize("seed", range(4))
def test_values_stay_under_any_departure(seed: int) -> None:
    """Several threads, sizes that were not planned, late copies to both GPUs, tensors that stay."""
    loop = Buffers()
    plan, pinned_plan = loop.plans()
    handles = [standin.new_stream() for _ in range(2)]
    with torch.cuda.device(1):
        handles.append(standin.new_stream())
    streams = [torch.cuda.ExternalStream(h, device=int(i == 2)) for i, h in enumerate(handles)]
    gpus = [torch.empty(6 * MIB, dtype=torch.uint8, device=f"cuda:{i}") for i in (0, 0, 1)]
    failures: list[BaseException] = []

    def work(number: int, steps: int, loops: bool) -> None:
        rng = random.Random(10 * seed + number)
        live: list[tuple[torch.Tensor, int]] = []
        for step in range(steps):
            size = rng.choice([3 * MIB, 5 * MIB, 3 * MIB, rng.randrange(1, 6 * MIB)])
            value = rng.randrange(1, 256)
            live.append((pinned(size).fill_(value), value))
            which = rng.randrange(3)
            if rng.random() < 0.6:
                with torch.cuda.stream(streams[which]):
                    if rng.random() < 0.5:
                        tensor, value = rng.choice(live)
                        gpus[which][: tensor.numel()].copy_(tensor, non_blocking=True)
                    else:  # zeros, some time
                        tensor, value = live.pop()
                        tensor.copy_(gpus[which][: tensor.numel()], non_blocking=True)
                del tensor
            if rng.random() < 0.5:
                standin.advance(handles[which], rng.randrange(3))
            while len(live) > rng.randrange(5):
                tensor, value = live.pop(rng.randrange(len(live)))
                assert bool((tensor == value).all()), "a value is lost"
            if loops and step % 5 == 4:
                stalloc.step()

    def guarded(number: int) -> None:
        try:
            work(number, 60, loops=False)
        except BaseException as e:
            failures.append(e)

    with stalloc.enable(plan, model=loop.model, pinned=pinned_plan):
        threads = [threading.Thread(target=guarded, args=(n,)) for n in (1, 2)]
        for thread in threads:
            thread.start()
        work(0, 60, loops=True)
        for thread in threads:
            thread.join()
        _core.runtime("pinned").check()
    assert not failures, failures
    standin.drain_all()
    torch.cuda.synchronize(1)
    for handle in handles:
        standin.destroy_stream(handle)


def test_live_blocks_outlive_the_plan() -> None:
    loop = Buffers()
    plan, pinned_plan = loop.plans()
    with stalloc.enable(plan, model=loop.model, pinned=pinned_plan):
        kept = pinned(3 * MIB).fill_(7)
    assert stalloc.memory_stats("pinned")["reserved"] >= 5 * MIB
    assert bool((kept == 7).all())
    del kept
    assert stalloc.memory_stats("pinned")["reserved"] == 0


def test_a_plan_replaces_another() -> None:
    loop = Buffers()
    plan, pinned_plan = loop.plans()
    stalloc.enable(plan, model=loop.model, pinned=pinned_plan)
    with stalloc.enable(plan, model=loop.model):
        assert not stalloc.memory_stats("pinned")["enabled"]
    stalloc.enable(plan, model=loop.model, pinned=pinned_plan)
    with stalloc.enable(plan, model=loop.model, pinned=pinned_plan):
        loop.step()
        assert stalloc.memory_stats("pinned")["hit_rate"] == 1


def test_a_system_that_locks_no_memory_leaves_everything_as_it_was(tmp_path: Path) -> None:
    loop = Buffers()
    plan, pinned_plan = loop.plans()
    file = tmp_path / "pinned.json"
    pinned_plan.save(file)
    standin.fail("cudaHostAlloc", 1, 2)
    with pytest.raises(stalloc.OutOfMemory, match="pinned"):
        stalloc.enable(plan, model=loop.model, pinned=file)
    assert not stalloc.memory_stats("cuda:0")["enabled"]
    with stalloc.enable(plan, model=loop.model, pinned=file):
        # torch reports what is beside the pool and cannot be had.
        standin.fail("cudaHostAlloc", 1, 2, times=10)
        with pytest.raises(RuntimeError, match="out of memory"):
            pinned(64 * MIB)
        standin.fail("cudaHostAlloc", 0, 0, times=0)
        loop.step()


def test_wrong_uses_are_refused() -> None:
    loop = Buffers()
    plan, pinned_plan = loop.plans()
    with pytest.raises(stalloc.StallocError, match="beside a GPU"):
        stalloc.profile(torch.nn.Linear(1, 1), pinned=True)
    with pytest.raises(stalloc.PlanError, match="plan_pinned"):
        stalloc.enable(plan, pinned=plan)
    with pytest.raises(stalloc.StallocError, match="pinned="):
        stalloc.enable(pinned_plan)
    for sizes in ("[0]", "[1.5]", "3", "[", '["a"]', f"[{1 << 60}]"):
        pinned_plan.info = pinned_plan.info | {"other_threads": sizes}
        with pytest.raises(stalloc.PlanError, match="other_threads"):
            stalloc.enable(plan, pinned=pinned_plan)
    with pytest.raises(TypeError, match="pinned"):
        stalloc.enable(plan, pinned=3)  # type: ignore[arg-type]
    with stalloc.profile(loop.model) as prof:
        loop.step()
    with pytest.raises(stalloc.StallocError, match="not recorded"):
        prof.plan_pinned()


def test_a_forked_child_leaves_the_pool_alone() -> None:
    result = run_alone(
        """
import os, sys, torch, stalloc
from training_pinned import Buffers, pinned, MIB
loop = Buffers()
plan, pinned_plan = loop.plans()
stalloc.enable(plan, model=loop.model, pinned=pinned_plan)
block = pinned(3 * MIB).fill_(7)
child = os.fork()
if child == 0:
    good = block[0].item() == 7
    del block
    os._exit(0 if good else 1)
assert os.waitpid(child, 0)[1] == 0
assert block[0].item() == 7
"""
    )
    assert result.returncode == 0, result.stderr


def test_nothing_changes_without_a_plan() -> None:
    """A power of two, from torch."""
    torch._C._host_emptyCache()  # type: ignore[attr-defined]
    before = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    kept = pinned(9 * MIB)
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] - before == 16 * MIB
    assert kept.is_pinned()


@pytest.mark.usefixtures("_late")
@pytest.mark.parametrize("call", ["cudaEventRecord", "cudaEventQuery"])
def test_a_block_whose_event_fails_waits_for_the_device(call: str) -> None:
    loop = Buffers()
    plan, pinned_plan = loop.plans()
    source = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    side = torch.cuda.ExternalStream(standin.new_stream())
    with stalloc.enable(plan, model=loop.model, pinned=pinned_plan):
        loop.step()
        block = pinned(3 * MIB)
        address = block.data_ptr()
        with torch.cuda.stream(side):
            block.copy_(source, non_blocking=True)
        standin.fail(call, 1, 700)
        del block
        others = [pinned(3 * MIB).fill_(7) for _ in range(3)]
        assert address not in [other.data_ptr() for other in others]
        stalloc.step()  # waits for the device
        assert all(bool((other == 7).all()) for other in others)
        del others
        loop.addresses.clear()
        loop.step()
        assert address in loop.addresses
    standin.destroy_stream(side.cuda_stream)


class Behind(Buffers):
    """The GPU is behind the host: by one copy, or by an iteration."""

    def __init__(self, by_iteration: bool) -> None:
        super().__init__(self._copy)
        self._by_iteration = by_iteration
        self._source = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
        self.sides = [torch.cuda.ExternalStream(standin.new_stream()) for _ in range(2)]

    def _copy(self, buffer: torch.Tensor) -> None:
        with torch.cuda.stream(self.sides[0]):
            buffer.copy_(self._source[: buffer.numel()], non_blocking=True)
        if not self._by_iteration:
            self._go_on()

    def _go_on(self) -> None:
        self.sides.reverse()
        standin.advance(self.sides[0].cuda_stream, 1000)

    def step(self) -> None:
        super().step()
        if self._by_iteration:
            self._go_on()


@pytest.mark.usefixtures("_late")
@pytest.mark.parametrize("by_iteration", [False, True])
def test_a_gpu_that_stays_behind_takes_no_more_and_more(by_iteration: bool) -> None:
    loop = Behind(by_iteration)
    with stalloc.profile(loop.model, pinned=True) as prof:
        for _ in range(6):
            loop.step()
    with stalloc.enable(prof.plan(), model=loop.model, pinned=prof.plan_pinned()):
        for _ in range(8):
            loop.step()
        calls = standin.calls("cudaHostAlloc")
        before = stalloc.memory_stats("pinned")
        for _ in range(6):
            loop.step()
        after = stalloc.memory_stats("pinned")
        assert standin.calls("cudaHostAlloc") == calls
        if not by_iteration:
            assert after["hits"] - before["hits"] == 6 * after["planned"]
            assert after["planned"] == 3
    for side in loop.sides:
        standin.destroy_stream(side.cuda_stream)
