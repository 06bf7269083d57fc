"""The paper's evaluation: records its workloads, replays them, and writes the report.

    python benchmarks/paper [--torch DIR] [--gmlake DIR --torch-2.0 DIR] [--stalloc DIR]
        [--only NAME ...]
    python benchmarks/paper --report

`make paper` calls it. Traces and rows are kept under build/paper: what has not changed is not done
again. Without a CUDA build of torch (`make test-cuda` installs one) torch's rows come from the
model of its policy, and runs in native mode are left out. GMLake's come from its own source, if it
is given with the torch for which it was written. `--stalloc` adds the planner that the paper's
authors published. `--only` leaves the rows of other workloads in paper.json; each row has the
commit at which it was measured. `--report` measures nothing: it writes the report of paper.json
again, which says so if figures are older than the code.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import os
import platform
import resource
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, fields, replace
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "workloads"))
sys.path.insert(2, str(Path(__file__).resolve().parents[1] / "replay"))

import real
from commit import last_change, older_than
from compact_json import one_row_a_line

from paper import authors, published, report
from paper.evaluation import ROUNDS, Programs
from paper.figures import native_configs, row_name, used_configs, workloads
from paper.native import STREAM_USES, USES, Native, UseRow, find_native, measure
from paper.rows import Row
from paper.work import Done, do

ROOT = Path(__file__).resolve().parents[2]
_RESULTS = ROOT / "benchmarks" / "results"
MEASURED = (
    *("csrc", "stalloc", "benchmarks/workloads"),
    *(
        f"benchmarks/paper/{name}.py"
        for name in ("authors", "evaluation", "figures", "recording", "rows")
    ),
    *("benchmarks/paper/native.py", "benchmarks/paper/native_run.py"),
    *(f"benchmarks/replay/{name}" for name in ("events.py", "real.py", "planned_replay.cpp")),
    "benchmarks/replay/gmlake_replay.cpp",
    *(f"benchmarks/replay/{name}" for name in ("events.h", "torch_replay.cpp")),
)
"""The sources that the figures depend on."""


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks/paper", description=__doc__)
    parser.add_argument(
        "--torch",
        type=Path,
        default=ROOT / ".venv-cuda",
        metavar="DIR",
        help="an environment with a CUDA build of torch (default: .venv-cuda)",
    )
    parser.add_argument(
        "--gmlake", type=Path, metavar="DIR", help="a clone of intelligent-machine-learning/glake"
    )
    parser.add_argument(
        "--torch-2.0",
        type=Path,
        dest="old_torch",
        metavar="DIR",
        help="a folder with torch 2.0.1, for --gmlake (pip install --no-deps --target DIR)",
    )
    parser.add_argument(
        "--stalloc", type=Path, metavar="DIR", help="a clone of infinigence/STAlloc"
    )
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="NAME", help="workloads, as in 'gpt2-*-first'"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: 2)")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="of taking times (default: %(default)s)"
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "paper", metavar="DIR")
    parser.add_argument("--output", type=Path, default=_RESULTS, metavar="DIR")
    parser.add_argument("--report", action="store_true", help="only write the report again")
    args = parser.parse_args()
    if args.report:
        report_again(args.output)
        return 0
    if (args.gmlake is None) != (args.old_torch is None):
        parser.error("--gmlake and --torch-2.0 belong together: give both, or neither")
    chosen = [c for c in workloads() if any(fnmatch.fnmatch(c.name, p) for p in args.only)]
    in_native = [c for c in native_configs() if any(fnmatch.fnmatch(c.name, p) for p in args.only)]
    if not chosen and not in_native:
        parser.error(f"no workload is called {' or '.join(args.only)}; see benchmarks/workloads")
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes: they are as many as there are cores
    began = time.perf_counter()
    programs = _programs(args.torch, args.build, args.rounds)
    try:
        if args.gmlake is not None:
            found = real.build_gmlake(args.gmlake, args.old_torch, args.build)
            programs = replace(programs, gmlake=found)
        if args.stalloc is not None:
            programs = replace(programs, synthesizer=authors.find(args.stalloc))
    except real.Unavailable as error:
        parser.error(str(error))
    native = _native(args.torch) if in_native else None
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        runs: dict[Future[list[UseRow]], str] = {}
        for config in in_native if native is not None else ():
            ways = USES if config in used_configs() else STREAM_USES
            runs[pool.submit(measure, config, native, ways, args.build / "uses")] = config.name
        replays: dict[Future[Done], str] = {
            pool.submit(do, config, args.build, programs): config.name for config in chosen
        }
        names = {**runs, **replays}
        for number, done in enumerate(as_completed(names), 1):
            done.result()  # a failure ends it here
            seconds = time.perf_counter() - began
            print(f"[{number}/{len(names)}] {seconds:5.0f} s  {names[done]}", flush=True)
    uses = [row for run in runs for row in run.result()]
    _write([done.result() for done in replays], uses, args.output, programs, seconds)
    return 0


def _programs(torch: Path, build: Path, rounds: int) -> Programs:
    """Builds what can be built, and says what cannot."""
    found = planned = None
    try:
        planned = real.build_planned(build)
        found = real.build_torch(torch, build)
    except real.Unavailable as error:
        print(f"without: {error}", file=sys.stderr)
    return Programs(torch=found, planned=planned, rounds=rounds)


def _native(torch: Path) -> Native | None:
    """The environment for runs in native mode; says so if there is none."""
    try:
        return find_native(torch)
    except real.Unavailable as error:
        print(f"without runs in native mode: {error}", file=sys.stderr)
        return None


def _write(
    finished: list[Done], uses: list[UseRow], folder: Path, programs: Programs, seconds: float
) -> None:
    commit = last_change(*MEASURED)
    rows = [replace(row, commit=commit) for done in finished for row in done.rows]
    uses = [replace(use, commit=commit) for use in uses]
    machine = {
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": programs.torch.version if programs.torch else "modelled",
        "rounds": f"{programs.rounds}",
        "cpu_seconds_record": f"{sum(done.record_seconds for done in finished):.0f}",
        "cpu_seconds_replay": f"{sum(done.replay_seconds for done in finished):.0f}",
        "peak_process_gib": f"{resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20:.1f}",
    }
    folder.mkdir(parents=True, exist_ok=True)
    if not rows:  # circumstances of the replays
        machine = _read(folder)[2] if (folder / "paper.json").exists() else machine
    _render(merged(rows, folder), merged_uses(uses, folder), machine, folder)
    print(f"{folder / 'paper.md'}: {len(rows) + len(uses)} rows in {seconds:.0f} s")


def merged(rows: list[Row], folder: Path) -> list[Row]:
    """The rows, and those of a folder's paper.json that are of other workloads of today."""
    measured = {row.name for row in rows}
    names = {row_name(config) for config in workloads()} - measured
    before = _read(folder)[0] if (folder / "paper.json").exists() else []
    return sorted([*rows, *(row for row in before if row.name in names)], key=lambda row: row.name)


