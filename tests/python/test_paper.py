"""The paper's evaluation in a reduced form: a dense model and a mixture of experts, fewer layers.

torch's rows come from the model of its policy, so that no CUDA build is needed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "workloads"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "replay"))

from configs import Config, Parallelism, all_configs
from events import DYNAMIC_BEGINS, DYNAMIC_ENDS, FREED, ITERATION_ENDS, PHASE_BEGINS, events_of
from models import LLAMA2_7B, QWEN15_MOE
from paper import evaluation, published, recording, report
from paper.evaluation import Programs, evaluate
from paper.figures import figures, row_name, workloads
from paper.recording import PROFILED, UNSEEN, Recorded
from paper.rows import EXPANDABLE, NO_REUSE, STALLOC, TORCH, Row
from paper.targets import outcomes
from rank import record

import stalloc
from stalloc.tables import PHASE_KINDS

DENSE = Config(replace(LLAMA2_7B, layers=8), Parallelism(4, 2, 1, 4, 8), "r")
MOE = Config(replace(QWEN15_MOE, layers=4), Parallelism(4, 2, 1, 8, 8, expert=4), "r")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


def recorded(config: Config, folder: Path) -> Recorded:
    workload = recording.recorded(config, folder)
    recording.make(workload)
    return workload


@pytest.fixture(scope="module")
def dense(folder: Path) -> dict[str, Row]:
    return {row.allocator: row for row in evaluate(recorded(DENSE, folder), Programs())}


@pytest.fixture(scope="module")
def moe(folder: Path) -> dict[str, Row]:
    return {row.allocator: row for row in evaluate(recorded(MOE, folder), Programs())}


def test_a_dense_model_needs_least_under_its_plan(dense: dict[str, Row]) -> None:
    assert dense[STALLOC].efficiency >= 0.995
    assert dense[STALLOC].reserved < dense[EXPANDABLE].reserved < dense[TORCH].reserved
    assert dense[TORCH].efficiency < 0.95
    assert dense[STALLOC].load == dense[TORCH].load


def test_experts_need_less_with_each_part_of_the_plan(moe: dict[str, Row]) -> None:
    assert moe[STALLOC].efficiency >= 0.94
    assert moe[STALLOC].reserved < moe[NO_REUSE].reserved
    assert moe[STALLOC].reserved < moe[TORCH].reserved


def test_row_names_its_workload(dense: dict[str, Row]) -> None:
    row = dense[STALLOC]
    assert (row.workload, row.config, row.stage, row.microbatch) == ("llama2-7b", "r", "first", 4)
    assert row.plan_seconds is not None
    assert row.fits
    assert row.requests > 1000
    assert dense[TORCH].by == "model"
    assert {"native_calls", "seconds_per_request"} <= asdict(row).keys()


def test_traces_are_recorded_once(folder: Path) -> None:
    workload = recorded(DENSE, folder)
    written = workload.trace.stat().st_mtime_ns
    recording.make(workload)
    assert workload.trace.stat().st_mtime_ns == written
    changed = replace(DENSE, seed=2)
    assert recording.recorded(changed, folder).trace != recorded(DENSE, folder).trace


def test_the_profiled_iterations_are_those_that_a_shorter_run_would_have(folder: Path) -> None:
    workload = recorded(MOE, folder)
    whole, profiled = map(stalloc.Trace.load, (workload.trace, workload.profiled))
    assert len(whole.iterations) == len(profiled.iterations) + UNSEEN == PROFILED + UNSEEN + 2
    shorter = record(MOE, PROFILED)
    for name in asdict(shorter.requests):
        same = getattr(shorter.requests, name) == getattr(profiled.requests, name)
        assert np.all(same), name
    assert shorter.plan().pool == profiled.plan().pool
    assert shorter.iterations == profiled.iterations


def test_events_are_requests_and_loop_events(folder: Path) -> None:
    trace = stalloc.Trace.load(recorded(MOE, folder).trace)
    events = events_of(trace)
    requests = events[events[:, 0] >= 0]
    allocated = requests[requests[:, 1] != FREED]
    assert allocated[:, 0].tolist() == list(range(len(trace.requests)))
    assert np.array_equal(allocated[:, 1], trace.requests.size)
    live: set[int] = set()
    dynamic = False
    for number, size, _ in events.tolist():
        if number in (DYNAMIC_BEGINS, DYNAMIC_ENDS):
            assert dynamic == (number == DYNAMIC_ENDS)
            dynamic = not dynamic
        elif number >= 0 and size == FREED:
            live.remove(number)
        elif number >= 0:
            assert trace.requests.dynamic[number] == dynamic
            live.add(number)
    assert not dynamic
    assert np.count_nonzero(events[:, 0] == ITERATION_ENDS) == len(trace.iterations) - 1
    forward = PHASE_KINDS.index("forward")
    begun = (events[:, 0] == PHASE_BEGINS) & (events[:, 1] % 256 == forward)
    assert np.count_nonzero(begun) == (len(trace.iterations) - 1) * MOE.parallelism.microbatches


def test_the_smallest_capacity_is_found() -> None:
    least = 12_345_678_901
    found = evaluation.smallest(lambda capacity: capacity >= least, 10**10, 2 * 10**10)
    assert least <= found <= least + evaluation.STEP


def test_every_workload_of_a_figure_is_run_and_has_a_name_of_its_own() -> None:
    names = {row_name(config) for config in workloads()}
    assert len(names) == len(all_configs())
    for figure in figures().values():
        assert {row_name(config) for config in figure.configs} <= names


def rows_like(dense: dict[str, Row], **changes: Any) -> list[Row]:
    return [replace(row, **changes) for row in dense.values()]


def test_the_report_has_the_papers_figures_beside_ours(dense: dict[str, Row]) -> None:
    gpt2 = rows_like(dense, workload="gpt2-345m", config="zor", stage="last", microbatch=128)
    fits = rows_like(dense, workload="qwen2.5-14b", config="v", microbatch=4, fits=True)
    fits[0] = replace(fits[0], fits=False)
    machine = {"cpu": "", "cores": "2", "system": "", "commit": ""}
    text = report.render([*gpt2, *fits], machine)
    assert "| 25.4 GB | 19.1 GB | 14.8 GB, 100 % |" in text
    assert "| gpt2-345m ZOR last | 5.9 |" in text
    (line,) = (line for line in text.splitlines() if line.startswith("| Original | first"))
    assert line.endswith("| no / no / yes | 464.3 |")
    assert line.split(" | ")[3] == "no"
    assert "35 of 36 workloads were not run." in text


def test_a_missed_target_is_named(dense: dict[str, Row]) -> None:
    bad = replace(dense[STALLOC], efficiency=0.5, plan_seconds=3.0)
    (efficiency,) = (o for o in outcomes([*dense.values(), bad]) if "Dense" in o.target.text)
    assert [group[STALLOC] for group in efficiency.missed] == [bad]
    (planned,) = (o for o in outcomes([*dense.values(), bad]) if "Planned" in o.target.text)
    assert planned.missed


def test_published_figures_go_to_their_row(dense: dict[str, Row]) -> None:
    def known(**changes: Any) -> str | None:
        found = published.of(replace(dense[STALLOC], **changes))
        return found.text if found else None

    assert known(workload=published.MOE, config="zor") == "31.9 GB, 80 %"
    assert known(workload=published.MOE, config="n") == "93.7 to 97.8 %"
    assert known(microbatch=64) == "around 99 %"
    assert known(microbatch=64, allocator=TORCH) is None
    assert known(workload="qwen2.5-14b", config="v", allocator=EXPANDABLE) == "out of memory"


def test_rows_survive_their_file(dense: dict[str, Row]) -> None:
    for row in dense.values():
        assert Row(**json.loads(json.dumps(asdict(row)))) == row
