"""FSDP2, whose gathers and scatters have streams of their own, under plans of both kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import standin
import torch
import torch.distributed as dist
from fsdp import sharded
from isolation import isolated

import stalloc

WIDTH = 1024


def training() -> tuple[torch.nn.Module, Callable[[], None]]:
    """A model whose collectives do nothing, as no result is ever looked at; and its step."""
    model = sharded(8, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        x = torch.empty(4096, WIDTH, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


@pytest.mark.parametrize("streams", ["separate", "ordered", "auto"])
@isolated
def test_every_stream_is_served_and_turns_make_the_pool_smaller(
    streams: Literal["separate", "ordered", "auto"],
) -> None:
    model, train = training()

    def step() -> None:
        train()
        stalloc.step()

    with stalloc.profile(model) as prof:
        for _ in range(4):
            step()
    plan = prof.plan(streams=streams)
    assert len(set(plan.decisions.stream.tolist())) == 3
    separate = prof.plan(streams="separate").pool
    assert (plan.pool < separate) == (streams != "separate")
    if streams == "auto":  # nearly as small, and nothing waits that FSDP2 does not order itself
        ordered = prof.plan(streams="ordered").pool
        assert 10 * (plan.pool - ordered) < separate - ordered
    stalloc.enable(plan, model=model)
    for _ in range(6):
        step()
    settled, host_waits = stalloc.memory_stats(), standin.host_waits()
    all_waits = standin.calls("cudaStreamWaitEvent")
    for _ in range(3):
        step()
    stats = stalloc.memory_stats()
    assert stats["hits"] - settled["hits"] == 3 * stats["planned"]
    assert stats["fallback_requests"] == settled["fallback_requests"]
    waits = stats["stream_waits"] - settled["stream_waits"]
    assert (waits > 0) == (streams != "separate")
    if streams == "auto":
        assert waits <= standin.calls("cudaStreamWaitEvent") - all_waits - waits
    assert standin.host_waits() == host_waits
    assert standin.hazards() + standin.misuses() == 0, standin.complaint()
    stalloc.disable()
    dist.destroy_process_group()


@isolated
def test_auto_lets_streams_share_addresses() -> None:
    stalloc.auto(device="cuda")
    _, step = training()
    for _ in range(10_000):  # until the plan is solved, beside the training
        step()
        if stalloc.status()["stage"] in ("serving", "resting"):
            break
    for _ in range(3):
        step()
    stats = stalloc.memory_stats("cuda")
    assert stats["iterations"] >= 3
    assert stats["stream_waits"] > 0
    assert standin.hazards() + standin.misuses() == 0, standin.complaint()
    stalloc.disable()
    dist.destroy_process_group()
