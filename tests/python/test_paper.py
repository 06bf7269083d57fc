"""The paper's evaluation in a reduced form: a dense model and a mixture of experts, fewer layers.

torch's rows come from the model of its policy, so that no CUDA build is needed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "workloads"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "replay"))

import commit
import real
from configs import Config, Parallelism, all_configs
from events import DYNAMIC_BEGINS, DYNAMIC_ENDS, FREED, ITERATION_ENDS, PHASE_BEGINS, events_of
from models import LLAMA2_7B, QWEN15_MOE
from paper import __main__ as command
from paper import authors, evaluation, published, recording, report
from paper.evaluation import Programs, evaluate
from paper.figures import figures, row_name, workloads
from paper.recording import PROFILED, UNSEEN, Recorded
from paper.rows import (
    AUTHORS,
    EXPANDABLE,
    GMLAKE,
    NO_REUSE,
    SETTINGS,
    STALLOC,
    TORCH,
    Row,
    with_setting,
)
from paper.targets import outcomes
from rank import record
from real import STANDIN

import stalloc
from stalloc.replaying import replay_torch
from stalloc.tables import PHASE_KINDS

ROOT = Path(__file__).parents[2]
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
    machine = {"cpu": "", "cores": "2", "system": ""}
    text = report.render([*gpt2, *fits], machine)
    authors = "| 25.4 GB, 59.4 % | 19.1 GB, 78.8 % | 29.2 GB, 52.4 % | 14.8 GB, 100.0 % |"
    assert authors in text
    (line,) = (line for line in text.splitlines() if line.startswith("| Original | first"))
    assert line.endswith("| no / no / yes | 464.3 |")
    assert line.split(" | ")[3] == "no"
    assert "35 of 36 workloads were not run." in text


def test_the_loads_of_the_authors_runs_are_compared(dense: dict[str, Row]) -> None:
    run = {"workload": "legacy-gpt2-345m", "stage": "last", "microbatch": 128}
    near = rows_like(dense, **run, config="zor", load=15 * 2**30)
    far = rows_like(dense, **run | {"stage": "first"}, config="n", load=40 * 2**30)
    machine = {"cpu": "", "cores": "2", "system": ""}
    text = report.render([*near, *far], machine)
    assert "| legacy-gpt2-345m ZOR last | 15.00 | 14.81 | +1.3% |" in text
    assert "| legacy-gpt2-345m N first | 40.00 | 46.89 | -14.7% |" in text
    assert "1 of 2 published runs differ by at most 3%" in text


def test_torch_has_its_other_settings(dense: dict[str, Row]) -> None:
    reserved = dense[STALLOC].reserved
    rows = rows_like(dense, workload="gpt2-345m", config="n", microbatch=128)
    first, second = SETTINGS[:2]
    torch = replace(rows[0], allocator=with_setting(first), reserved=reserved + 2**20)
    fails = replace(torch, allocator=with_setting(second), reserved=1, fits=False)
    machine = {"cpu": "", "cores": "2", "system": ""}
    text = report.render([*rows, torch, fails], machine)
    (line,) = (
        line
        for line in text.split("## Settings")[1].split("\n## ")[0].splitlines()
        if line.startswith("| gpt2-345m N")
    )
    cells = line.strip("| ").split(" | ")
    assert cells[5:7] == [f"{(reserved + 2**20) / 2**30:.2f}", "†"]
    (target,) = (o for o in outcomes([*rows, torch, fails]) if "other settings" in o.target.text)
    assert target.groups
    assert not target.missed
    worse = replace(torch, reserved=reserved)
    (target,) = (o for o in outcomes([*rows, worse, fails]) if "other settings" in o.target.text)
    assert target.missed


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

    assert known(workload=published.MOE, config="zor") == "31.9 GB, 80.5 %"
    assert known(workload=published.MOE, config="n") == "93.7 to 97.8 %"
    assert known(microbatch=64) == "around 99 %"
    assert known(microbatch=64, allocator=TORCH) is None
    assert known(workload="qwen2.5-14b", config="v", allocator=EXPANDABLE) == "out of memory"


def test_rows_survive_their_file(dense: dict[str, Row]) -> None:
    for row in dense.values():
        assert Row(**json.loads(json.dumps(asdict(row)))) == row


def test_peers_have_their_published_efficiency(dense: dict[str, Row]) -> None:
    known = published.of(replace(dense[TORCH], workload="llama2-7b", config="zor", stage="last"))
    assert known is not None
    assert known.efficiency == pytest.approx(12.87 / 20.29, abs=1e-3)
    assert known.load_gb == pytest.approx(12.87, abs=0.01)


def test_a_part_of_the_evaluation_runs_as_a_command(tmp_path: Path) -> None:
    torch = Path(os.environ.get("CUDA_VENV", ROOT / ".venv-cuda"))
    command = [sys.executable, ROOT / "benchmarks" / "paper", "--torch", torch, "--jobs", "1"]
    command += ["--only", "gpt2-345m-r-last", "--rounds", "1"]
    command += ["--build", tmp_path / "build", "--output", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {
        row["allocator"]: row for row in json.loads((tmp_path / "paper.json").read_text())["rows"]
    }
    assert rows[STALLOC]["reserved"] < rows[EXPANDABLE]["reserved"] < rows[TORCH]["reserved"]
    real = [*torch.glob("lib/python3*/site-packages/torch/lib/libc10_cuda.so")]
    stands_in = STANDIN.exists()
    settings = map(with_setting, SETTINGS if real and stands_in else ())
    assert set(rows) == {TORCH, EXPANDABLE, GMLAKE, STALLOC, *settings}
    assert rows[GMLAKE]["by"] == "model"
    assert rows[STALLOC]["reserved"] < rows[GMLAKE]["reserved"]
    for name in (TORCH, EXPANDABLE):
        assert rows[name]["by"].startswith("torch " if real and stands_in else "model")
    assert (rows[STALLOC]["seconds_per_request"] is not None) == stands_in
    assert "| gpt2-345m R last | 128 |" in (tmp_path / "paper.md").read_text()


def test_gmlake_needs_its_source_and_its_torch(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "benchmarks" / "paper", "--only", "gpt2-345m-r-last"]
    for more, reason in (
        (["--gmlake", tmp_path], "--gmlake and --torch-2.0 belong together"),
        (["--gmlake", tmp_path, "--torch-2.0", tmp_path], f"no GMLake in {tmp_path}"),
    ):
        done = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert reason in done.stderr
    (tmp_path / "GMLake" / "src").mkdir(parents=True)
    with pytest.raises(real.Unavailable, match=r"no torch 2\.0"):
        real.build_gmlake(tmp_path, tmp_path, tmp_path)


def test_the_report_compares_the_models_with_the_allocators(dense: dict[str, Row]) -> None:
    def report_of(gmlake: Row) -> str:
        rows = [row for row in dense.values() if row.allocator != GMLAKE] + [gmlake]
        named = [replace(row, workload="gpt2-345m", config="n", microbatch=128) for row in rows]
        return report.render(named, {"cpu": "", "cores": "2", "system": ""})

    row = dense[GMLAKE]
    assert "GMLake itself did not run" in report_of(row)
    same = replace(row, by="GMLake abc", model_reserved=row.reserved)
    assert "1 of 1 replays of the model reserve what GMLake itself does" in report_of(same)
    other = report_of(replace(same, model_reserved=row.reserved + 2))
    assert "0 of 1 replays of the model reserve what GMLake itself does" in other
    assert "| GMLake | +2 |" in other


def test_the_authors_planner_gets_every_request(folder: Path) -> None:
    trace = stalloc.Trace.load(recorded(DENSE, folder).trace)
    lines = authors.lines_of(trace)
    live: dict[str, int] = {}
    load = most = 0
    for line in lines:
        if not line[0].isdigit():
            continue
        status, pointer, size, stream = line.split()
        assert stream == "0"
        if status == "1":
            assert pointer not in live
            live[pointer] = int(size)
            load += int(size)
        else:
            assert live.pop(pointer) == int(size)
            load -= int(size)
        most = max(most, load)
    assert not live, "the process ends"
    requests = trace.requests
    assert sum(line.startswith("1 ") for line in lines) == len(requests)
    assert most == replay_torch(trace).peak_load
    iterations = [line for line in lines if line.startswith("Iteration")]
    count = len(trace.iterations) - 1
    assert iterations == [f"Iteration Index : {i}" for i in [*range(count), "end"]]
    for kind in "FB":
        passes = lines.count(f"micro-batch : {kind}")
        assert passes == count * DENSE.parallelism.microbatches
    # Start-up, with the weights, comes before the first iteration.
    first = lines.index("Iteration Index : 0")
    assert sum(int(line.split()[2]) for line in lines[:first]) > 1 << 30


def test_the_authors_planner_has_its_reasons_not_to_run(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(real.Unavailable, match="no Synthesizer in"):
        authors.find(tmp_path)
    (tmp_path / "Synthesizer").mkdir()
    (tmp_path / "Synthesizer" / "main.py").write_text("raise SystemExit('broken')\n")
    planner = authors.Synthesizer("abc", tmp_path / "Synthesizer")
    trace = stalloc.Trace.load(recorded(DENSE, folder).trace)
    with pytest.raises(RuntimeError, match="the Synthesizer failed: broken"):
        authors.plan(trace, planner)


def test_the_report_has_the_authors_planner(dense: dict[str, Row]) -> None:
    theirs = replace(dense[TORCH], allocator=AUTHORS, plan_seconds=24.5, efficiency=0.9475)
    rows = [
        replace(row, workload="gpt2-345m", config="r", microbatch=128)
        for row in (*dense.values(), theirs)
    ]
    text = report.render(rows, {"cpu": "", "cores": "2", "system": ""})
    reserved = f"{theirs.reserved / 2**30:.2f}, 94.8 %"
    assert f"| 24.5 | {reserved} | 16,569 | 21.93 |" in text
    assert f"| 24.5 | {reserved}" not in report.render(
        rows[:-1], {"cpu": "", "cores": "2", "system": ""}
    )


def written(folder: Path, dense: dict[str, Row]) -> str:
    rows = [{**asdict(row), "published": None} for row in dense.values()]
    machine = {"cpu": "", "cores": "2", "system": "", "commit": "abc"}
    rows = [{k: v for k, v in row.items() if k != "commit"} for row in rows]
    (folder / "paper.json").write_text(json.dumps({**machine, "rows": rows}))
    command.report_again(folder)
    return (folder / "paper.md").read_text()


@pytest.mark.parametrize("older", [False, True])
def test_a_report_says_that_its_figures_are_older_than_the_code(
    older: bool, dense: dict[str, Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "older_than", lambda since, *_: older and since == "abc")
    assert ("Older than the code" in written(tmp_path, dense)) == older


def test_a_part_leaves_the_other_rows_with_their_commit(
    dense: dict[str, Row], tmp_path: Path
) -> None:
    name = {"workload": "gpt2-345m", "microbatch": 128, "stage": "first"}
    old = [replace(row, **name, config=c, commit="old") for c in "nr" for row in dense.values()]
    gone = [replace(row, workload="no such model") for row in dense.values()]
    (tmp_path / "paper.json").write_text(
        json.dumps({"cpu": "", "cores": "2", "system": "", "rows": list(map(asdict, old + gone))})
    )
    new = [replace(row, **name, config="n", commit="new") for row in dense.values()]
    rows = command.merged(new, tmp_path)
    assert {(row.workload, row.config, row.commit) for row in rows} == {
        ("gpt2-345m", "n", "new"),
        ("gpt2-345m", "r", "old"),
    }
    assert len(rows) == 2 * len(dense)
    text = report.render(rows, {"cpu": "", "cores": "2", "system": ""}, older={"old"})
    assert "1 at commit new" in text
    assert "figures of commit old" in text


def test_the_report_does_without_plots(
    dense: dict[str, Row],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "Figure 10" in written(tmp_path, dense)
    assert "matplotlib is missing" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.svg"))


def test_figures_are_older_once_their_sources_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True)

    monkeypatch.setattr(commit, "ROOT", tmp_path)
    git("init", "-q")
    for name in ("measured", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "source").write_text("1")
    git("add", "-A")
    git("commit", "-qm", "first")
    since = commit.last_change("measured")
    assert not commit.older_than(since, "measured")
    (tmp_path / "other" / "source").write_text("2")
    git("commit", "-qam", "second")
    assert not commit.older_than(since, "measured")
    (tmp_path / "measured" / "source").write_text("2")
    assert commit.older_than(since, "measured")
    assert commit.older_than(commit.last_change("measured"), "measured"), "it was never committed"
    git("commit", "-qam", "third")
    assert commit.older_than(since, "measured")
    assert not commit.older_than(commit.last_change("measured"), "measured")
    assert commit.older_than("0123456", "measured"), "nobody knows it"
