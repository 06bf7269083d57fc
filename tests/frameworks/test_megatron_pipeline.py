"""Megatron's pipelines: each rank has a plan of its own, and none waits for another."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import megatron_training
import pytest
from launcher import torchrun
from megatron_training import Result, Settings

import stalloc

SCRIPT = Path(megatron_training.__file__)
SCHEDULES = {
    "1F1B": Settings(stages=2, iterations=10),
    "interleaved": Settings(stages=2, chunks=2, iterations=10),
    "1F1B over four": Settings(stages=4, microbatches=6, iterations=10),
}


def run(settings: Settings, folder: Path) -> list[Result]:
    """The results of all ranks."""
    folder.mkdir(exist_ok=True)
    job = torchrun(settings.stages, SCRIPT, json.dumps(asdict(settings)), str(folder))
    assert job.returncode == 0, job.stderr
    return [
        Result(**json.loads((folder / f"rank{rank}.result.json").read_text()))
        for rank in range(settings.stages)
    ]


@pytest.mark.parametrize(
    ("schedule", "packages"),
    [("1F1B", "stable"), ("interleaved", "stable"), ("interleaved", "newest")],
)
def test_each_rank_profiles_plans_and_is_served(
    schedule: str, packages: str, tmp_path: Path
) -> None:
    settings = replace(SCHEDULES[schedule], packages=packages)
    check(settings, tmp_path)


def test_four_ranks_do_as_two_do(tmp_path: Path) -> None:
    check(SCHEDULES["1F1B over four"], tmp_path)


def check(settings: Settings, tmp_path: Path) -> None:
    plans = tmp_path / "plans"
    plain = run(settings, tmp_path)
    planned = run(replace(settings, mode="auto", folder=str(plans)), tmp_path)
    for before, after in zip(plain, planned, strict=True):
        before.assert_same(after)
        assert after.warnings == []
        assert after.stages.count("serving") == 5
        assert after.stats["hit_rate"] >= 0.99
    names = sorted(path.name for path in plans.glob("*.plan.json"))
    assert len(names) == settings.stages
    for rank, name in enumerate(names):
        assert name.startswith(f"pp{settings.stages}-")
        assert name.endswith(f".rank{rank}.plan.json")
        phases = stalloc.Plan.load(plans / name).phases
        for kind in (1, 2):
            of_kind = phases.kind == kind
            microbatches = set(phases.microbatch[of_kind].tolist())
            assert microbatches == set(range(settings.microbatches)), "each forward and backward"
            assert set(phases.chunk[of_kind].tolist()) == set(range(settings.chunks))


def test_ranks_may_differ_in_what_they_ask_for(tmp_path: Path) -> None:
    settings = Settings(stages=2, iterations=10, extra=1)
    plain = run(settings, tmp_path)
    planned = run(replace(settings, mode="auto"), tmp_path)
    for before, after in zip(plain, planned, strict=True):
        before.assert_same(after)
        assert after.stages[-1] == "serving"


def test_a_rank_that_dies_leaves_nobody_hanging(tmp_path: Path) -> None:
    settings = Settings(stages=2, iterations=10, mode="auto", dies=1, dies_at=7)
    job = torchrun(2, SCRIPT, json.dumps(asdict(settings)), str(tmp_path))
    assert job.returncode != 0
    assert "rank 1 dies, as it was told to" in job.stderr
    assert not list(tmp_path.glob("*.result.json"))
