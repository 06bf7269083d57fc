"""Colossal-AI's Booster and pipeline schedules, trained with and without stalloc.

They are the package's own; what the package imports besides torch is stood in for. Zero-bubble
schedules need a model that its shardformer has split, and so are stood in for altogether.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import colossalai_training
import pytest
import torch
from colossalai_training import Settings, train
from isolation import isolated, run_isolated
from launcher import torchrun
from megatron_training import Result
from phase_sinks import RecordingSink
from torch import nn

import stalloc.colossalai
from stalloc.driver import Stage
from stalloc.hooks import TrainingHooks

SCRIPT = Path(colossalai_training.__file__)
FIGURES = {"iterations": 5, "strays": 0}


def run(settings: Settings, folder: Path) -> list[Result]:
    folder.mkdir(exist_ok=True)
    job = torchrun(settings.stages, SCRIPT, json.dumps(asdict(settings)), str(folder))
    assert job.returncode == 0, job.stderr
    return [
        Result(**json.loads((folder / f"rank{rank}.result.json").read_text()))
        for rank in range(settings.stages)
    ]


def check(before: Result, after: Result) -> None:
    before.assert_same(after)
    assert after.warnings == []
    assert after.stages.count("serving") >= 5
    assert after.stats["hit_rate"] >= 0.99
    assert {key: after.stats[key] for key in FIGURES} == FIGURES


def test_a_booster_profiles_plans_and_is_served() -> None:
    check(run_isolated(train, Settings()), run_isolated(train, Settings(mode="auto")))


@pytest.mark.parametrize("chunks", [1, 2])
def test_each_rank_of_a_pipeline_profiles_plans_and_is_served(chunks: int, tmp_path: Path) -> None:
    settings = Settings(stages=2, chunks=chunks)
    plain = run(settings, tmp_path)
    plans = tmp_path / "plans"
    planned = run(replace(settings, mode="auto", folder=str(plans)), tmp_path)
    for before, after in zip(plain, planned, strict=True):
        check(before, after)
    names = sorted(path.name for path in plans.glob("*.plan.json"))
    prefix = "pp2-vp2-" if chunks == 2 else "pp2-"
    assert [name.rpartition(".rank")[0] for name in names] == [f"{prefix}mbs2-mb4"] * 2
    for name in names:
        phases = stalloc.Plan.load(plans / name).phases
        for kind in (1, 2):
            found = set(phases.microbatch[phases.kind == kind].tolist())
            assert found == {0, 1, 2, 3}
            assert set(phases.chunk[phases.kind == kind].tolist()) == set(range(chunks))


class ZeroBubble:
    """Has the methods of Colossal-AI's ZeroBubbleVPipeScheduler, with their parameters."""

    def __init__(self) -> None:
        self.stage_manager = SimpleNamespace(num_stages=2)
        self.num_microbatch = 2

    def forward_backward_step(self, model_chunk: nn.Module) -> None:
        outputs = {}
        for chunk in (0, 1):
            for microbatch in (0, 1):
                outputs[chunk, microbatch] = self.forward_step(model_chunk, chunk)
        if not torch.is_grad_enabled():
            return
        for chunk in (1, 0):
            for microbatch in (0, 1):
                self.backward_b_step(model_chunk, chunk, None, None, outputs[chunk, microbatch])
        for chunk in (1, 0):
            for _ in (0, 1):
                self.schedule_w(None, model_chunk, model_chunk_id=chunk, optimizer=None)

    def forward_step(self, model_chunk: nn.Module, model_chunk_id: int) -> dict[str, torch.Tensor]:
        return {"hidden": model_chunk(torch.ones(2))}

    def backward_b_step(
        self,
        model_chunk: nn.Module,
        model_chunk_id: int,
        optimizer: Any,
        input_obj: Any,
        output_obj: dict[str, torch.Tensor],
    ) -> None:
        output_obj["hidden"].sum().backward()

    def schedule_w(
        self, scheduled_node: Any, model_chunk: nn.Module, model_chunk_id: int, optimizer: Any
    ) -> None:
        pass


@isolated
def test_zero_bubble_computes_weight_gradients_in_phases_of_their_own() -> None:
    model = nn.Linear(2, 2)
    scheduler = ZeroBubble()
    optimizer = colossalai_training.Optimizer(model)
    booster = SimpleNamespace(plugin=SimpleNamespace(scheduler=scheduler))
    driver = stalloc.colossalai.install(booster, model, optimizer, "auto", warmup=0)
    assert driver.stage is Stage.PROFILING
    sink = RecordingSink()
    with TrainingHooks(sink, model):
        scheduler.forward_backward_step(model)
        with torch.no_grad():
            scheduler.forward_backward_step(model)
    words = sink.take().partition("(")[0].split(" other ")
    text = " ".join(words).replace("other", "").split()
    phases = [" ".join(pair) for pair in zip(text[::2], text[1::2], strict=True)]
    there = ["0", "1", "0.1", "1.1"]
    back = ["0.1", "1.1", "0", "1"]
    assert phases == [
        *(f"forward {p}" for p in there),
        *(f"backward {p}" for p in back),
        *(f"backward {p}" for p in back),
    ]
    stalloc.colossalai.uninstall()
    stalloc.colossalai.uninstall()
    assert "forward_step" not in vars(scheduler)
    assert "step" not in vars(optimizer)


@isolated
def test_installing_twice_is_once_and_off_is_off() -> None:
    model = nn.Linear(2, 2)
    optimizer = colossalai_training.Optimizer(model)
    booster = SimpleNamespace(plugin=None)
    driver = stalloc.colossalai.install(booster, model, optimizer, "auto")
    assert stalloc.colossalai.install(booster, model, optimizer, "auto") is driver
    stalloc.colossalai.uninstall()
    stalloc.colossalai.install(booster, model, optimizer, "off")
    assert "step" not in vars(optimizer)


def test_an_optimizer_without_a_step_is_refused() -> None:
    with pytest.raises(TypeError, match=r"booster\.boost"):
        stalloc.colossalai.install(None, nn.Linear(1, 1), object())
