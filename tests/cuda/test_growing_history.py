"""What torch tells of memory beside a pool that grows and whose memory moves."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import standin
import torch
from isolation import isolated
from known_memory import KnownMemory, joined, overlaps

import stalloc

MIB = 1 << 20


class Layers(torch.nn.Module):
    """Sixteen activations of the input's size; calls `within` after each."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.empty(MIB // 2) for _ in range(16))
        self.within: Callable[[int], object] = lambda layer: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, weight in enumerate(self.weights):
            x = (x + weight.mean()).tanh()
            self.within(layer)
        return x


def step(model: torch.nn.Module, mib: int) -> None:
    model(torch.empty(mib * MIB // 4, device="cuda")).sum().backward()
    model.zero_grad()
    stalloc.step()


def large_plan(model: torch.nn.Module) -> stalloc.Plan:
    """One beside which torch's segments expand."""
    with stalloc.profile(model) as prof:
        for mib in (8, 16, 24):
            step(model, mib)
    return prof.plan()


class Memory:
    """The memory and the live blocks of a device, as the entries of the history tell them."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self.held = KnownMemory()
        self.live: dict[int, int] = {}  # the sizes of blocks, by address
        self.unmapped = 0
        for entry in entries:
            self._follow(entry["action"], entry["addr"], entry["size"])

    def _follow(self, action: str, begin: int, size: int) -> None:
        if action in ("segment_alloc", "segment_map"):
            self.held.add(begin, size)
        elif action in ("segment_free", "segment_unmap"):
            assert not overlaps(self.live, begin, size), "memory goes under a block"
            self.held.remove(begin, size)
            self.unmapped += action == "segment_unmap"
        elif action == "alloc":
            assert not overlaps(self.live, begin, size), "a block where one is"
            self.live[begin] = size
        elif action == "free_completed":
            assert self.live.pop(begin) == size


def history_and_snapshot_agree() -> Memory:
    """Checks a snapshot against the history since the process began, and against statistics."""
    snapshot = torch.cuda.memory._snapshot()
    memory = Memory(snapshot["device_traces"][0])
    shown = [s for s in snapshot["segments"] if s["device"] == 0]
    assert joined({s["address"]: s["total_size"] for s in shown}) == joined(memory.held.ranges)
    for segment in shown:
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]
    blocks = [b for s in shown for b in s["blocks"] if b["state"] != "inactive"]
    assert {b["address"]: b["requested_size"] for b in blocks} == memory.live
    assert sum(s["total_size"] for s in shown) == torch.cuda.memory_reserved()
    assert sum(s["allocated_size"] for s in shown) == torch.cuda.memory_allocated()
    return memory


@pytest.mark.parametrize("seed", range(3))
@isolated
def test_the_history_of_memory_that_moves_tells_what_a_snapshot_shows(seed: int) -> None:
    """Beside blocks that stay, and blocks that other streams still use when they are freed."""
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(max_entries=10**6, stacks="python")
    rng = random.Random(seed)
    model = Layers().to("cuda")
    plan = large_plan(model)
    side, kept = torch.cuda.Stream(), []
    with stalloc.enable(plan, model=model):
        for _ in range(10):
            chosen = rng.randrange(16)

            def within(layer: int, chosen: int = chosen) -> None:
                for _ in range(rng.randrange(6) if layer == chosen else 0):
                    size = rng.choice([1, 5, 20, 60, 130]) * MIB + rng.randrange(5000)
                    tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
                    if rng.random() < 0.5:
                        kept.append(tensor)
                    else:
                        tensor.record_stream(side)

            model.within = within
            step(model, rng.choice([8, 16, 24, 32, 48, 64]))
            del kept[:-6]
            history_and_snapshot_agree()
        assert history_and_snapshot_agree().unmapped > 0, "no memory moved"
    kept.clear()
    history_and_snapshot_agree()


def share(tensor: torch.Tensor) -> object:
    return tensor.untyped_storage()._share_cuda_()


def beside_the_pool() -> torch.Tensor:
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        return torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")


@isolated
def test_what_cannot_be_shared_beside_a_large_pool_says_how_it_can() -> None:
    """A driver that shares no virtual memory: neither the pool nor expandable segments."""
    standin.fail("cuMemExportToShareableHandle", 1, 801, times=1000)
    model = Layers().to("cuda")
    plan = large_plan(model)
    with stalloc.enable(plan, model=model):
        step(model, 24)
        activation = model(torch.empty(24 * MIB // 4, device="cuda"))
        beside = beside_the_pool()
        with pytest.raises(RuntimeError, match=r"stalloc's pool.*keep_addresses=False"):
            share(activation)
        with pytest.raises(RuntimeError, match=r"(?s)turned .* on .*keep_addresses=False"):
            share(beside)
        del activation, beside
    with stalloc.enable(plan, model=model, keep_addresses=False):
        step(model, 24)
        share(model(torch.empty(24 * MIB // 4, device="cuda")))
        share(beside_the_pool())
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    with pytest.raises(RuntimeError) as error:
        share(beside_the_pool())
    assert "stalloc has turned" not in str(error.value), "the program has chosen them itself"
