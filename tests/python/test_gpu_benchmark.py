"""The benchmark for a machine with a GPU, as far as it runs without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "gpu"


def run(*options: str) -> dict[str, Any]:
    command = [sys.executable, str(BENCHMARK), "run", "--model", "tiny", "--device", "cpu"]
    done = subprocess.run(
        [*command, "--steps", "2", "--warmup", "3", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_a_run_is_served_from_its_start_by_the_plan_of_another(tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    profiled = run("--allocator", "stalloc", "--profile", plan)
    assert profiled["resident"] > 0
    plain, served = run("--allocator", "torch"), run("--allocator", "stalloc", "--plan", plan)
    assert served["hit_rate"] == 1.0
    assert (served["pool"], served["resident"]) == (profiled["pool"], profiled["resident"])
    assert served["losses"] == plain["losses"]
    assert served["weights"] == plain["weights"]
