"""Training on a real GPU: memory, speed and exactness of torch's allocators and stalloc.

    python benchmarks/gpu test
    python benchmarks/gpu test --only streams graph --output benchmarks/results/gpu-test
    python benchmarks/gpu bench --only gpt2-345m llama-1.3b --minutes 8
    python benchmarks/gpu programs
    python benchmarks/gpu speed --seconds 20
    python benchmarks/gpu calls
    python benchmarks/gpu largest --memory 24
    python benchmarks/gpu traces --folder benchmarks/traces/real
    python benchmarks/gpu differences
    python benchmarks/gpu test --device cpu

`test` trains small models with deterministic kernels, with and without stalloc, and compares
losses and weights to the bit: with streams, graphs and what else depends on which memory is whose;
and, where compute-sanitizer is installed, runs one under it. `--device cpu` is for where there is
no GPU.

`bench` trains each case under torch's caching allocator, under expandable segments, under stalloc
(from a plan of another run, from the start) and under stalloc.auto: the memory of the whole run.
Then it does so once more as if the GPU held no more than stalloc has needed. `programs` runs those
of the folder `programs`, which know nothing of stalloc and need transformers, peft, timm and
torch_geometric. `speed` measures the
time of a step under each, in turns in one process; `calls` what the driver's calls, a request and
the release of a pool cost. `largest` looks for the largest batch of each.
`traces` leaves memory snapshots of the cases, and `differences` compares these with what
`stalloc.estimate` records without a GPU.

`report` writes results/gpu.md. Each result is written at once, and the same command does not repeat
it: so `--minutes` may end it anywhere. `run` is one run, as a line of JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from bench import Bench, gpu_room
from cases import CASES, LARGEST, SPEED, TRACES
from checks import check
from models import MODELS
from programs import PROGRAMS
from programs import measure as measure_programs
from report import ROOT, Report
from runs import start
from training import Run

import stalloc

RESULTS = ROOT / "benchmarks" / "results"
ALLOCATORS = ("torch", "expandable", "stalloc", "auto")


def main() -> int:
    """Runs the sub-command."""
    args = parser().parse_args()
    if args.command == "run":
        options = {k: v for k, v in vars(args).items() if k not in ("command", "turns")}
        run = Run(**options)
        if args.turns:
            from speed import measure

            print(json.dumps(measure(run, args.turns)))
        else:
            print(json.dumps(run.train()))
        return 0
    if args.command == "differences":
        return differences(args)
    if args.command == "report":
        from page import report

        (args.folder / "gpu.md").write_text(report(args.folder))
        return 0
    on_gpu = args.command != "test" or args.device.startswith("cuda")
    if on_gpu and not torch.cuda.is_available():
        print("this needs a GPU, and torch finds none", file=sys.stderr)
        return 2
    names = {
        "programs": PROGRAMS,
        "bench": CASES,
        "speed": SPEED,
        "largest": LARGEST,
        "traces": TRACES,
    }
    if unknown := [
        n for n in getattr(args, "only", []) if n not in names.get(args.command, args.only)
    ]:
        print(f"there is no {unknown[0]!r}; there are {list(names[args.command])}", file=sys.stderr)
        return 2
    if args.command == "test":
        report = Report(args.output or (RESULTS / "gpu-test" if on_gpu else None), args.anew)
        return check(args.device, args.only, args.jobs, report)
    if args.command == "traces":
        return traces(args)
    report = Report(args.output, args.anew)
    if args.command == "calls":
        from calls import measure as measure_calls

        result = {"name": "calls", **measure_calls()}
        print(json.dumps(result, indent=2))
        report.put("name", result)
        return 0
    if args.command == "speed":
        return speed(args, report)
    if args.command == "programs":
        done = measure_programs(args.only, 60 * args.minutes, args.jobs, report)
        return 0 if done else 1
    room = gpu_room(args.share)
    bench = Bench(report, args.allocators, args.minutes, args.patience, args.jobs, room)
    if args.command == "largest":
        runs = {name: LARGEST[name] for name in args.only or LARGEST}
        done = [bench.search(name, run, args.memory, args.limit) for name, run in runs.items()]
        return 0 if all(done) else 1
    return 0 if bench.compare({name: CASES[name] for name in args.only or CASES}) else 1


def speed(args: argparse.Namespace, report: Report) -> int:
    """Measures the cases one after the other: a GPU that does other work tells no time."""
    passed = True
    for name in args.only or SPEED:
        run = dataclasses.replace(SPEED[name], allocator="torch")
        result = start(run, 60 * args.patience, turns=args.seconds)
        passed = passed and "failed" not in result
        print(f"{name}: {result}", flush=True)
        report.put("name", {"name": f"speed, {name}", **result})
    return 0 if passed else 1


def traces(args: argparse.Namespace) -> int:
    """Leaves a snapshot of each case."""
    args.folder.mkdir(parents=True, exist_ok=True)
    room = gpu_room(args.share)

    def record(name: str) -> bool:
        path = args.folder / f"{name.replace(', ', '-').replace(' ', '-').lower()}.pickle.gz"
        run = dataclasses.replace(TRACES[name], snapshot=str(path))
        with room.take(CASES[name].room):
            result = start(run, 60 * args.patience)
        report = {key: result[key] for key in result if key not in ("losses", "log")}
        facts = {"program": dataclasses.asdict(run) | {"snapshot": path.name}, "measured": report}
        path.with_suffix("").with_suffix(".json").write_text(json.dumps(facts, indent=2) + "\n")
        print(f"{name}: {result.get('failed', 'recorded')}", flush=True)
        return path.exists()

    with ThreadPoolExecutor(args.jobs) as pool:
        return 0 if all(list(pool.map(record, args.only or TRACES))) else 1


def differences(args: argparse.Namespace) -> int:
    """Prints the differences of real runs from estimates, and writes them."""
    from differences import compare, table

    files = sorted(args.folder.glob("*.json"))
    comparisons, problems = [], []
    for path in [path for path in files if not args.only or path.stem in args.only]:
        try:
            comparisons.append(compare(path))
        except (stalloc.StallocError, RuntimeError) as error:  # torch's, of what is not built in
            problems.append(f"- {path.stem}: {str(error).splitlines()[0]}")
            print(problems[-1], file=sys.stderr)
    text = table(comparisons) + ("\nNot compared:\n\n" + "\n".join(problems) if problems else "")
    print(text)
    if args.output:
        args.output.write_text(text)
    return 0 if comparisons else 1


def parser() -> argparse.ArgumentParser:
    """The options of the sub-commands."""
    result = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = result.add_subparsers(dest="command", required=True)
    cores = os.cpu_count() or 1
    test = commands.add_parser("test", help="compare results with and without stalloc, bitwise")
    test.add_argument("--device", default="cuda")
    test.add_argument("--output", type=Path, help="write NAME.json")
    bench = commands.add_parser("bench", help="measure the memory of whole runs")
    programs = commands.add_parser("programs", help="measure the memory of users' programs")
    turns = commands.add_parser("speed", help="measure the time of a step, in turns")
    turns.add_argument("--seconds", type=float, default=30, help="of turns, for each case")
    calls = commands.add_parser("calls", help="measure what the driver's calls cost")
    largest = commands.add_parser("largest", help="look for the largest batch")
    largest.add_argument("--memory", type=float, default=24, help="use no more than so many GiB")
    largest.add_argument("--limit", type=int, default=1024, help="the largest batch to try")
    snapshots = commands.add_parser("traces", help="leave memory snapshots")
    compared = commands.add_parser("differences", help="compare snapshots with estimates")
    for command in (snapshots, compared):
        command.add_argument("--folder", type=Path, default=ROOT / "benchmarks" / "traces" / "real")
    compared.add_argument("--output", type=Path, help="write the tables as Markdown")
    written = commands.add_parser("report", help="write gpu.md of the results")
    written.add_argument("--folder", type=Path, default=RESULTS)
    for command in (bench, programs, turns, calls, largest):
        command.add_argument("--output", type=Path, default=RESULTS / "gpu")
    for command in (bench, largest):
        command.add_argument("--allocators", nargs="+", choices=ALLOCATORS, default=ALLOCATORS)
    for command in (bench, programs, largest):
        command.add_argument("--minutes", type=float, default=600, help="be done after so many")
    for command in (bench, turns, largest, snapshots):
        command.add_argument(
            "--patience", type=float, default=5, help="minutes one process may take"
        )
    for command in (bench, largest, snapshots):
        command.add_argument(
            "--share", type=float, default=0.95, help="of the GPU's free memory to use at a time"
        )
    for command in (test, bench, programs, largest, snapshots):
        command.add_argument(
            "--jobs", type=int, default=max(1, min(6, cores // 3)), help="processes at a time"
        )
    for command in (test, bench, programs, turns, largest, snapshots, compared):
        command.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these alone")
    for command in (test, bench, programs, turns, calls, largest):
        command.add_argument("--anew", action="store_true", help="forget what was measured before")
    add_run(commands.add_parser("run", help="one training run; prints a line of JSON"))
    return result


def add_run(run: argparse.ArgumentParser) -> None:
    """The options of one run: the fields of Run."""
    run.add_argument("--turns", type=float, default=0, help="seconds to measure the step's time")
    for f in dataclasses.fields(Run):
        if f.name == "losses":
            continue
        option = f"--{f.name}"
        if f.type == "bool":
            run.add_argument(option, action="store_true")
        elif f.default is dataclasses.MISSING:
            run.add_argument(
                option, required=True, choices=MODELS if f.name == "model" else ALLOCATORS
            )
        else:
            run.add_argument(option, type=type(f.default), default=f.default)


if __name__ == "__main__":
    sys.exit(main())
