"""A rank of FSDP2 requests what `stalloc.estimate` says of it, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from isolation import run_isolated
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import stalloc

RANKS, BLOCKS, WIDTH, ROWS, STEPS = 4, 3, 256, 1024, 3
LEAST = 4096
"""Bytes of the requests to compare: smaller ones are numbers of which kernels differ."""

_distributed: Any = dist


class Block(nn.Module):
    """A large parameter and activations, of operators that need no scratch memory."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(ROWS, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.gelu(x * self.weight).tanh()


def step_of_a_rank() -> Any:
    with torch.device("cuda"):
        model: Any = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(torch.empty(ROWS, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


Requests = list[tuple[int, int]]  # size and stream, in the order of the last iteration


def last_iteration(trace: stalloc.Trace) -> Requests:
    requests = trace.requests
    begin, end = trace.iterations[STEPS - 1 : STEPS + 1]
    rows = (requests.lower >= begin) & (requests.lower < end) & (requests.size >= LEAST)
    streams = requests.stream[rows]
    # Streams are numbered by their first use, which may lie before the recording.
    _, numbers = np.unique(streams, return_inverse=True)
    return list(zip(requests.size[rows].tolist(), numbers.tolist(), strict=True))


def recorded() -> Requests:
    _distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    with stalloc.profile(device="cuda") as prof:
        step = step_of_a_rank()
        for _ in range(STEPS):
            step()
            prof.step()
    return last_iteration(prof.trace)


def estimated() -> Requests:
    def build() -> Any:
        _distributed.init_process_group("nccl")
        return step_of_a_rank()

    estimate = stalloc.estimate(build, world=RANKS, iterations=STEPS, plan=False)
    return last_iteration(estimate.trace)


def test_a_rank_requests_what_the_estimate_says() -> None:
    requests: Requests = run_isolated(recorded)
    assert len({stream for _, stream in requests}) == 3
    assert run_isolated(estimated) == requests
