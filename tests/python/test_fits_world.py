"""`stalloc fits --world`: a process that pretends to be one of many."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from fits_scripts import RANK
from isolation import isolated
from processes import python
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import stalloc
from stalloc.errors import StallocError

_fsdp: Any = FullyShardedDataParallel
_distributed: Any = dist

WIDTH = 256
BLOCK = 4 * (4 * WIDTH * WIDTH + WIDTH)  # bytes of a block's parameters


class Block(nn.Module):
    """Many parameters, few activations."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4 * WIDTH * WIDTH))
        self.scale = nn.Parameter(torch.empty(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + (x * self.scale + self.weight[:WIDTH]).tanh()


def blocks(count: int) -> nn.Module:
    return nn.Sequential(*(Block() for _ in range(count)))


def sharded(count: int) -> nn.Module:
    model: Any = blocks(count)
    for block in model:
        fully_shard(block)
    return fully_shard(model)


def flat(count: int) -> nn.Module:
    model: nn.Module = _fsdp(
        blocks(count), device_id=0, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True
    )
    return model


def replicated(count: int) -> nn.Module:
    return nn.parallel.DistributedDataParallel(blocks(count).cuda(), device_ids=[0])


def training(make: Any, count: int, optimizer: Any = torch.optim.AdamW) -> Any:
    def build() -> Any:
        _distributed.init_process_group("nccl")
        model = make(count)
        steps = optimizer(model.parameters())

        def step() -> None:
            model(torch.zeros(8, WIDTH, device="cuda")).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            steps.step()
            steps.zero_grad()

        return step

    return build


@isolated
@pytest.mark.parametrize("make", [sharded, flat])
def test_a_rank_has_its_shard_and_few_gathered_blocks(make: Any) -> None:
    small, large = (
        stalloc.estimate(training(make, count), world=4, plan=False) for count in (4, 8)
    )
    # Weights, gradients and two states of each further block, a fourth of each; no whole block.
    shard = 4 * 4 * BLOCK // 4
    assert 0 <= large.load - small.load - shard < shard // 8
    alone = stalloc.estimate(training(make, 8), world=1, plan=False)
    assert alone.load > 3 * large.load
    assert not _distributed.is_initialized()


@isolated
def test_requests_have_the_streams_of_sharding_and_their_order() -> None:
    estimate = stalloc.estimate(training(sharded, 4), world=4)
    trace = estimate.trace
    assert len(np.unique(trace.requests.stream)) >= 3
    assert len(trace.orders) > 0
    assert estimate.plan is not None
    assert estimate.need("stalloc").reserved < estimate.need("torch").reserved


@isolated
def test_a_mesh_shards_in_two_ways() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    def build() -> Any:
        mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("data", "tensor"))
        with torch.device("meta"):
            model: Any = nn.Sequential(
                nn.Linear(WIDTH, 4 * WIDTH, bias=False),
                nn.ReLU(),
                nn.Linear(4 * WIDTH, WIDTH, bias=False),
            )
        parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(model, mesh=mesh["data"])
        model.to_empty(device="cuda")
        for layer in (model[0], model[2]):
            layer.reset_parameters()
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            x = torch.randn(8, WIDTH, device=0)
            model(x + model(x)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return step

    estimate = stalloc.estimate(build, world=8, plan=False)
    whole = 2 * 4 * WIDTH * WIDTH * 4
    assert estimate.parts["weights and buffers"] == whole // 8
    assert estimate.parts["optimizer states"] == 2 * whole // 8


@isolated
def test_replicas_have_buckets_of_gradients() -> None:
    alone = stalloc.estimate(training(lambda count: blocks(count).cuda(), 4), world=1, plan=False)
    among = stalloc.estimate(training(replicated, 4), world=2, plan=False)
    weights = 4 * BLOCK
    assert weights <= among.load - alone.load < 1.1 * weights


@isolated
def test_another_rank_of_a_node_has_its_own_gpu() -> None:
    seen: list[Any] = []

    def made(count: int) -> nn.Module:
        device = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(device)
        model = nn.parallel.DistributedDataParallel(blocks(count).to(device), device_ids=[device])
        seen.append((device, torch.cuda.current_device(), next(model.parameters()).device.index))
        return model

    first = stalloc.estimate(training(made, 4), world=16, plan=False)
    other = stalloc.estimate(training(made, 4), world=16, rank=11, plan=False)
    assert seen == [(0, 0, 0), (3, 3, 3)]
    assert other.load == first.load


@isolated
def test_programs_tell_tensors_apart_by_their_addresses() -> None:
    seen: dict[str, Any] = {}

    def build() -> Any:
        first, second = (torch.zeros(8, device="cuda") for _ in range(2))
        seen["distinct"] = first.data_ptr() != second.data_ptr() != 0
        seen["same"] = first.view(2, 4).data_ptr() == first.data_ptr()
        seen["inside"] = first[2:].data_ptr() - first.data_ptr()
        storages = [t.untyped_storage().data_ptr() for t in (first, second)]
        seen["storages"] = storages == [first.data_ptr(), second.data_ptr()]
        seen["host"] = torch.zeros(4).data_ptr() % 64
        state = torch.get_rng_state()
        seen["random"] = torch.equal(state.cuda().cpu(), state)
        seen["losses"] = torch.tensor([first.sum(), second.sum()]).shape
        return training(lambda count: blocks(count).cuda(), 2)()

    stalloc.estimate(build, world=1, plan=False)
    assert seen == {
        "distinct": True,
        "same": True,
        "inside": 8,
        "storages": True,
        "host": 0,
        "random": True,
        "losses": (2,),
    }


@isolated
def test_counts_that_are_exchanged_stay_even() -> None:
    seen: list[int] = []

    def build() -> Any:
        _distributed.init_process_group("nccl")
        size = _distributed.get_world_size()
        router = nn.Linear(WIDTH, 8, device="cuda")
        optimizer = torch.optim.SGD(router.parameters(), lr=0.1)

        def step() -> None:
            scores = router(torch.zeros(1024, WIDTH, device="cuda"))
            counts = torch.bincount(scores.argmax(-1), minlength=8)
            received = torch.empty_like(counts)
            _distributed.all_to_all_single(received, counts)
            seen.extend(received.view(size, -1).sum(1).tolist())
            scores.sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    stalloc.estimate(build, world=4, plan=False)
    assert set(seen) == {1024 // 4}


@isolated
def test_a_hook_of_the_program_reduces() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    def hooked(count: int) -> Any:
        model: Any = replicated(count)
        model.register_comm_hook(None, bf16_compress_hook)
        return model

    plain = stalloc.estimate(training(replicated, 4), world=2, plan=False)
    halved = stalloc.estimate(training(hooked, 4), world=2, plan=False)
    assert len(halved.trace.requests) > len(plain.trace.requests)


@isolated
def test_an_optimizer_keeps_the_states_of_its_rank() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def zero(parameters: Any) -> Any:
        return ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.AdamW)

    whole = stalloc.estimate(training(replicated, 4), world=4, plan=False)
    part = stalloc.estimate(training(replicated, 4, zero), world=4, plan=False)
    states = 2 * 4 * BLOCK
    assert whole.parts["optimizer states"] == states
    assert part.parts["optimizer states"] == states // 4
    assert part.load < whole.load


@isolated
def test_collectives_on_the_host_give_what_equal_ranks_would() -> None:
    seen: dict[str, Any] = {}

    def build() -> Any:
        _distributed.init_process_group("gloo")
        rank, size = _distributed.get_rank(), _distributed.get_world_size()
        seen["place"] = (rank, size, os.environ["LOCAL_RANK"], torch.cuda.device_count())
        objects: list[Any] = [None] * size
        _distributed.all_gather_object(objects, {"rank": rank})
        seen["gathered"] = objects
        parts = [torch.zeros(2) for _ in range(size)]
        _distributed.all_gather(parts, torch.ones(2))
        seen["parts"] = torch.stack(parts).tolist()
        whole = torch.zeros(2 * size)
        _distributed.all_gather_into_tensor(whole, torch.ones(2))
        seen["whole"] = whole.tolist()
        part = torch.zeros(1)
        _distributed.reduce_scatter_tensor(part, torch.arange(float(size)))
        seen["part"] = part.tolist()
        _distributed.barrier()
        group = _distributed.new_group([0, rank], backend="gloo")
        seen["group"] = _distributed.get_world_size(group)
        seen["backend"] = _distributed.get_backend()
        weight = nn.Parameter(torch.zeros(8, device=f"cuda:{rank % 8}"))
        optimizer = torch.optim.SGD([weight], lr=0.1)

        def step() -> None:
            loss = weight.sum()
            loss.backward()
            _distributed.all_reduce(loss)
            optimizer.step()
            optimizer.zero_grad()

        return step

    before = dict(os.environ)
    stalloc.estimate(build, world=12, rank=9, plan=False)
    assert seen == {
        "place": (9, 12, "1", 8),
        "gathered": [{"rank": 9}] * 12,
        "parts": [[1.0, 1.0]] * 12,
        "whole": [1.0] * 24,
        "part": [9.0],
        "group": 2,
        "backend": "gloo",
    }
    assert dict(os.environ) == before
    assert not _distributed.is_initialized()


@isolated
def test_a_rank_that_is_not_there_is_refused() -> None:
    for rank in (-1, 4):
        with pytest.raises(StallocError, match=f"rank {rank}: there are 4 processes"):
            stalloc.estimate(training(sharded, 2), world=4, rank=rank)


SPAWNING = f"""{RANK}
if __name__ == "__main__":
    size = torch.cuda.device_count()
    mp.spawn(main, args=(size,), nprocs=size)
"""


def fits(
    folder: Path, text: str, *arguments: str, code: int = 0
) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(text)
    return python("-m", "stalloc", "fits", "--gpu", "H100", *arguments, str(script), code=code)


def test_a_script_that_spawns_is_one_of_its_processes(tmp_path: Path) -> None:
    done = fits(tmp_path, SPAWNING, "--world", "4")
    assert "NCCL" in done.stdout
    assert "3 iterations" in done.stdout


def test_a_script_of_several_processes_is_told_of_the_option(tmp_path: Path) -> None:
    text = SPAWNING.replace(", rank=rank, world_size=size", "").replace(
        "mp.spawn(main, args=(size,), nprocs=size)", "main(0, size)"
    )
    done = fits(tmp_path, text, code=2)
    assert done.stderr.splitlines()[-1].startswith("stalloc fits: no answer: train.py:6: ")
    assert "--world N" in done.stderr


@isolated
@pytest.mark.parametrize(("size", "rank"), [(2, 0), (2, 1), (8, 3)])
def test_each_rank_of_a_parallel_context_has_its_part_of_the_tokens(size: int, rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel

    seen: set[int] = set()

    def build() -> Any:
        _distributed.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (size,), mesh_dim_names=("cp",))
        layer = nn.Linear(64, 3 * 64, device="cuda", dtype=torch.bfloat16)

        def step() -> None:
            x = torch.zeros(2, 1024, 64, device="cuda", dtype=torch.bfloat16)
            with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1], no_restore_buffers={x}):
                seen.add(x.shape[1])
                parts = layer(x).view(2, -1, 3, 2, 32).permute(2, 0, 3, 1, 4)
                y = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
                y.sum().backward()
            layer.zero_grad()

        return step

    estimate = stalloc.estimate(build, world=size, rank=rank, plan=False)
    assert seen == {1024 // size}
    assert estimate.parts["weights and buffers"] == 2 * 3 * (64 * 64 + 64)
