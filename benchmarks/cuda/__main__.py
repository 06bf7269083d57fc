"""Measures what a planned request costs through torch, against torch's own caching allocator.

    make bench-cuda

Both run on the pretended GPU (tests/standin), in one process, in turn: the ratio is that of the
allocators alone, without a driver. Prints a table; with `--output NAME` writes NAME.json.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import statistics
import subprocess
import tempfile
from pathlib import Path

import torch
from torch.utils import cpp_extension

import stalloc
from stalloc._torch_modules import cuda_module

ROOT = Path(__file__).resolve().parents[2]
REQUESTS = 20_000  # of one iteration
KIB = 1 << 10
WORKLOADS = {
    "one size, freed at once": ([64 * KIB], 1),
    "eight sizes, 64 live": ([1 * KIB, 640 * KIB, 8 * KIB, 2560 * KIB] * 2, 64),
}


def build(folder: Path) -> ctypes.CDLL:
    """Compiles requests.cpp against the torch that runs."""
    library = folder / "requests.so"
    includes = [f"-isystem{path}" for path in cpp_extension.include_paths()]
    cuda = Path(torch.__file__).parents[1] / "nvidia" / f"cu{torch.version.cuda[:2]}" / "include"  # type: ignore[index]
    subprocess.run(
        ["c++", "-O2", "-std=c++20", "-shared", "-fPIC", "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE"]
        + [*includes, f"-isystem{cuda}", "-isystem/usr/local/cuda/include"]
        + [str(Path(__file__).with_name("requests.cpp")), "-o", str(library)]
        + [f"-L{path}" for path in cpp_extension.library_paths()]
        + ["-lc10", "-lc10_cuda"],
        check=True,
    )
    loaded = ctypes.CDLL(str(library))
    loaded.run.restype = ctypes.c_double
    return loaded


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="measurements of each allocator")
    parser.add_argument("--output", type=Path, help="write NAME.json")
    args = parser.parse_args()
    torch.cuda.init()
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        results = [
            measure(library, name, sizes, live, args.rounds)
            for name, (sizes, live) in WORKLOADS.items()
        ]
    print(f"{'ns a request (CPU time, median)':<34}{'torch':>10}{'stalloc':>10}{'ratio':>8}")
    for r in results:
        print(
            f"{r['workload']:<34}{r['torch_ns']:>10.1f}{r['stalloc_ns']:>10.1f}{r['ratio']:>8.2f}"
        )
    if args.output:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        document = {
            "device": "pretended (tests/standin)",
            "machine": platform.processor() or platform.machine(),
            "torch": torch.__version__,
            "commit": commit.stdout.strip(),
            "requests": REQUESTS,
            "results": results,
        }
        args.output.with_suffix(".json").write_text(json.dumps(document, indent=2) + "\n")


def measure(
    library: ctypes.CDLL, name: str, sizes: list[int], live: int, rounds: int
) -> dict[str, object]:
    """Median nanoseconds of a request and its free, for both allocators."""
    array = (ctypes.c_int64 * len(sizes))(*sizes)

    def run() -> float:
        seconds = library.run(
            ctypes.c_int64(REQUESTS), array, ctypes.c_int64(len(sizes)), ctypes.c_int64(live)
        )
        return 1e9 * float(seconds) / REQUESTS

    with stalloc.profile(device="cuda", exact=False) as prof:
        for _ in range(3):
            run()
            prof.step()
    plan = prof.plan()
    torchs, ours = [], []
    for _ in range(rounds):
        assert cuda_module().uninstall(), "torch's allocator is to be measured alone"
        run()
        torchs.append(run())
        with stalloc.enable(plan):
            for _ in range(2):
                run()
                stalloc.step()
            before = stalloc.memory_stats()["hits"]
            ours.append(run())
            assert stalloc.memory_stats()["hits"] - before == REQUESTS, "the plan was not followed"
    torch_ns, stalloc_ns = statistics.median(torchs), statistics.median(ours)
    return {
        "workload": name,
        "torch_ns": torch_ns,
        "stalloc_ns": stalloc_ns,
        "ratio": torch_ns / stalloc_ns,
        "rounds": rounds,
    }


if __name__ == "__main__":
    main()
