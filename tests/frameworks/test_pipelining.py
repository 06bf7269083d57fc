"""torch.distributed.pipelining's own schedules over two gloo processes, planned and not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from isolation import run_isolated
from torch import nn
from torch.nn import functional
from trainers import LENGTH, Run, assert_served, network, phases_of, prepare, tokens

import stalloc
import stalloc.integrations.pipelining
from stalloc.driver import Stage

RANKS = 2
MICROBATCHES = 4
ROWS = 2  # of a microbatch


@dataclass
class Settings:
    """The training and its settings."""

    schedule: str
    chunks: int = 1
    v: bool = False  # the second chunks are in reverse order
    mode: str = "off"
    folder: str | None = None
    steps: int = 9
    evaluates_after: int = -1
    runs: int = 1  # of the schedule, for each step of the optimizer


def train(store: str, settings: Settings) -> list[tuple[Run, list[str]]]:
    """The result of each rank, in its own process."""
    with ThreadPoolExecutor(RANKS) as pool:
        ranks = [pool.submit(run_isolated, _rank, i, store, settings) for i in range(RANKS)]
        return [rank.result() for rank in ranks]


def _rank(rank: int, store: str, settings: Settings) -> tuple[Run, list[str]]:
    from torch.distributed.pipelining import schedules

    prepare()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS
    )
    count = RANKS * settings.chunks
    places = [rank, count - 1 - rank] if settings.v else range(rank, count, RANKS)
    stages = [_stage(place, count) for place in places]
    kind = getattr(schedules, settings.schedule)
    schedule = kind(stages if settings.chunks > 1 else stages[0], MICROBATCHES, loss_fn=_loss)
    model = nn.ModuleList(stage.submod for stage in stages)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    driver = stalloc.integrations.pipelining.install(
        schedule, settings.mode, settings.folder, warmup=1
    )
    assert stalloc.integrations.pipelining.install(schedule) is driver
    run, serving = Run(), []
    for step in range(settings.steps):
        for _ in range(settings.runs):
            run.losses += _step(schedule, stages, step)
        optimizer.step()
        optimizer.zero_grad()
        serving.append(driver.stage.value)
        if step == settings.evaluates_after:
            with torch.no_grad():
                run.losses += _step(schedule, stages, step, train=False)
    if settings.mode == "auto" and settings.evaluates_after < 0:
        assert_served(serving.count(Stage.SERVING.value) - 1)
    if settings.evaluates_after in range(len(serving)) and settings.mode == "auto":
        assert stalloc.memory_stats()["idle_requests"] > 0, "the evaluation's"
    stalloc.integrations.pipelining.uninstall()
    assert not any("forward_one_chunk" in vars(stage) for stage in stages)
    assert not {"step", "eval", "_maybe_compute_loss"} & set(vars(schedule))
    torch.distributed.destroy_process_group()
    return run.keep(model), serving


def _stage(index: int, count: int) -> Any:
    from torch.distributed.pipelining import PipelineStage

    torch.manual_seed(index)
    modules = list(network(layers=count))
    embedding, *blocks, head = modules
    mine = [blocks[index]]
    mine = [embedding, *mine] if index == 0 else mine
    mine = [*mine, head] if index == count - 1 else mine
    return PipelineStage(nn.Sequential(*mine), index, count, torch.device("cpu"))


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def _step(schedule: Any, stages: list[Any], step: int, train: bool = True) -> list[float]:
    rows = tokens()[step * ROWS * MICROBATCHES :][: ROWS * MICROBATCHES]
    losses: list[torch.Tensor] = []
    last = any(stage.is_last for stage in stages)
    call = schedule.step if train else schedule.eval
    call(
        *([rows[:, :LENGTH]] if stages[0].is_first else []),
        **({"target": rows[:, 1:].contiguous(), "losses": losses} if last else {}),
    )
    return [loss.item() for loss in losses] or [0.0]


SCHEDULES = {
    "1F1B": Settings("Schedule1F1B"),
    "1F1B, accumulated": Settings("Schedule1F1B", runs=2),
    "interleaved": Settings("ScheduleInterleaved1F1B", chunks=2),
    "zero bubble": Settings("ScheduleInterleavedZeroBubble", chunks=2),
    "zero bubble V": Settings("ScheduleZBVZeroBubble", chunks=2, v=True),
    "dual pipe V": Settings("ScheduleDualPipeV", chunks=2, v=True),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_one_run_profiles_plans_and_is_served(name: str, tmp_path: Path) -> None:
    settings = SCHEDULES[name]
    plain = train(str(tmp_path / "store0"), settings)
    folder = tmp_path / "plans"
    settings = replace(settings, mode="auto", folder=str(folder))
    planned = train(str(tmp_path / "store1"), settings)
    for (a, _), (b, stages) in zip(plain, planned, strict=True):
        a.assert_same(b)
        assert stages.count("serving") == settings.steps - 5
    stem = "world2-vp2-mb4" if settings.chunks == 2 else "world2-mb4"
    for rank in range(RANKS):
        phases = phases_of(str(folder / f"{stem}.rank{rank}.trace.json"))
        wanted = {
            (kind, microbatch, chunk)
            for kind in ("forward", "backward")
            for microbatch in range(MICROBATCHES * settings.runs)
            for chunk in range(settings.chunks)
        }
        assert {phase for phase in phases if phase[0] in ("forward", "backward")} == wanted
    # The next run is served from the written plan.
    again = train(str(tmp_path / "store2"), replace(settings, mode="plan", steps=3))
    for (a, _), (b, stages) in zip(plain, again, strict=True):
        assert stages == ["waiting", "waiting", "serving"]
        assert b.losses == a.losses[: len(b.losses)]


def test_an_evaluation_is_unplanned(tmp_path: Path) -> None:
    settings = Settings("Schedule1F1B", evaluates_after=6)
    plain = train(str(tmp_path / "store0"), settings)
    planned = train(str(tmp_path / "store1"), replace(settings, mode="auto"))
    for (a, _), (b, stages) in zip(plain, planned, strict=True):
        a.assert_same(b)
        assert stages[-1] == "serving"
