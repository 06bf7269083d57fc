"""Runs the programs of benchmarks/programs on the pretended GPU, in native mode.

    scripts/test_cuda.sh python3 torch==2.14.1 .venv-cuda -- python benchmarks/cuda/programs.py

Unlike the replays of benchmarks/programs, these are whole processes: torch's own allocator, its
operators and autograd are real, kernels compute nothing, cuDNN is off. Each program runs in a
process for each way of use: with torch's usual segments, with expandable ones, under a plan that
another process has made of the first five iterations, and with `stalloc.auto()` alone. A program
that torch alone cannot run there, since it calls a library that is not pretended (solvers, Fourier
transforms), is listed as such. If another way fails, so does the benchmark.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from commit import last_change
from programs.__main__ import PROGRAMS, chosen
from programs.registry import PROFILED, Run

import stalloc

Row = dict[str, Any]

_WAYS = ("torch", "expandable", "plan", "auto")
_TITLES = ("torch", "expandable segments", "stalloc, plan", "stalloc.auto")
_GIB = 1 << 30
_LONGEST = 900  # seconds that a process may take

_HEAD = """# Programs whose memory changes, in native mode

Written by `python benchmarks/cuda/programs.py` at {commit}, with torch {torch} on the pretended
GPU. GiB reserved at the peak over the whole run of {iterations} iterations, start-up included, and
what they are as a multiple of torch's load. "plan": of another process, from its start on. "auto":
`stalloc.auto()` and no plan of an earlier run; in brackets the iterations under a plan.

"""


def main() -> int:
    """The command line."""
    args = _parser().parse_args()
    if args.measure:
        print(json.dumps(_measure(args.measure, args.only[0], args.iterations, args.plan)))
        return 0
    rows: list[Row] = []
    lacking: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        for program in chosen(args.only):
            plan.unlink(missing_ok=True)
            try:
                found = {"torch": _in_a_process("torch", program.name, args.iterations, plan)}
            except RuntimeError as error:
                lacking.append(program.name)
                print(f"{program.name}: it does not run here: {error}", flush=True)
                continue
            for way in ("profile", *_WAYS[1:]):
                found[way] = _in_a_process(way, program.name, args.iterations, plan)
            rows.append({"program": program.name, **found})
            print(_line(rows[-1]), flush=True)
            if args.output:
                args.output.write_text(_render(rows, lacking, args.iterations))
    for line in _summary(rows):
        print(line)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    names = [program.name for program in PROGRAMS]
    add("--only", nargs="+", default=names, metavar="NAME", help="programs, by name or pattern")
    add("--iterations", type=int, default=24, metavar="N", help="length of a run (default: 24)")
    add("-o", "--output", type=Path, metavar="FILE", help="write the table there, in Markdown")
    add("--measure", choices=["profile", *_WAYS], help=argparse.SUPPRESS)
    add("--plan", type=Path, help=argparse.SUPPRESS)
    return parser


def _in_a_process(way: str, name: str, iterations: int, plan: Path) -> Row:
    """The figures of a run. Raises RuntimeError if the program fails."""
    environment = {**os.environ, "STALLOC_CACHE": "0"}
    if way == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    length = PROFILED if way == "profile" else iterations
    options = ["--measure", way, "--only", name, "--iterations", str(length), "--plan", str(plan)]
    done = subprocess.run(
        [sys.executable, __file__, *options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_LONGEST,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise RuntimeError(f"{name}, {way}: {last}")
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def _measure(way: str, name: str, iterations: int, plan: Path) -> Row:
    """Runs a program, and returns the peaks of this process in bytes."""
    (program,) = chosen([name])
    torch.manual_seed(0)
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    if way == "profile":
        with stalloc.profile(device="cuda", dynamic=()) as prof, torch.device("cuda"):
            program.train(Run(0, iterations, prof.step))
        prof.plan().save(plan)
        return {}
    if way == "plan":
        stalloc.enable(stalloc.Plan.load(plan), startup=True)
    elif way == "auto":
        stalloc.auto()
    ends = stalloc.step if way in ("plan", "auto") else lambda: None
    with torch.device("cuda"):
        program.train(Run(0, iterations, ends))
    return {
        "load": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "planned": stalloc.status()["served"] if way == "auto" else None,
    }


def _render(rows: Sequence[Row], lacking: Sequence[str], iterations: int) -> str:
    head = _HEAD.format(
        commit=last_change("csrc", "stalloc"), torch=torch.__version__, iterations=iterations
    )
    columns = ("program", "load", *_TITLES)
    lines = [
        *_summary(rows),
        "",
        f"| {' | '.join(columns)} |",
        f"|{'---|' * len(columns)}",
        *map(_line, rows),
    ]
    if lacking:
        lines += ["", f"They need libraries that are not pretended: {', '.join(lacking)}."]
    return head + "\n".join(lines) + "\n"


def _ratio(row: Row, way: str) -> float:
    ratio: float = row[way]["reserved"] / row["torch"]["load"]
    return ratio


def _summary(rows: Sequence[Row]) -> list[str]:
    head = "| way | mean | above the better of torch's | sum of their excess |"
    lines = [head, "|---|---|---|---|"]
    for way, title in zip(_WAYS, _TITLES, strict=True):
        ratios = [_ratio(row, way) for row in rows]
        excess = [
            ratio - min(_ratio(row, "torch"), _ratio(row, "expandable"))
            for row, ratio in zip(rows, ratios, strict=True)
        ]
        above = [x for x in excess if x > 0]
        lines.append(
            f"| {title} | {sum(ratios) / max(len(rows), 1):.4f} | {len(above)} of {len(rows)} "
            f"| {sum(above):.3f} |"
        )
    return lines


def _line(row: Row) -> str:
    cells = [f"{row[way]['reserved'] / _GIB:.2f} ({_ratio(row, way):.3f})" for way in _WAYS]
    cells[-1] += f" [{row['auto']['planned']}]"
    return f"| {row['program']} | {row['torch']['load'] / _GIB:.2f} | {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
