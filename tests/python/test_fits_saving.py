"""`stalloc fits`: saving is left out, and states may lie on the host."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from isolation import isolated
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FullStateDictConfig,
    FullyShardedDataParallel,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import stalloc

_checkpoint: Any = checkpoint
_distributed: Any = dist
_fsdp: Any = FullyShardedDataParallel
WIDTH = 256
NOWHERE = Path(tempfile.gettempdir(), f"stalloc-{os.getpid()}")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(self.inner(x).relu())


def blocks() -> Any:
    return nn.Sequential(*(Block() for _ in range(4)))


def sharded(**options: Any) -> Any:
    model = blocks()
    for block in model:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def flat(**options: Any) -> Any:
    return _fsdp(blocks(), device_id=0, auto_wrap_policy=ModuleWrapPolicy({Block}), **options)


def training(make: Callable[[], Any], end: Callable[[Any, Any], None] | None = None) -> Any:
    def build() -> Any:
        _distributed.init_process_group("nccl")
        model = make()
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            model(torch.zeros(8, WIDTH, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if end is not None:
                end(model, optimizer)

        return step

    return stalloc.estimate(build, world=4, plan=False)


def saved(model: Any, optimizer: Any) -> None:
    weights, states = get_state_dict(model, optimizer)
    _checkpoint.save({"weights": weights, "states": states}, checkpoint_id=NOWHERE)
    pending = _checkpoint.async_save({"weights": weights}, checkpoint_id=NOWHERE)
    pending.result()


@isolated
def test_distributed_checkpoints_are_not_written() -> None:
    estimate = training(sharded, saved)
    assert not NOWHERE.exists()
    assert estimate.load == training(sharded).load
    written = {guess.read for guess in estimate.guesses if guess.value == "nothing is written"}
    assert written == {"torch's save", "torch's async_save"}


@isolated
@pytest.mark.parametrize("original", [False, True])
def test_whole_states_of_flat_shards_are_gathered(original: bool) -> None:
    seen: list[Any] = []

    def whole(model: Any, optimizer: Any) -> None:
        config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        with _fsdp.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
            weights = model.state_dict()
            states = _fsdp.optim_state_dict(model, optimizer)
        seen.append(weights["0.inner.weight"])
        torch.save((weights, states), NOWHERE)

    estimate = training(lambda: flat(use_orig_params=original), whole)
    assert not NOWHERE.exists()
    assert {(weight.shape, weight.device.type) for weight in seen} == {((4 * WIDTH, WIDTH), "cpu")}
    assert estimate.load >= training(lambda: flat(use_orig_params=original)).load


@isolated
@pytest.mark.parametrize("version", [1, 2])
def test_offloaded_shards_take_no_memory_of_the_gpu(version: int) -> None:
    make: Callable[[], Any] = (
        (lambda: flat(cpu_offload=CPUOffload(offload_params=True)))
        if version == 1
        else (lambda: sharded(offload_policy=CPUOffloadPolicy()))
    )
    offloaded, kept = training(make), training(flat if version == 1 else sharded)
    assert "optimizer states" not in offloaded.parts
    assert offloaded.parts.get("weights and buffers", 0) < kept.parts["weights and buffers"]
    assert offloaded.load < kept.load


FRAMEWORK = """
def save_checkpoint(path):
    open(path, "w").close()
"""


@isolated
def test_a_framework_that_is_imported_later_saves_nothing() -> None:
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "megatron", "training")
        package.mkdir(parents=True)
        (package / "checkpointing.py").write_text(FRAMEWORK)
        sys.path.insert(0, folder)
        target = Path(folder, "written")

        def end(model: Any, optimizer: Any) -> None:
            from megatron.training.checkpointing import (  # type: ignore[import-not-found]
                save_checkpoint,
            )

            save_checkpoint(target)

        estimate = training(sharded, end)
        assert not target.exists()
        assert any("save_checkpoint" in guess.read for guess in estimate.guesses)
        sys.modules["megatron.training.checkpointing"].save_checkpoint(target)
        assert target.exists()


@isolated
def test_a_parameter_that_others_refer_to_moves() -> None:
    import weakref

    seen: list[Any] = []

    def build() -> Any:
        model = nn.Linear(WIDTH, WIDTH)
        known = weakref.ref(model.weight)
        model.half().cuda()
        seen.append((known() is model.weight, model.weight.device.type, model.weight.dtype))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            model(torch.zeros(8, WIDTH, device="cuda", dtype=torch.half)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    estimate = stalloc.estimate(build, plan=False)
    assert seen == [(True, "cuda", torch.half)]
    assert estimate.parts["weights and buffers"] == 2 * (WIDTH * WIDTH + WIDTH)
