r"""Measures every planner on every instance: gap, seconds, peak memory.

    python benchmarks/plan --traces DIR --generate 10000 100000 300000 1000000 \
        --minimalloc PROGRAM --output benchmarks/results/plan

Each run has a process of its own, so that its peak memory is its own too. Prints a table; with
`--output NAME` writes NAME.md and NAME.json, which say on what machine, from which commit and from
which inputs the figures are.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1]))

import generate
from compact_json import one_row_a_line
from generate import Instance

PORTFOLIO = "portfolio"
ROOT = Path(__file__).resolve().parents[2]
# MiniMalloc and idealloc were measured without alignment; GPUs need 512.
UNALIGNED = ("minimalloc", "iopddl")
EVERY_PLANNER_UP_TO = 150_000  # requests; above it, the portfolio and what is quick
SEARCHES_UP_TO = {"exact": 2_000}
QUICK = (
    "paper",
    "chain",
    "walk",
    "first-fit-peak-rank-start",
    "best-fit-peak-rank-start",
    "first-fit-centre-out-end",
    "first-fit-start",
)


CHALLENGE = "minimalloc"  # instances made to fit this capacity:
CAPACITY = 1_048_576
FIT_TIME_LIMIT = 120.0  # seconds; what is compared is CPU


@dataclass(frozen=True)
class Fit:
    """True if this planner, and MiniMalloc, fit the instance into a capacity."""

    instance: str
    solved: bool
    cpu_seconds: float
    theirs_solved: bool
    theirs_cpu_seconds: float


@dataclass(frozen=True)
class Result:
    """One planner on one instance."""

    instance: str
    digest: str
    buffers: int
    planner: str
    algorithm: str
    bound: int
    height: int
    gap: float
    optimal: bool
    seconds: float
    cpu_seconds: float
    timed_out: bool
    peak_mib: float


def trace_instances(folder: Path) -> Iterator[Instance]:
    """Every CSV of a folder."""
    from stalloc.planner import load_csv

    for path in sorted(folder.glob("*.csv")):
        csv = load_csv(path)
        none = np.full(len(csv.ids), -1, np.int32)
        yield Instance(path.stem, csv.lower, csv.upper, csv.size, none, none)


def alignment_of(name: str) -> int:
    """The alignment an instance is planned with."""
    return 1 if name.startswith(UNALIGNED) else 512


def measure(instance: Instance, planner: str, limit: float, threads: int) -> dict[str, Any]:
    """Plans once, or thrice where that is quick; run in a process of its own."""
    from stalloc import planner as stalloc

    before = _memory("VmRSS")
    runs: list[float] = []
    cpu: list[float] = []
    while True:
        began = time.process_time()
        solution = stalloc.plan(
            instance.lower,
            instance.upper,
            instance.size,
            alignment=alignment_of(instance.name),
            phase_begin=instance.phase_begin,
            phase_end=instance.phase_end,
            algorithm=None if planner == PORTFOLIO else planner,
            time_limit=limit,
            threads=threads,
        )
        runs.append(solution.seconds)
        cpu.append(time.process_time() - began)
        if len(runs) == 3 or solution.seconds > 1.0:
            break
    return {
        "algorithm": solution.algorithm,
        "bound": solution.bound,
        "height": solution.height,
        "gap": solution.gap,
        "optimal": solution.optimal,
        "seconds": min(runs),
        "cpu_seconds": min(cpu),
        "timed_out": runs[-1] >= limit,
        "peak_mib": (_memory("VmHWM") - before) / 1024,
    }


def _memory(key: str) -> int:
    """KiB of this process, from the kernel's books."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {key}")


def _report(pipe: Connection, *arguments: Any) -> None:
    pipe.send(measure(*arguments))


