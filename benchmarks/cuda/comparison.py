"""Compares the memory of a program under torch's allocators and stalloc's plans, by streams.

The bound (waitless.py) holds for every placement that adds no waits to the program's own. Below it
are only plans that add waits of the device ("stalloc, ordered"), or of the host: a pool may hold
less memory than it has addresses, and memory that moves within it waits for the device ("moves").

Each allocator has a process of its own, from its start on. On the pretended GPU (tests/standin).
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import waitless
from commit import last_change

import stalloc

PRETENDED = ctypes.CDLL("libcudart.so.13")
PRETENDED.standin_hazards.restype = PRETENDED.standin_calls.restype = ctypes.c_int64

_owners = itertools.count(1)

_PROFILED = 4
_EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
_STREAMS = ("separate", "ordered", "auto")
_POLLING = {"STALLOC_HAND_BACK": "0"}

Row = dict[str, Any]


def main(
    script: str, doc: str | None, train: Callable[[int], None], steps: int, about: Mapping[str, Any]
) -> None:
    """The command line of a benchmark: measures, prints, and writes with `--output NAME`.

    Args:
        script: The benchmark's file, which calls this.
        doc: Its description.
        train: Trains for a number of steps, from the making of the model on.
        steps: The number of steps to measure.
        about: What the JSON says of the program.
    """
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--output", type=Path, help="write NAME.json")
    parser.add_argument("--profile", metavar="DIR", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs="?", const="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.profile is not None:
        _profile(train, args.profile)
        return
    if args.measure is not None:
        print(json.dumps(_measure(train, steps, args.measure)), flush=True)
        os._exit(0)  # torch aborts where autograd's worker still holds Python's (pytorch#173568)
    rows = _compare(script)
    _print(rows)
    if args.output:
        document = {
            "device": "pretended (tests/standin)",
            "torch": torch.__version__,
            "commit": last_change("csrc", "stalloc", "benchmarks/cuda"),
            **about,
            "steps": steps,
            "results": rows,
        }
        args.output.with_suffix(".json").write_text(json.dumps(document, indent=2) + "\n")


def use(buffer: torch.Tensor, stream: torch.cuda.Stream) -> None:
    """Work on the buffer, which the order detector follows."""
    error = PRETENDED.standin_use(
        ctypes.c_void_p(stream.cuda_stream),
        ctypes.c_void_p(buffer.data_ptr()),
        ctypes.c_uint64(buffer.nbytes),
        ctypes.c_uint64(next(_owners)),
    )
    if error != 0:
        raise RuntimeError(f"the pretended GPU reports error {error}")


def _profile(train: Callable[[int], None], folder: Path) -> None:
    """Leaves a plan of each kind in the folder. Prints the bound in bytes."""
    with stalloc.profile(device="cuda") as prof:
        train(_PROFILED)
    for streams in _STREAMS:
        prof.plan(streams=streams).save(folder / f"{streams}.json")
    print(waitless.bound(prof.trace))


def _measure(train: Callable[[int], None], steps: int, plan: str) -> Row:
    """The peak reserved and live bytes of this process, under a plan or none."""
    if plan:
        stalloc.enable(stalloc.Plan.load(plan), startup=True)
    train(steps)
    reserved, load = torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()
    row: Row = {
        "reserved": reserved,
        "load": load,
        "efficiency": load / reserved,
        "hazards": PRETENDED.standin_hazards(),
    }
    if plan:
        stats = stalloc.memory_stats()
        row |= {key: stats[key] for key in ("hit_rate", "stream_waits", "handed_back", "moves")}
    waits = PRETENDED.standin_calls(b"cudaStreamWaitEvent")
    row["program_waits"] = waits - row.get("stream_waits", 0)
    return row


def _compare(script: str) -> list[Row]:
    """A row for each allocator."""
    with tempfile.TemporaryDirectory() as folder:
        bound = int(in_a_process(script, "--profile", folder).splitlines()[-1])
        rows = [
            {"allocator": "torch", **_row(script)},
            {"allocator": "expandable segments", **_row(script, **_EXPANDABLE)},
        ]
        for streams in _STREAMS:
            row = _row(script, str(Path(folder) / f"{streams}.json"))
            rows.append({"allocator": f"stalloc, {streams}", **row})
        polling = _row(script, str(Path(folder) / "separate.json"), **_POLLING)
        rows.append({"allocator": "stalloc, not handed back", **polling})
    return [{**row, "bound": bound} for row in rows]


def _row(script: str, *plan: str, **environment: str) -> Row:
    output = in_a_process(script, "--measure", *plan, **environment)
    row: Row = json.loads(output.splitlines()[-1])
    return row


def in_a_process(script: str, *args: str, **environment: str) -> str:
    """Returns the output of the script with these arguments."""
    return subprocess.run(
        [sys.executable, script, *args],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def _print(rows: list[Row]) -> None:
    head = f"{'allocator':<26}{'load':>16}{'bound':>16}{'reserved':>16}{'efficiency':>12}"
    print(f"{head}{'own waits':>11}{'waits':>8}{'handed back':>13}{'moves':>7}{'races':>7}")
    for row in rows:
        print(
            f"{row['allocator']:<26}{row['load']:>16,}{row['bound']:>16,}"
            f"{row['reserved']:>16,}{row['efficiency']:>12.4f}{row['program_waits']:>11}"
            f"{row.get('stream_waits', ''):>8}"
            f"{row.get('handed_back', ''):>13}{row.get('moves', ''):>7}{row['hazards']:>7}"
        )
