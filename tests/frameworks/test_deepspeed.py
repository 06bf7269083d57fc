"""DeepSpeed's own engine and pipeline engine, on the CPU, with and without stalloc."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from gloo import settled
from isolation import run_isolated
from torch import nn
from torch.nn import functional
from trainers import LENGTH, Run, assert_served, loss_of, network, phases_of, prepare, tokens

import stalloc
import stalloc.integrations.deepspeed
from stalloc.driver import Stage

MICROBATCHES = 3
STEPS = 10


def start(rank: int, ranks: int, store: Path) -> Any:
    """DeepSpeed, in a process group."""
    prepare()
    os.environ.update(
        DS_ACCELERATOR="cpu", LOCAL_RANK="0", RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_SIZE="1"
    )
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks
    )
    import deepspeed

    deepspeed.utils.logger.setLevel("ERROR")
    # It would compile a kernel for its own all-reduce, for minutes; gloo's will do.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    return deepspeed


def initialize(deepspeed: Any, model: nn.Module, zero: int = 0) -> Any:
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": MICROBATCHES,
            "zero_optimization": {"stage": zero},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 10**9,
        },
    )
    return engine


def train(
    rank: int, store: Path, mode: str, folder: Path | None, zero: int, ranks: int
) -> tuple[Run, list[Stage]]:
    deepspeed = start(rank, ranks, store)
    with settled():
        return train_engine(deepspeed, rank, mode, folder, zero, ranks)


def train_engine(
    deepspeed: Any, rank: int, mode: str, folder: Path | None, zero: int, ranks: int
) -> tuple[Run, list[Stage]]:
    engine = initialize(deepspeed, network(), zero)
    driver = stalloc.integrations.deepspeed.install(engine, mode, folder, warmup=1)
    assert stalloc.integrations.deepspeed.install(engine) is driver
    run, stages = Run(), []
    batches = tokens().split(4)[rank::ranks]
    for i in range(STEPS * MICROBATCHES):
        loss = loss_of(engine, batches[i % len(batches)])
        run.losses.append(loss.item())
        engine.backward(loss)
        engine.step()
        if i % MICROBATCHES == MICROBATCHES - 1:
            stages.append(driver.stage)
    if mode == "auto":
        assert_served(stages.count(Stage.SERVING) - 1)
    stalloc.integrations.deepspeed.uninstall()
    assert not {"step", "save_checkpoint"} & set(vars(engine))
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        return run.keep(engine.module), stages


@pytest.mark.parametrize(("zero", "ranks"), [(0, 1), (1, 2), (2, 2), (3, 2)])
def test_one_run_profiles_plans_and_is_served(zero: int, ranks: int, tmp_path: Path) -> None:
    folder = tmp_path / "plans"
    plain = together(ranks, train, tmp_path / "store0", "off", None, zero, ranks)
    planned = together(ranks, train, tmp_path / "store1", "auto", folder, zero, ranks)
    stem = f"dp{ranks}-" if ranks > 1 else ""
    for rank in range(ranks):
        plain[rank][0].assert_same(planned[rank][0])
        assert planned[rank][1].count(Stage.SERVING) == STEPS - 4
        name = f"{stem}zero{zero}-mbs4-mb3.rank{rank}.trace.json".replace("zero1-", "")
        check_phases(folder / name)


def together(ranks: int, body: Callable[..., Any], *args: Any) -> list[Any]:
    """The result of the body on each rank, in its own process."""
    with ThreadPoolExecutor(ranks) as pool:
        jobs = [pool.submit(run_isolated, body, rank, *args) for rank in range(ranks)]
        return [job.result() for job in jobs]


def check_phases(trace: Path) -> None:
    phases = phases_of(str(trace))
    wanted = {(kind, i, 0) for kind in ("forward", "backward") for i in range(MICROBATCHES)}
    assert {phase for phase in phases if phase[0] in ("forward", "backward")} == wanted


def train_pipeline(
    rank: int, store: Path, mode: str, folder: Path | None
) -> tuple[Run, list[Stage]]:
    deepspeed = start(rank, 2, store)
    from deepspeed.pipe import PipelineModule

    module = PipelineModule(list(network(layers=4)), num_stages=2, loss_fn=_loss)
    engine = initialize(deepspeed, module)
    driver = stalloc.integrations.deepspeed.install(engine, mode, folder, warmup=1)
    batches = iter([(rows[:, :LENGTH], rows[:, 1:].contiguous()) for rows in tokens().split(4)] * 2)
    run, stages = Run(), []
    for _ in range(STEPS):
        run.losses.append(engine.train_batch(batches).item())
        stages.append(driver.stage)
    if mode == "auto":
        assert_served(stages.count(Stage.SERVING) - 1)
    run.losses.append(engine.eval_batch(batches).item())
    stalloc.integrations.deepspeed.uninstall()
    assert not {"_INSTRUCTION_MAP", "train_batch", "eval_batch"} & set(vars(engine))
    return run.keep(module), stages


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def test_one_run_of_a_pipeline_profiles_plans_and_is_served(tmp_path: Path) -> None:
    folder = tmp_path / "plans"
    plain = together(2, train_pipeline, tmp_path / "store0", "off", None)
    planned = together(2, train_pipeline, tmp_path / "store1", "auto", folder)
    for rank in range(2):
        plain[rank][0].assert_same(planned[rank][0])
        assert planned[rank][1].count(Stage.SERVING) == STEPS - 4
        check_phases(folder / f"pp2-zero0-mbs4-mb3.rank{rank}.trace.json")
