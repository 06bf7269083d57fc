"""Training on a real GPU: memory, speed and exactness of torch's allocators and stalloc.

    python benchmarks/gpu test
    python benchmarks/gpu bench --output benchmarks/results/gpu
    python benchmarks/gpu run --model tiny --allocator stalloc --device cpu

`bench` trains each model under torch's caching allocator, under expandable segments and under
stalloc, with batches that grow until all of them run out of memory; each run has a process of its
own. `test` trains small models with deterministic kernels and compares losses and weights to the
bit; and, where compute-sanitizer is installed, runs one under it. `run` is one run, as a line of
JSON: with `--device cpu` it needs no GPU.
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
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from models import MODELS
from training import Run

ROOT = Path(__file__).resolve().parents[2]
ALLOCATORS = ("torch", "expandable", "stalloc")
BENCHED = {"gpt2-345m": (8, 16, 32, 48, 64), "llama-1.3b": (2, 4, 8, 12, 16), "moe-8x": (2, 4, 8)}


def main() -> int:
    """Runs the sub-command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    subparsers = parser.add_subparsers(dest="command", required=True)
    subparsers.add_parser("test", help="compare results with and without stalloc, to the bit")
    bench = subparsers.add_parser("bench", help="measure memory and speed")
    bench.add_argument("--models", nargs="+", choices=BENCHED, default=list(BENCHED))
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
    if not torch.cuda.is_available():
        print("this needs a GPU, and torch finds none", file=sys.stderr)
        return 2
    return check() if args.command == "test" else measure(args.models, args.output)


def start(run: Run, *prefix: str) -> dict[str, Any]:
    """One run in a process of its own."""
    options = [sys.executable, str(Path(__file__).parent), "run"]
    for key, value in dataclasses.asdict(run).items():
        if key == "losses" or value is False:
            continue
        options += [f"--{key}"] if value is True else [f"--{key}", str(value)]
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if run.allocator == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    done = subprocess.run(
        [*prefix, *options], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(options)} failed:\n{done.stderr}{done.stdout}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def check() -> int:
    """Results with and without stalloc, to the bit; returns the exit code."""
    failures = 0
    for model, recompute in [("tiny", False), ("tiny", True), ("tiny-moe", False)]:
        run = Run(model, "torch", recompute=recompute, deterministic=True)
        plain, planned = start(run), start(dataclasses.replace(run, allocator="stalloc"))
        same = all(plain[key] == planned[key] for key in ("losses", "weights"))
        failures += not same
        name = model + (" with recomputation" if recompute else "")
        print(f"{name}: {'identical' if same else 'DIFFERENT'}, hit rate {planned['hit_rate']:.4f}")
    if sanitizer := shutil.which("compute-sanitizer"):
        start(Run("tiny", "stalloc", steps=2, warmup=2), sanitizer, "--error-exitcode=1")
        print("compute-sanitizer: no error")
    else:
        print("compute-sanitizer is not installed: that test was not run")
    return 1 if failures else 0


def measure(models: list[str], output: Path) -> int:
    """Trains every model with growing batches under every allocator, and writes what came out."""
    results = []
    for model in models:
        for batch in BENCHED[model]:
            row = {a: start(Run(model, a, batch=batch)) for a in ALLOCATORS}
            results.append({"model": model, "batch": batch, "allocators": row})
            for allocator, r in row.items():
                if "out_of_memory" in r:
                    print(f"{model} batch {batch} {allocator}: out of memory", flush=True)
                    continue
                del r["losses"]
                print(
                    f"{model} batch {batch} {allocator}: {r['peak_reserved'] / 2**30:.2f} GiB "
                    f"reserved, efficiency {r['efficiency']:.4f}, "
                    f"{r['tokens_per_second']:.0f} tokens/s",
                    flush=True,
                )
            if all("out_of_memory" in r for r in row.values()):
                break
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    document = {
        "device": torch.cuda.get_device_name(),
        "memory": torch.cuda.get_device_properties(0).total_memory,
        "machine": platform.node(),
        "torch": torch.__version__,
        "commit": commit,
        "results": results,
    }
    output.with_suffix(".json").write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
