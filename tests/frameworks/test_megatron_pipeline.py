"""Megatron on several ranks: each has a plan of its own, and none waits for another."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import megatron_training
import pytest
from criteria import assert_tight, static_hits
from launcher import together, torchrun
from megatron_training import Result, Settings, train

import stalloc

SCRIPT = Path(megatron_training.__file__)
SCHEDULES = {
    "1F1B": Settings(stages=2, iterations=10),
    "interleaved": Settings(stages=2, chunks=2, iterations=10),
    "1F1B over four": Settings(stages=4, microbatches=6, iterations=10),
    "sharded optimizer": Settings(replicas=2, distributed_optimizer=True, iterations=10),
}


def run(settings: Settings) -> list[Result]:
    """The results of all ranks."""
    return [job.result() for job in together(settings.ranks, train, settings)]


def run_by_torchrun(settings: Settings, folder: Path) -> list[Result]:
    job = torchrun(settings.stages, SCRIPT, json.dumps(asdict(settings)), str(folder))
    assert job.returncode == 0, job.stderr
    return [
        Result(**json.loads((folder / f"rank{rank}.result.json").read_text()))
        for rank in range(settings.stages)
    ]


@pytest.mark.parametrize(
    ("schedule", "packages"),
    [
        ("1F1B", "stable"),
        ("interleaved", "stable"),
        ("interleaved", "newest"),
        ("sharded optimizer", "stable"),
    ],
)
def test_each_rank_profiles_plans_and_is_served(
    schedule: str, packages: str, tmp_path: Path
) -> None:
    settings = replace(SCHEDULES[schedule], packages=packages)
    check(settings, tmp_path)


@pytest.mark.parametrize("schedule", ["1F1B", "1F1B over four"])
def test_torchrun_does_the_same(schedule: str, tmp_path: Path) -> None:
    """And ranks may differ in what they ask for: another number of requests in each iteration."""
    settings = SCHEDULES[schedule]
    settings = replace(settings, extra=settings.stages - 1)
    planned = replace(settings, mode="auto", folder=str(tmp_path / "plans"))
    compare(settings, run(settings), run_by_torchrun(planned, tmp_path), tmp_path / "plans")


def check(settings: Settings, tmp_path: Path) -> None:
    plans = tmp_path / "plans"
    compare(settings, run(settings), run(replace(settings, mode="auto", folder=str(plans))), plans)


def compare(settings: Settings, plain: list[Result], planned: list[Result], plans: Path) -> None:
    for before, after in zip(plain, planned, strict=True):
        before.assert_same(after)
        assert after.warnings == []
        assert after.stages.count("serving") == 5
        assert static_hits(after.stats) >= 0.99
    names = sorted(path.name for path in plans.glob("*.plan.json"))
    assert len(names) == settings.ranks
    size = f"pp{settings.stages}" if settings.stages > 1 else f"dp{settings.replicas}"
    for rank, name in enumerate(names):
        assert name.startswith(f"{size}-")
        assert name.endswith(f".rank{rank}.plan.json")
        plan = stalloc.Plan.load(plans / name)
        assert_tight(plan)
        phases = plan.phases
        for kind in (1, 2):
            of_kind = phases.kind == kind
            microbatches = set(phases.microbatch[of_kind].tolist())
            assert microbatches == set(range(settings.microbatches)), "each forward and backward"
            assert set(phases.chunk[of_kind].tolist()) == set(range(settings.chunks))


@pytest.mark.parametrize(
    ("schedule", "dies_at", "stage"),
    [("1F1B", 4, "profiled"), ("1F1B", 8, "served"), ("1F1B over four", 8, "served")],
)
def test_a_rank_that_dies_leaves_nobody_hanging(
    schedule: str, dies_at: int, stage: str, tmp_path: Path
) -> None:
    """Nobody ends the others here: gloo tells them, and nothing of ours is in their way."""
    settings = replace(SCHEDULES[schedule], mode="auto", folder=str(tmp_path))
    settings = replace(settings, dies=1, dies_at=dies_at)
    jobs = together(settings.stages, train, settings)
    failures = [str(job.exception()) for job in jobs]
    assert f"exit code {megatron_training.DEATH}" in failures[1]
    for failure in failures[:1] + failures[2:]:
        assert "Connection closed by peer" in failure or "Connection reset by peer" in failure
        assert "forward_backward" in failure, "where it was training"
        assert "StallocError" not in failure
    assert len(list(tmp_path.glob("*.plan.json"))) == (settings.stages if stage == "served" else 1)


def test_torchrun_ends_when_a_rank_dies(tmp_path: Path) -> None:
    settings = Settings(stages=2, iterations=10, mode="auto", dies=1, dies_at=7)
    job = torchrun(2, SCRIPT, json.dumps(asdict(settings)), str(tmp_path))
    assert job.returncode != 0
    assert f"exitcode: {megatron_training.DEATH}" in " ".join(job.stderr.split())
    assert not list(tmp_path.glob("*.result.json"))
