"""Training on a real GPU: memory, speed and exactness of torch's allocators and stalloc.

    python benchmarks/gpu test
    python benchmarks/gpu bench --output benchmarks/results/gpu
    python benchmarks/gpu test --device cpu

`bench` looks for the largest batch that each model trains with, under torch's caching allocator,
under expandable segments and under stalloc; then it measures all three with the largest batch that
all of them train, and with the largest of any. Each run has a process of its own; under stalloc it
is served from its start, from the plan of another that was profiled. What is done is written after
each, so that `--minutes` may end it anywhere. `test` trains small models with
deterministic kernels and compares losses and weights to the bit; and, where compute-sanitizer is
installed, runs one under it; `--device cpu` is for where there is no GPU. `run` is one run, as a
line of JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from models import MODELS
from training import Run

ROOT = Path(__file__).resolve().parents[2]
ALLOCATORS = ("torch", "expandable", "stalloc")
BENCHED = ("gpt2-345m", "llama-1.3b", "moe-8x")


def main() -> int:
    """Runs the sub-command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    subparsers = parser.add_subparsers(dest="command", required=True)
    test = subparsers.add_parser("test", help="compare results with and without stalloc, bitwise")
    test.add_argument("--device", default="cuda")
    bench = subparsers.add_parser("bench", help="measure memory and speed")
    bench.add_argument("--models", nargs="+", choices=MODELS, default=list(BENCHED))
    bench.add_argument("--allocators", nargs="+", choices=ALLOCATORS, default=list(ALLOCATORS))
    bench.add_argument("--minutes", type=float, default=600, help="begin no run after so many")
    bench.add_argument("--limit", type=int, default=1024, help="the largest batch to try")
    bench.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "gpu")
    run = subparsers.add_parser("run", help="one training run; prints a line of JSON")
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
    args = parser.parse_args()
    if args.command == "run":
        options = {k: v for k, v in vars(args).items() if k != "command"}
        print(json.dumps(Run(**options).train()))
        return 0
    on_gpu = args.command == "bench" or args.device.startswith("cuda")
    if on_gpu and not torch.cuda.is_available():
        print("this needs a GPU, and torch finds none", file=sys.stderr)
        return 2
    if args.command == "test":
        return check(args.device)
    return Bench(args.allocators, args.limit, args.minutes, args.output).measure(args.models)


