"""Measures some seventy training programs whose memory changes from iteration to iteration.

    python benchmarks/programs [--only NAME ...] [--seeds 2] [--iterations 24] [-o FILE]

A plan is made of the first five iterations and serves the whole run, start-up included.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from commit import last_change
from compact_json import one_row_a_line

from programs import (  # noqa: F401, each registers its programs
    alignment,
    bilevel,
    generative,
    graphs,
    language,
    mixed,
    optimizers,
    reinforcement,
    retrieval,
    science,
    speech,
    structure,
    vision,
)
from programs.measure import Row, measure
from programs.registry import PROFILED, PROGRAMS, chosen
from programs.report import line, render, summary
from stalloc.replaying import STALLOC, TORCH


def main() -> int:
    """The command line."""
    args = _parser().parse_args()
    programs = chosen(args.only)
    if args.list:
        for program in programs:
            print(f"{program.name}: {program.description}")
        return 0
    if not programs:
        names = ", ".join(program.name for program in PROGRAMS)
        raise SystemExit(f"no such program; there are {names}")
    if args.iterations < PROFILED:
        raise SystemExit(f"a plan is made of {PROFILED} iterations")
    torch.set_num_threads(1)
    rows: list[Row] = []
    for program in programs:
        for seed in range(args.seeds):
            row = measure(
                program, seed, args.iterations, fallback=args.fallback, recordings=args.recordings
            )
            rows.append(row)
            print(line(row), flush=True)
            _write(rows, args)
    for text, value in summary(rows):
        print(f"{text}: {value}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/programs", description=__doc__)
    add = parser.add_argument
    add("--only", nargs="+", default=["*"], metavar="NAME", help="programs, by name or pattern")
    add("--list", action="store_true", help="print the programs; measure nothing")
    add("--seeds", type=int, default=2, metavar="N", help="how many (default: 2)")
    add("--iterations", type=int, default=24, metavar="N", help="length of a run (default: 24)")
    add(
        "--fallback",
        choices=[STALLOC, TORCH],
        default=STALLOC,
        help="the allocator of the requests outside the pool (default: stalloc)",
    )
    add(
        "--recordings",
        type=Path,
        metavar="DIR",
        help="keep the traces there, or take those of before",
    )
    add("--json", type=Path, metavar="FILE", help="write the figures there")
    add("-o", "--output", type=Path, metavar="FILE", help="write the table there, in Markdown")
    return parser


def _write(rows: list[Row], args: argparse.Namespace) -> None:
    """Writes the files so far: a run that is cut short loses nothing."""
    commit = last_change("csrc", "stalloc")
    if args.json:
        document = {
            "commit": commit,
            "fallback": args.fallback,
            "rows": [row.to_dict() for row in rows],
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(one_row_a_line(document))
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(render(rows, commit=commit, fallback=args.fallback))


if __name__ == "__main__":
    sys.exit(main())