def merged_uses(uses: list[UseRow], folder: Path) -> list[UseRow]:
    """Likewise the runs in native mode."""
    names = {config.name for config in native_configs()} - {use.workload for use in uses}
    before = _read(folder)[1] if (folder / "paper.json").exists() else []
    return sorted(
        [*uses, *(use for use in before if use.workload in names)], key=lambda use: use.workload
    )


def report_again(folder: Path) -> None:
    """Writes the report of a folder's paper.json, and says there if the code has changed since."""
    _render(*_read(folder), folder)


def _read(folder: Path) -> tuple[list[Row], list[UseRow], dict[str, str]]:
    """The rows of a folder's paper.json, and the circumstances of the last measurement."""
    document = json.loads((folder / "paper.json").read_text())
    known = {field.name for field in fields(Row)}
    commit = document.pop("commit", "")  # of all rows, where they do not have their own
    rows = [
        Row(**{"commit": commit} | {k: v for k, v in row.items() if k in known})
        for row in document.pop("rows")
    ]
    uses = [UseRow(**use) for use in document.pop("uses", [])]
    return rows, uses, document


def _render(rows: list[Row], uses: list[UseRow], machine: dict[str, str], folder: Path) -> None:
    described = []
    for row in rows:
        known = published.of(row)
        described.append({**asdict(row), "published": known.text if known else None})
    document = {**machine, "rows": described, "uses": [asdict(use) for use in uses]}
    (folder / "paper.json").write_text(one_row_a_line(document))
    commits = {row.commit for row in rows} | {use.commit for use in uses}
    older = {commit for commit in commits if older_than(commit, *MEASURED)}
    (folder / "paper.md").write_text(report.render(rows, machine, uses=uses, older=older))
    if importlib.util.find_spec("matplotlib") is None:
        print("without plots: matplotlib is missing; see requirements/paper.txt", file=sys.stderr)
        return
    from paper import plots

    plots.draw(rows, folder)


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main())