def start(run: Run, *prefix: str) -> dict[str, Any]:
    """One run in a process of its own; "failed" says why it came to nothing."""
    options = [sys.executable, str(Path(__file__).parent), "run"]
    for key, value in dataclasses.asdict(run).items():
        if key == "losses" or value is False or value == "":
            continue
        options += [f"--{key}"] if value is True else [f"--{key}", str(value)]
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if run.allocator == "expandable":
        environment["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    done = subprocess.run(
        [*prefix, *options], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"{' '.join(options)} failed:\n{done.stderr}{done.stdout}", file=sys.stderr)
        return {"failed": (done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def planned(run: Run, *prefix: str) -> dict[str, Any]:
    """The same under stalloc, after a run that is profiled."""
    with tempfile.TemporaryDirectory() as folder:
        plan = str(Path(folder) / "plan.json")
        profiled = start(dataclasses.replace(run, allocator="stalloc", profile=plan))
        if "pool" not in profiled:
            return profiled
        return start(dataclasses.replace(run, allocator="stalloc", plan=plan), *prefix)


def check(device: str) -> int:
    """Results with and without stalloc, to the bit; returns the exit code."""
    failures = 0
    for model, recompute in [("tiny", False), ("tiny", True), ("tiny-moe", False)]:
        run = Run(model, "torch", device=device, recompute=recompute, deterministic=True)
        plain, served = start(run), planned(run)
        name = model + (" with recomputation" if recompute else "")
        if "losses" not in plain or "losses" not in served:
            failures += 1
            print(f"{name}: FAILED")
            continue
        same = all(plain[key] == served[key] for key in ("losses", "weights"))
        failures += not same
        print(f"{name}: {'identical' if same else 'DIFFERENT'}, hit rate {served['hit_rate']:.4f}")
    if not device.startswith("cuda"):
        return 1 if failures else 0
    if sanitizer := shutil.which("compute-sanitizer"):
        done = planned(Run("tiny", "stalloc", steps=2, warmup=2), sanitizer, "--error-exitcode=1")
        failures += "losses" not in done
        print(f"compute-sanitizer: {'no error' if 'losses' in done else 'FAILED'}")
    else:
        print("compute-sanitizer is not installed: that test was not run")
    return 1 if failures else 0


class Bench:
    """Trains models at the batches that matter, and writes what came out."""

    def __init__(self, allocators: list[str], limit: int, minutes: float, output: Path) -> None:
        self.allocators = allocators
        self.limit = limit
        self.end = time.monotonic() + 60 * minutes
        self.output = output.with_suffix(".json")
        self.results: list[dict[str, Any]] = []

    def measure(self, models: list[str]) -> int:
        """Measures all of them; returns the exit code."""
        for model in models:
            result: dict[str, Any] = {"model": model, "largest_batch": {}, "batches": []}
            self.results.append(result)
            for allocator in self.allocators:
                largest = result["largest_batch"][allocator] = self.largest_batch(model, allocator)
                print(f"{model} {allocator}: trains with batches up to {largest}", flush=True)
                self.write()
            for batch in sorted(set(result["largest_batch"].values()) - {0}):
                if batch not in (min(result["largest_batch"].values()), max_of(result)):
                    continue
                row = {a: self.run(Run(model, a, batch=batch)) for a in self.allocators}
                for allocator, r in row.items():
                    print(f"{model} batch {batch} {allocator}: {summary(r)}", flush=True)
                    r.pop("losses", None)
                result["batches"].append({"batch": batch, "allocators": row})
                self.write()
        return int(not all(is_complete(result) for result in self.results))

    def run(self, run: Run) -> dict[str, Any]:
        """One run, while there is time."""
        if time.monotonic() >= self.end:
            return {"failed": "no time was left"}
        return planned(run) if run.allocator == "stalloc" else start(run)

    def largest_batch(self, model: str, allocator: str) -> int:
        """The largest batch that trains, to an eighth; 0 when none does."""

        def trains(batch: int) -> bool:
            r = self.run(Run(model, allocator, batch=batch, steps=2, warmup=3))
            return "failed" not in r and "out_of_memory" not in r

        low, high = 0, 1
        while high <= self.limit and trains(high):
            low, high = high, 2 * high
        while high - low > max(1, low // 8):
            middle = (low + high) // 2
            low, high = (middle, high) if middle <= self.limit and trains(middle) else (low, middle)
        return low

    def write(self) -> None:
        """Writes what has been measured so far."""
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        document = {
            "device": torch.cuda.get_device_name(),
            "memory": torch.cuda.get_device_properties(0).total_memory,
            "machine": platform.machine(),
            "torch": torch.__version__,
            "commit": commit.stdout.strip() or "unknown",
            "results": self.results,
        }
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self.output.write_text(json.dumps(document, indent=2) + "\n")


def max_of(result: dict[str, Any]) -> int:
    """The largest batch that any allocator trains."""
    return int(max(result["largest_batch"].values()))


def is_complete(result: dict[str, Any]) -> bool:
    """Whether every run of a model came to something."""
    runs = [r for row in result["batches"] for r in row["allocators"].values()]
    return bool(runs) and not any("failed" in r for r in runs)


def summary(r: dict[str, Any]) -> str:
    """A run in a few words."""
    if "failed" in r:
        return f"failed: {r['failed']}"
    if "out_of_memory" in r:
        return "out of memory"
    return (
        f"{r['peak_reserved'] / 2**30:.2f} GiB reserved, efficiency {r['efficiency']:.4f}, "
        f"{r['tokens_per_second']:.0f} tokens/s"
    )


if __name__ == "__main__":
    sys.exit(main())
