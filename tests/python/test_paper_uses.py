"""The runs of the paper's workloads in native mode, as far as they go without a GPU.

The same program trains on the CPU here, where stalloc serves real tensors. tests/cuda has the rest.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from isolation import run_isolated

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "workloads"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "replay"))

from configs import Config, Parallelism, stream_configs
from fixed import NCCL, communicators
from models import GPT2_345M
from paper import __main__ as command
from paper import native, uses_report
from paper.figures import native_configs, used_configs
from paper.native import EXPANDABLE, STREAM_USES, TORCH, USES, WHOLE, UseRow, find_native
from paper.native_run import _MOST, _SERVED, Run, Way
from real import Unavailable

import stalloc

ITERATIONS = 5
_TINY = {"layers": 2, "hidden": 32, "heads": 2, "kv_heads": 2, "sequence": 32, "vocabulary": 128}
CONFIG = Config(replace(GPT2_345M, **_TINY, ffn=64), Parallelism(2, 1, 1, 2, 2))


def plan_of(folder: str) -> None:
    Run(CONFIG, Way.PROFILE, "cpu", Path(folder) / "plan.json").train(4)


def outcome(way: str, folder: str) -> tuple[int | None, float | None, int]:
    """The iteration that is the first one in force, the share served, and iterations that ended."""
    os.environ["STALLOC_CACHE"] = "0"
    run = Run(CONFIG, Way(way), "cpu", Path(folder) / "plan.json")
    run.train(ITERATIONS)
    if Way(way) is Way.AUTO:
        return run.in_force, run.served, stalloc.status()["iterations"]
    return run.in_force, run.served, stalloc.memory_stats("cpu")["iterations"]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the plan."""
    folder = str(tmp_path_factory.mktemp("plan"))
    run_isolated(plan_of, folder)
    return folder


@pytest.mark.parametrize(("way", "first"), [("whole", 0), ("middle", 1), ("profiled", 3)])
def test_a_plan_serves_the_run_from_its_iteration_on(planned: str, way: str, first: int) -> None:
    assert run_isolated(outcome, way, planned) == (first, 1.0, ITERATIONS - first)


def test_auto_goes_on_until_its_plan_has_served(planned: str) -> None:
    in_force, served, iterations = run_isolated(outcome, "auto", planned)
    if in_force is None:  # it was not solved in time
        assert iterations == _MOST - 1, "the last one ends with the next forward"
    else:
        assert in_force >= 5, "so many are recorded"
        assert iterations >= in_force + _SERVED
        assert served == 1.0


def test_each_way_has_a_name_of_its_own() -> None:
    assert len({use.name for use in USES}) == len(USES)
    assert set(STREAM_USES) < set(USES)
    names = [config.name for config in native_configs()]
    assert len(set(names)) == len(names) == len(used_configs()) + len(stream_configs())


def test_nccl_has_buffers_for_each_kind_of_parallelism() -> None:
    known = stream_configs()
    assert communicators(known["llama2-7b-n-mb2-sharded-first"]) == 1
    assert communicators(known["gpt2-345m-v-transfers-first"]) == 2
    assert not any(communicators(config) for config in used_configs())
    assert NCCL.size == 32 * (2**22 + 2**19 + 4_915_200)


def rows_of(name: str, reserved: dict[str, int]) -> list[UseRow]:
    return [
        UseRow(name, use, 10 << 30, size << 30, 100, None, None, "2.14.1")
        for use, size in reserved.items()
    ]


def test_the_report_compares_each_way_with_torch() -> None:
    first, second = (config.name for config in used_configs()[:2])
    rows = rows_of(first, {TORCH.name: 16, EXPANDABLE.name: 12, WHOLE.name: 10})
    rows += rows_of(second, {TORCH.name: 12, EXPANDABLE.name: 11, WHOLE.name: 12})
    text = uses_report.render(rows)
    assert f"| {first} | 10.00 | 16.00 (0.6250) | 12.00 (0.8333) | 10.00 (1.0000) |" in text
    assert "- whole process: reserves less than torch in 1 of 2 and than ES in 1 of 2\n" in text
    streams = text.split("## Several streams")[1]
    assert "Not measured" in streams


def test_the_report_says_when_auto_had_a_plan() -> None:
    (auto,) = (use for use in STREAM_USES if use.way is Way.AUTO)
    (name, *_) = stream_configs()
    row = replace(rows_of(name, {auto.name: 10})[0], is_automatic=True)
    assert "10.00 (1.0000, no plan)" in uses_report.render([row])
    assert "10.00 (1.0000, iteration 6)" in uses_report.render([replace(row, in_force=6)])


def test_blocks_that_wait_do_not_count_as_asked() -> None:
    (name, *_) = stream_configs()
    torch, whole = rows_of(name, {TORCH.name: 16, WHOLE.name: 10})
    text = uses_report.render([replace(torch, load=15 << 30), whole])
    assert f"| {name} | 10.00 | 16.00 (0.6250) |" in text


def test_a_part_leaves_the_other_runs(tmp_path: Path) -> None:
    first, second = (config.name for config in used_configs()[:2])
    old = [row for name in (first, second, "gone") for row in rows_of(name, {TORCH.name: 12})]
    document = {"cpu": "", "rows": [], "uses": [asdict(row) for row in old]}
    (tmp_path / "paper.json").write_text(json.dumps(document))
    new = rows_of(second, {TORCH.name: 13})
    merged = command.merged_uses(new, tmp_path)
    assert {(row.workload, row.reserved >> 30) for row in merged} == {(first, 12), (second, 13)}


def test_an_environment_without_an_interpreter_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="make test-cuda"):
        find_native(tmp_path)


def test_an_environment_without_stalloc_is_named(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho 'no module' >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(Unavailable, match="no stalloc for its torch: no module"):
        find_native(tmp_path)


def test_a_run_that_fails_is_told(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'out of everything' >&2\nexit 1\n")
    python.chmod(0o755)
    found = native.Native(python, "2", Path(__file__))
    with pytest.raises(RuntimeError, match="out of everything"):
        native.measure(used_configs()[0], found, [TORCH], tmp_path / "kept")