def run(instance: Instance, planners: list[str], limit: float, threads: int) -> Iterator[Result]:
    """All planners on one instance, one process each."""
    fork = multiprocessing.get_context("fork")
    for planner in planners:
        here, there = fork.Pipe()
        process = fork.Process(target=_report, args=(there, instance, planner, limit, threads))
        process.start()
        there.close()
        measured = here.recv()
        process.join()
        yield Result(
            instance=instance.name,
            digest=instance.digest,
            buffers=len(instance.lower),
            planner=planner,
            **measured,
        )


def fit(instance: Instance, minimalloc: Path, limit: float) -> Fit:
    """True if both find the solution that is known to exist."""
    import stalloc

    alignment = alignment_of(instance.name)
    began = time.process_time()
    try:
        stalloc.plan(
            instance.lower,
            instance.upper,
            instance.size,
            alignment=alignment,
            capacity=CAPACITY,
            time_limit=limit,
            threads=1,
        )
        solved = True
    except stalloc.PlanError:
        solved = False
    ours = time.process_time() - began
    with tempfile.TemporaryDirectory() as folder:
        given, answer = Path(folder) / "in.csv", Path(folder) / "out.csv"
        size = -(-instance.size // alignment) * alignment  # it rounds nothing itself
        rows = np.stack([np.arange(len(size)), instance.lower, instance.upper, size], axis=1)
        np.savetxt(given, rows, "%d", ",", header="id,lower,upper,size", comments="")
        command = [
            str(minimalloc.resolve()),
            f"--capacity={CAPACITY}",
            f"--input={given}",
            f"--output={answer}",
            f"--timeout={limit}s",
        ]
        before = _children_seconds()
        subprocess.run(command, check=False, capture_output=True)
        theirs = _children_seconds() - before
        theirs_solved = answer.exists() and len(answer.read_text().split()) == len(size) + 1
    return Fit(instance.name, solved, ours, theirs_solved, theirs)


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def planners_for(instance: Instance, chosen: list[str]) -> list[str]:
    """The planners to run on an instance of this size."""
    from stalloc.planner import algorithms

    if chosen:
        return chosen
    requests = len(instance.lower)
    every = [name for name in algorithms() if requests <= SEARCHES_UP_TO.get(name, requests)]
    if requests > EVERY_PLANNER_UP_TO:
        every = [name for name in every if name in QUICK]
    return [PORTFOLIO, *every]


def machine() -> dict[str, str]:
    """The machine and the commit that the figures come from."""
    cpu = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    return {
        "cpu": cpu,
        "cores": str(os.cpu_count()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "commit": git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--short") else ""),
    }


def markdown(
    results: list[Result], fits: list[Fit], facts: dict[str, str], limit: float, threads: int
) -> str:
    """The table of the portfolio, and one of every planner's gap and seconds."""
    lines = [
        "# Planners",
        "",
        f"{facts['cpu']}, {threads} of {facts['cores']} cores used, {facts['system']}, "
        f"commit {facts['commit']}; time limit {limit:g} s. Seconds are the least of three runs "
        "where a run takes less than one; those of CPU do not depend on what else the machine did. "
        "Peak memory is what planning adds to the process. "
        "Written by `python benchmarks/plan`.",
        "",
        "| instance | buffers | bound | above it | gap | proven | seconds | of CPU | peak MiB | by "
        "| input |",
        "|---|---:|---:|---:|---:|---|---:|---:|---:|---|---|",
    ]
    for r in results:
        if r.planner == PORTFOLIO:
            lines.append(
                f"| {r.instance} | {r.buffers:,} | {r.bound:,} | {r.height - r.bound:,} "
                f"| {100 * r.gap:.4f} % | {'yes' if r.optimal else 'no'} | {r.seconds:.3f} "
                f"| {r.cpu_seconds:.3f} | {r.peak_mib:.0f} | {r.algorithm} | {r.digest} |"
            )
    lines += _growth(results)
    lines += _fits(fits)
    names = list(dict.fromkeys(r.planner for r in results))
    by_pair = {(r.instance, r.planner): r for r in results}
    lines += ["", "## Every planner: gap in percent (seconds of CPU)", ""]
    for name in names:
        if name == PORTFOLIO:
            continue
        cells = [
            f"{instance} {100 * r.gap:.3f} ({r.cpu_seconds:.2f}{', out of time' * r.timed_out})"
            for (instance, planner), r in by_pair.items()
            if planner == name
        ]
        lines.append(f"- **{name}**: " + "; ".join(cells))
    return "\n".join(lines) + "\n"


def _growth(results: list[Result]) -> list[str]:
    """Time by size, of what is generated in several."""
    kinds: dict[str, list[Result]] = {}
    for r in results:
        kind = r.instance.rpartition("-")[0]
        if r.planner == PORTFOLIO and kind in generate.KINDS:
            kinds.setdefault(kind, []).append(r)
    lines = ["", "## Growth: microseconds of CPU a request", ""]
    for kind, rows in kinds.items():
        cells = [f"{1e6 * r.cpu_seconds / r.buffers:.2f} at {r.buffers:,}" for r in rows]
        lines.append(f"- **{kind}**: " + "; ".join(cells))
    return lines if kinds else []


def _fits(fits: list[Fit]) -> list[str]:
    if not fits:
        return []

    def cell(solved: bool, seconds: float) -> str:
        return f"{seconds:.2f}" if solved else f"no ({seconds:.2f})"

    lines = [
        "",
        "## Beside MiniMalloc: seconds of CPU to fit a capacity",
        "",
        f'Each was made to fit {CAPACITY:,}. "no": none was found in time.',
        "",
        "| instance | stalloc | MiniMalloc |",
        "|---|---:|---:|",
    ]
    for f in fits:
        ours = cell(f.solved, f.cpu_seconds)
        theirs = cell(f.theirs_solved, f.theirs_cpu_seconds)
        lines.append(f"| {f.instance} | {ours} | {theirs} |")
    return lines


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks/plan", description=__doc__.split("\n")[0])
    parser.add_argument("--traces", type=Path, help="a folder of MiniMalloc CSV files")
    parser.add_argument(
        "--generate", type=int, nargs="*", default=[], metavar="N", help="requests of a rank"
    )
    parser.add_argument("--kinds", nargs="*", default=list(generate.KINDS), choices=generate.KINDS)
    parser.add_argument("--planners", nargs="*", default=[], help="default: all that are sensible")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each run")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--minimalloc", type=Path, metavar="PROGRAM", help="run it beside, on its own instances"
    )
    parser.add_argument("--output", type=Path, help="write this name with .md and .json")
    args = parser.parse_args()

    def instances() -> Iterator[Instance]:
        if args.traces:
            yield from trace_instances(args.traces)
        for kind in args.kinds:
            for requests in args.generate:
                yield generate.sized(kind, requests)

    results: list[Result] = []
    fits: list[Fit] = []
    for instance in instances():
        planners = planners_for(instance, args.planners)
        for result in run(instance, planners, args.time_limit, args.threads):
            results.append(result)
            print(
                f"{result.instance:28} {result.buffers:9,} {result.planner:36} "
                f"{result.height - result.bound:15,} above  {100 * result.gap:8.4f} %  "
                f"{'proven' if result.optimal else '      '}  {result.seconds:8.3f} s  "
                f"{result.peak_mib:6.0f} MiB  {result.algorithm}",
                flush=True,
            )
        if args.minimalloc and instance.name.startswith(CHALLENGE):
            fits.append(fit(instance, args.minimalloc, FIT_TIME_LIMIT))
            print(fits[-1], flush=True)
    facts = machine()
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        document = {
            **facts,
            "time_limit": args.time_limit,
            "threads": args.threads,
            "results": [dataclasses.asdict(r) for r in results],
            "fits": [dataclasses.asdict(f) for f in fits],
        }
        args.output.with_suffix(".json").write_text(one_row_a_line(document))
        args.output.with_suffix(".md").write_text(
            markdown(results, fits, facts, args.time_limit, args.threads)
        )


if __name__ == "__main__":
    main()
