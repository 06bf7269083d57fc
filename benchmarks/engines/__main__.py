"""Measures a trainer and an engine that take turns: GRPO on the CPU, with real tensors.

    python benchmarks/engines [--switches 100] [-o NAME]

Each run has a process of its own. torch's figures come from the model of its policy, which serves
the same requests of trainer and engine, and keeps its cache at a switch. `stranded` is
the most that is reserved while the engine works and in which no tensor lies. Prints a table; with
`-o NAME` writes NAME.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from commit import last_change

from engines.runs import Figures, run_stalloc, run_torch


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks/engines", description=__doc__)
    parser.add_argument("--switches", type=int, default=100, help="(default: 100)")
    parser.add_argument("-o", "--output", type=Path, metavar="NAME", help="write NAME.json")
    args = parser.parse_args()
    theirs, ours = (_in_a_process(run, args.switches) for run in (run_torch, run_stalloc))
    same = theirs.pop("losses") == ours.pop("losses")
    rows = [*theirs["rows"], ours]
    for row in rows:
        print(
            f"{row['allocator']:<24}load {row['load']:>12,}  reserved {row['reserved']:>12,}  "
            f"{row['reserved'] / row['load']:.3f}  stranded {row.get('stranded', '-'):>12}"
        )
    print(f"identical losses: {same}")
    if args.output:
        document = {
            "device": "cpu",
            "torch": torch.__version__,
            "commit": last_change("csrc", "stalloc", "benchmarks/engines"),
            "switches": args.switches,
            "identical": same,
            "results": rows,
        }
        args.output.with_suffix(".json").write_text(json.dumps(document, indent=2) + "\n")
    return 0 if same else 1


def _in_a_process(run: Callable[[int], Figures], switches: int) -> Figures:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(run, switches).result()


if __name__ == "__main__":
    sys.exit(main())
