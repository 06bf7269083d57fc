"""Measures programs whose batches change in shape: experts, models that pad, budgets of tokens.

    python benchmarks/changing [--seeds 2] [--only NAME ...] [-o FILE]

A plan is made of the first five iterations and serves the whole run of 24, start-up included.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from commit import last_change

from changing.programs import CASES, Case, record
from stalloc.replaying import replay_stalloc, replay_torch

_GIB = 1 << 30
_HEAD = """# Programs whose batches change in shape

Written by `python benchmarks/changing` at {commit}. GiB at the peak over the whole run of 24
iterations, start-up included, and the load in relation to it. stalloc's plan is made of the first
five iterations; nobody has tagged the experts. torch's columns come from the model of its policy.

| program | seed | load | torch | expandable segments | stalloc |
|---|---|---|---|---|---|
"""


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks/changing", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2, help="how many (default: 2)")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="NAME", help="programs")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the table there")
    args = parser.parse_args()
    chosen = [c for c in CASES if any(fnmatch.fnmatch(c.name, p) for p in args.only)]
    if not chosen:
        parser.error(f"no such program; there are {', '.join(c.name for c in CASES)}")
    lines = []
    for case in chosen:
        for seed in range(args.seeds):
            lines.append(measure(case, seed))
            print(lines[-1], flush=True)
    if args.output:
        head = _HEAD.format(commit=last_change("csrc", "stalloc"))
        args.output.write_text(head + "".join(f"{line}\n" for line in lines))
    return 0


def measure(case: Case, seed: int) -> str:
    """A row of the table."""
    plan = record(case, seed, profiled=True).plan()
    run = record(case, seed, profiled=False)
    ours = replay_stalloc(run, plan)
    reserved = (
        replay_torch(run).peak_reserved,
        replay_torch(run, expandable_segments=True).peak_reserved,
        ours.peak_reserved,
    )
    cells = [f"{r / _GIB:.2f} ({ours.peak_load / r:.3f})" for r in reserved]
    return f"| {case.name} | {seed} | {ours.peak_load / _GIB:.2f} | {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
