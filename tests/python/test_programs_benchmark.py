"""The benchmark of programs that change, over two small ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from programs import generative, graphs  # noqa: F401, they register programs
from programs.measure import measure
from programs.registry import PROFILED, chosen, record

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMES = ("gaussian-splatting", "sampled-neighbours")


def test_every_allocator_reserves_at_least_the_load(tmp_path: Path) -> None:
    figures, table, traces = tmp_path / "rows.json", tmp_path / "table.md", tmp_path / "traces"
    command = [sys.executable, str(BENCHMARKS / "programs"), "--only", *NAMES, "--seeds", "1"]
    command += ["--iterations", "6", "--recordings", str(traces), "--json", str(figures)]
    subprocess.run([*command, "-o", str(table)], check=True, capture_output=True)
    rows = json.loads(figures.read_text())["rows"]
    assert [row["program"] for row in rows] == list(NAMES)
    for row in rows:
        assert min(row["torch"], row["expandable"], row["stalloc"]) >= row["load"] > 300 << 20
    for name in NAMES:
        assert f"\n| {name} | 0 | " in table.read_text()
        assert f"\n- **{name}**: " in table.read_text()

    before = {path: path.stat().st_mtime_ns for path in traces.iterdir()}
    assert len(before) == 2 * len(NAMES)
    again = [measure(p, 0, 6, fallback="torch", recordings=traces) for p in chosen(NAMES)]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [row.load for row in again] == [row["load"] for row in rows]


def test_a_profile_is_the_beginning_of_a_run() -> None:
    (program,) = chosen(["sampled-neighbours"])
    profile, run = (record(program, 1, iterations) for iterations in (PROFILED, PROFILED + 3))
    begun = run.requests.lower < profile.iterations[-1]
    for column in ("size", "lower", "phase_begin"):
        expected = getattr(profile.requests, column)[: begun.sum()]
        assert np.array_equal(expected, getattr(run.requests, column)[begun]), column
