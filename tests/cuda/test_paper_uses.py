"""The ways to use stalloc that the paper's evaluation compares, at a small size."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import standin
import torch
from isolation import run_isolated

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "workloads"))

from configs import Config, Overlap, Parallelism
from fixed import CUBLAS
from models import LLAMA2_7B, QWEN15_MOE, Experts
from paper.native_run import Run, Way
from rank import record

from stalloc.replaying import replay_torch

SMALL = {"layers": 4, "hidden": 512, "heads": 4, "kv_heads": 4, "sequence": 1024}
DENSE = Config(replace(LLAMA2_7B, **SMALL, ffn=1024), Parallelism(2, 2, 1, 2, 4))
SHARDED = replace(DENSE, parallelism=Parallelism(1, 1, 4, 2, 2), overlap=Overlap.SHARDED)
MOE = Config(
    replace(QWEN15_MOE, **SMALL, ffn=1024, experts=Experts(8, 2, 256, 512)),
    Parallelism(2, 2, 1, 2, 4, expert=2),
    "r",
)
CONFIGS = {
    "dense": DENSE,
    "moe": MOE,
    "sharded": SHARDED,
    "transfers": replace(DENSE, overlap=Overlap.TRANSFERS),
    "offload": replace(DENSE, overlap=Overlap.OFFLOAD),
}
ITERATIONS = 4


def run(name: str, way: str, folder: str, *, behind: bool = False) -> tuple[int, Run]:
    """The most bytes live as asked, and the run."""
    standin.set_manual(behind)
    trained = Run(replace(CONFIGS[name], behind=behind), Way(way), plan=Path(folder) / "plan.json")
    trained.train(ITERATIONS)
    return torch.cuda.memory_stats()["requested_bytes.all.peak"], trained


def served(name: str, way: str, folder: str, behind: bool) -> tuple[int | None, float | None]:
    run_in_force = run(name, way, folder, behind=behind)[1]
    return run_in_force.in_force, run_in_force.served


def load_of(name: str, folder: str) -> int:
    return run(name, "torch", folder)[0]


@pytest.fixture(scope="module", params=CONFIGS)
def planned(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str]:
    """A workload, and the folder of its plan."""
    folder = str(tmp_path_factory.mktemp("plan"))
    run_isolated(served, request.param, "profile", folder, False)
    return request.param, folder


@pytest.mark.parametrize("behind", [False, True])
def test_a_plan_serves_all_of_a_process(planned: tuple[str, str], behind: bool) -> None:
    name, folder = planned
    in_force, share = run_isolated(served, name, "whole", folder, behind)
    assert in_force == 0
    assert share is not None
    assert share >= 0.99


@pytest.mark.parametrize(("way", "first"), [("middle", 1), ("profiled", 3)])
@pytest.mark.parametrize("planned", ["dense", "moe"], indirect=True)
def test_a_plan_serves_the_run_from_its_iteration_on(
    planned: tuple[str, str], way: str, first: int
) -> None:
    name, folder = planned
    in_force, share = run_isolated(served, name, way, folder, False)
    assert in_force == first
    assert share is not None
    assert share >= 0.99


def test_the_load_is_that_of_the_meta_device_and_a_workspace(tmp_path: Path) -> None:
    load = replay_torch(record(DENSE, ITERATIONS - 1)).peak_load
    assert run_isolated(load_of, "dense", str(tmp_path)) in (load, load + CUBLAS.size)
