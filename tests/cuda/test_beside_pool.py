"""Torch's allocator beside a growing pool: its segments, and what it caches."""

from __future__ import annotations

import os
import sys
import types

import pytest
import torch
from isolation import isolated

import stalloc

MIB = 1 << 20


class Layers(torch.nn.Module):
    """Weights of 32 MiB, and activations of `size` MiB for each of 16 layers."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.empty(MIB // 2) for _ in range(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = (x + weight.mean()).tanh()
        return x


def step(model: torch.nn.Module, mib: int) -> None:
    model(torch.empty(mib * MIB // 4, device="cuda")).sum().backward()
    model.zero_grad()
    stalloc.step()


def plan_of(model: torch.nn.Module, *sizes: int) -> stalloc.Plan:
    with stalloc.profile(model) as prof:
        for mib in sizes:
            step(model, mib)
    return prof.plan()


def setting() -> str:
    """Torch's setting of expandable segments; the size of their pages is left out."""
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    return str(settings["PYTORCH_CUDA_ALLOC_CONF"]).partition(",")[0]


@isolated
def test_segments_expand_while_a_large_plan_is_in_force() -> None:
    model = Layers().to("cuda")
    plan = plan_of(model, 20, 20, 20)
    assert setting() == ""
    with stalloc.enable(plan, model=model):
        assert setting() == "expandable_segments:True"
        stalloc.enable(plan, model=model)  # in the place of the first one
        assert setting() == "expandable_segments:True"
        stalloc.enable(plan, model=model, keep_addresses=False)
        assert setting() == "expandable_segments:False", "the pool is plain memory"
        stalloc.enable(plan, model=model)
        stalloc.disable()
        assert setting() == "expandable_segments:False"
    with stalloc.enable(plan, model=model):
        assert setting() == "expandable_segments:True", "the setting was stalloc's own"


@isolated
def test_segments_expand_in_one_of_several_processes() -> None:
    os.environ["WORLD_SIZE"] = "2"
    model = Layers().to("cuda")
    with stalloc.enable(plan_of(model, 20, 20, 20), model=model):
        assert setting() == "expandable_segments:True"


@pytest.mark.parametrize("why", ["small", "plain", "chosen", "engine", "registered"])
@isolated
def test_segments_stay_as_they_are(why: str) -> None:
    if why == "engine":
        os.environ["WORLD_SIZE"] = "2"
        sys.modules["vllm"] = types.ModuleType("vllm")
    if why == "registered":
        os.environ["NCCL_GRAPH_REGISTER"] = "1"
    model = Layers().to("cuda")
    plan = plan_of(model, *[1 if why == "small" else 20] * 3)
    if why == "chosen":
        torch._C._accelerator_setAllocatorSettings("max_split_size_mb:512")
    before = setting()
    with stalloc.enable(plan, model=model, keep_addresses=False if why == "plain" else None):
        assert setting() == before
    assert setting() == before


def cached_by_torch() -> int:
    stats = stalloc.memory_stats()
    return stats["fallback_reserved"] - stats["fallback_allocated"]


@isolated
def test_torch_gives_back_its_cache_when_the_pool_grows() -> None:
    model = Layers().to("cuda")
    plan = plan_of(model, 8, 16, 24)
    with stalloc.enable(plan, model=model):
        step(model, 24)
        for _ in range(1000):
            assert cached_by_torch() <= 32 * MIB
            torch.empty(1024 * MIB, dtype=torch.uint8, device="cuda")  # larger than the pool
            assert cached_by_torch() >= 1024 * MIB
            # Each gives way to the other, until memory has moved often enough.
            step(model, 24)
            if (cached := cached_by_torch()) >= 1024 * MIB:
                break
        else:
            pytest.fail("torch gives back what it uses again and again")
        pool = stalloc.memory_stats()["pool"]
        step(model, 48)
        step(model, 48)
        assert stalloc.memory_stats()["pool"] > pool
        assert cached_by_torch() <= cached // 4


@isolated
def test_torch_gives_back_its_cache_before_the_pool_takes_memory_back() -> None:
    model = Layers().to("cuda")
    plan = plan_of(model, 24, 24, 24)
    large = 512

    def use_more(*_: object) -> None:
        torch.empty(large * MIB, dtype=torch.uint8, device="cuda")

    with stalloc.enable(plan, model=model):
        for _ in range(3):
            step(model, 24)
        held = torch.cuda.max_memory_reserved()
        with model.register_forward_pre_hook(use_more):
            step(model, 24)
        # The pool's idle memory went, and came back within the phase.
        pool = stalloc.memory_stats()["pool"]
        assert torch.cuda.max_memory_reserved() <= max(held, large * MIB + held - pool) + 64 * MIB


@isolated
def test_the_pool_gives_way_although_a_private_pool_caches_a_block() -> None:
    """It does not serve requests outside of it, such as those of another stream."""
    model = Layers().to("cuda")
    plan = plan_of(model, 20, 20, 20)
    private = torch.cuda.MemPool()
    with stalloc.enable(plan, model=model):
        with torch.cuda.use_mem_pool(private):
            torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")  # and gone
        for _ in range(4):
            step(model, 20)
        peak = torch.cuda.max_memory_reserved()
        with torch.cuda.stream(torch.cuda.Stream()):
            kept = [torch.empty(24 * MIB, dtype=torch.uint8, device="cuda") for _ in range(6)]
        rise = torch.cuda.max_memory_reserved() - peak
    assert rise < sum(block.nbytes for block in kept) // 2
