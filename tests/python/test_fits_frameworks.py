"""`stalloc fits`: calls by which frameworks ask torch, their GPU or their groups for something."""

from __future__ import annotations

import copy
import datetime
import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from isolation import isolated
from torch import Tensor, nn

import stalloc
from stalloc.errors import StallocError

_distributed: Any = dist


def training(begin: Any, end: Any = lambda loss: True, world: int | None = None) -> Any:
    def build() -> Any:
        begin()
        model = nn.Linear(64, 64).cuda()
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            loss = model(torch.zeros(4, 64, device="cuda")).sum()
            loss.backward()
            if end(loss):
                optimizer.step()
            optimizer.zero_grad()

        return step

    return stalloc.estimate(build, world=world, plan=False)


@isolated
def test_a_search_for_overflows_finds_none() -> None:
    def has_overflow(loss: Tensor) -> bool:
        return bool(torch.isnan(loss).to(torch.uint8).reshape(1)[0].item())

    estimate = training(lambda: None, lambda loss: not has_overflow(loss))
    assert "optimizer states" in estimate.parts
    assert {guess.value for guess in estimate.guesses} == {"0"}


@isolated
def test_statistics_of_memory_have_all_keys() -> None:
    seen: list[Any] = []

    def begin() -> None:
        statistics: Any = torch.cuda.memory_stats()
        seen.append(statistics["active_bytes.all.peak"])

    training(begin)
    assert seen == [0]


@isolated
def test_a_model_without_memory_is_copied() -> None:
    seen: list[Any] = []

    def begin() -> None:
        model = copy.deepcopy(nn.Linear(64, 64, device="meta"))
        seen.append(model.to_empty(device="cuda").weight.device.type)

    training(begin)
    assert seen == ["cuda"]


@isolated
def test_groups_of_nccl_have_options_and_timeouts() -> None:
    def begin() -> None:
        _distributed.init_process_group("nccl")
        options: Any = _distributed.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        options.config.max_ctas = 8
        group = _distributed.new_group([0, 1], pg_options=options)
        _distributed.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=9), group)

    assert training(begin, world=4).iterations == 3


@isolated
def test_a_rank_finds_what_a_launcher_sets() -> None:
    seen: dict[str, str] = {}
    names = ["GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"]

    def begin() -> None:
        seen.update({name: os.environ[name] for name in names})

    training(begin, world=16)
    assert list(seen.values()) == ["2", "0", "16", "0"]


@isolated
def test_flexible_attention_keeps_what_its_kernels_do() -> None:
    from torch.nn.attention import flex_attention as attention

    module: Any = attention
    batch, heads, length, width = 2, 4, 256, 32

    def build(count: int) -> Any:
        weight = nn.Parameter(torch.zeros(width, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        mask = module.create_block_mask(
            lambda b, h, q, k: q >= k, None, None, length, length, device="cuda"
        )

        def step() -> None:
            x = torch.zeros(batch, heads, length, width, device="cuda") * weight
            for _ in range(count):
                x = module.flex_attention(x, x, x, block_mask=mask)
            x.sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    few, many = (stalloc.estimate(lambda n=n: build(n), plan=False).load for n in (4, 8))
    rows = batch * heads * length
    assert many - few == 4 * (rows * width * 4 + rows * 4)


@isolated
def test_a_graph_is_captured_but_not_replayed() -> None:
    graphs: list[Any] = []

    def begin() -> None:
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(
            graphs[0], pool=torch.cuda.graph_pool_handle(), stream=torch.cuda.Stream()
        ):
            pass

    assert training(begin).iterations == 3
    with pytest.raises(StallocError, match=r"test_fits_frameworks.py:\d+: .*replays a CUDA graph"):
        training(begin, lambda loss: graphs[-1].replay())
