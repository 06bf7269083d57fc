"""Colossal-AI's Booster and pipeline schedules, trained with and without stalloc.

They are the package's own; what the package imports besides torch is stood in for, as are the
kernels of its optimizers. The order of a zero-bubble schedule's phases is shown by a stand-in.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import colossalai_training
import numpy as np
import pytest
import torch
from colossalai_training import Settings, train
from criteria import assert_tight, static_hits
from isolation import isolated, run_isolated
from megatron_training import Result
from phase_sinks import RecordingSink
from torch import nn

import stalloc.colossalai
from stalloc.driver import Stage
from stalloc.hooks import TrainingHooks

FIGURES = {"iterations": 5, "strays": 0}


def run(settings: Settings, store: Path) -> list[Result]:
    """The results of all ranks."""
    ranks = range(settings.ranks)
    with ThreadPoolExecutor(len(ranks)) as pool:
        jobs = [pool.submit(run_isolated, train, settings, rank, str(store)) for rank in ranks]
        return [job.result() for job in jobs]


def check(before: Result, after: Result) -> None:
    before.assert_same(after)
    assert after.warnings == []
    assert after.stages.count("serving") >= 5
    assert static_hits(after.stats) >= 0.99
    assert {key: after.stats[key] for key in FIGURES} == FIGURES


@pytest.mark.parametrize("plugin", ["ddp", "zero1", "zero2", "gemini"])
def test_a_booster_profiles_plans_and_is_served(plugin: str, tmp_path: Path) -> None:
    settings = Settings(plugin=plugin)
    (before,) = run(settings, tmp_path / "store0")
    (after,) = run(replace(settings, mode="auto"), tmp_path / "store1")
    check(before, after)


@pytest.mark.parametrize("schedule", ["1F1B", "interleaved", "zero bubble"])
def test_each_rank_of_a_pipeline_profiles_plans_and_is_served(
    schedule: str, tmp_path: Path
) -> None:
    settings = Settings(schedule=schedule)
    plain = run(settings, tmp_path / "store0")
    plans = tmp_path / "plans"
    planned = run(replace(settings, mode="auto", folder=str(plans)), tmp_path / "store1")
    for before, after in zip(plain, planned, strict=True):
        check(before, after)
    names = sorted(path.name for path in plans.glob("*.plan.json"))
    prefix = "pp2-vp2-" if settings.chunks == 2 else "pp2-"
    assert [name.rpartition(".rank")[0] for name in names] == [f"{prefix}mbs2-mb4"] * 2
    for name in names:
        plan = stalloc.Plan.load(plans / name)
        assert_tight(plan)
        phases = plan.phases
        for kind in (1, 2):
            found = set(phases.microbatch[phases.kind == kind].tolist())
            assert found == {0, 1, 2, 3}
            assert set(phases.chunk[phases.kind == kind].tolist()) == set(range(settings.chunks))
    # The next run is served from the written plan.
    again = run(
        replace(settings, mode="plan", folder=str(plans), iterations=4), tmp_path / "store2"
    )
    for after in again:
        assert after.warnings == []
        assert after.stages == ["waiting"] + ["serving"] * 3, "as seen when each is over"


def test_experts_that_two_ranks_share_are_dynamic(tmp_path: Path) -> None:
    """A rank's experts get another number of tokens in each iteration, and than the other's."""
    settings = Settings(experts=4, iterations=12)
    plain = run(settings, tmp_path / "store0")
    plans = tmp_path / "plans"
    planned = run(replace(settings, mode="auto", folder=str(plans)), tmp_path / "store1")
    assert plain[0].losses != plain[1].losses
    for rank, (before, after) in enumerate(zip(plain, planned, strict=True)):
        before.assert_same(after)
        assert after.warnings == []
        stats = after.stats
        assert stats["iterations"] == after.stages.count("serving") - 1 == 7
        assert static_hits(stats) >= 0.99
        in_pool = stats["dynamic_region_requests"] + stats["dynamic_reused_requests"]
        assert in_pool >= 0.95 * stats["dynamic_requests"] > 0
        trace = stalloc.Trace.load(plans / f"ep2.rank{rank}.trace.json")
        blocks = [i for i, name in enumerate(trace.layers) if name in ("blocks.0", "blocks.1")]
        inside = np.isin(trace.requests.layer_begin, blocks)
        assert inside.any()
        assert trace.requests.dynamic[inside].all()


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
    sink = RecordingSink()
    with TrainingHooks(sink, model):
        scheduler.forward_backward_step(model)
        assert driver.stage is Stage.PROFILING
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
