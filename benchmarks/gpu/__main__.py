"""Training on a real GPU: memory, speed and exactness of torch's allocators and stalloc.

    python benchmarks/gpu test
    python benchmarks/gpu test --only streams graph --output benchmarks/results/gpu-test
    python benchmarks/gpu bench --models gpt2-345m --minutes 8
    python benchmarks/gpu bench --models gpt2-345m --largest --memory 40 --minutes 8
    python benchmarks/gpu test --device cpu

`test` trains small models with deterministic kernels, with and without stalloc, and compares
losses and weights to the bit: with streams, graphs and what else depends on which memory is whose;
and, where compute-sanitizer is installed, runs one under it. `--device cpu` is for where there is
no GPU.

`bench` trains each model under torch's caching allocator, under expandable segments and under
stalloc: memory and speed. Then it does so once more as if the GPU held no more than stalloc has
needed. With `--largest` it looks for the largest batch of each instead. Each run has a process of
its own; under stalloc it is served from its start, from the plan of another that was profiled.

Each result is written at once, and the same command does not repeat it: so
`--minutes` may end it anywhere. `run` is one run, as a line of JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from bench import BATCHES, Bench
from checks import check
from models import MODELS
from report import ROOT, Report
from training import Run

RESULTS = ROOT / "benchmarks" / "results"
ALLOCATORS = ("torch", "expandable", "stalloc")


def main() -> int:
    """Runs the sub-command."""
    args = parser().parse_args()
    if args.command == "run":
        options = {k: v for k, v in vars(args).items() if k != "command"}
        print(json.dumps(Run(**options).train()))
        return 0
    on_gpu = args.command == "bench" or args.device.startswith("cuda")
    if on_gpu and not torch.cuda.is_available():
        print("this needs a GPU, and torch finds none", file=sys.stderr)
        return 2
    report = Report(args.output or (RESULTS / "gpu-test" if on_gpu else None), args.anew)
    if args.command == "test":
        return check(args.device, args.only, args.jobs, report)
    bench = Bench(report, args.allocators, args.minutes, args.patience, args.memory, args.cached)
    done = [
        bench.search(model, args.limit) if args.largest else bench.compare(model, args.batch)
        for model in args.models
    ]
    return 0 if all(done) else 1


def parser() -> argparse.ArgumentParser:
    """The options of the sub-commands."""
    result = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = result.add_subparsers(dest="command", required=True)
    test = commands.add_parser("test", help="compare results with and without stalloc, bitwise")
    test.add_argument("--device", default="cuda")
    test.add_argument("--only", nargs="+", default=[], metavar="CHECK", help="run these alone")
    test.add_argument("--jobs", type=int, default=max(1, min(4, (os.cpu_count() or 1) // 4)))
    test.add_argument("--output", type=Path, help="write NAME.json")
    bench = commands.add_parser("bench", help="measure memory and speed")
    bench.add_argument("--models", nargs="+", choices=list(BATCHES), default=list(BATCHES))
    bench.add_argument("--allocators", nargs="+", choices=ALLOCATORS, default=list(ALLOCATORS))
    bench.add_argument("--batch", type=int, default=0, help="by default, by the GPU's memory")
    bench.add_argument("--memory", type=float, default=0, help="use no more than so many GiB")
    bench.add_argument("--largest", action="store_true", help="look for the largest batches")
    bench.add_argument("--limit", type=int, default=1024, help="the largest batch to try")
    bench.add_argument("--minutes", type=float, default=600, help="be done after so many")
    bench.add_argument("--patience", type=float, default=5, help="minutes one process may take")
    bench.add_argument("--cached", action="store_true", help="profile through torch's cache")
    bench.add_argument("--output", type=Path, default=RESULTS / "gpu")
    for command in (test, bench):
        command.add_argument("--anew", action="store_true", help="forget what was measured before")
    run = commands.add_parser("run", help="one training run; prints a line of JSON")
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
    return result


if __name__ == "__main__":
    sys.exit(main())
