"""The benchmark of step times, over its smallest program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "steps"


def test_both_sides_take_the_same_steps(tmp_path: Path) -> None:
    figures = tmp_path / "steps.json"
    command = [sys.executable, str(BENCHMARK), "--only", "gpt, tiny", "--steps", "30"]
    done = subprocess.run([*command, "-o", str(figures)], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    (runs,) = json.loads(figures.read_text())["programs"].values()
    first, second = runs["first run"], runs["second run"]
    assert 0 < first["since"] <= 10
    assert second["since"] == 0, "the plan of the first run is kept"
    for run in (first, second):
        assert run["whole"]["steps"] == 29
        assert run["in force"]["steps"] == 10
        assert run["in force"]["torch_ms"] > 0
        assert run["in force"]["auto_ms"] > 0
