"""Measures the memory of a producer that is far ahead of its consumer on another stream.

    make bench-cuda

The pattern of lhb8125/cross-stream-gpu-memory-reuse: each step makes buffers, hands them to a
second stream with record_stream, and frees them, while that stream is up to 32 steps behind. On the
pretended GPU (tests/standin), which completes the second stream's work every 32 steps. Each
allocator has a process of its own, from its start on. Prints a table; with `--output NAME` writes
NAME.json.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from commit import last_change
from processes import EXPANDABLE, in_a_process

import stalloc

BUFFERS, BYTES, STEPS, BEHIND = 8, 20 << 20, 128, 32


_PRETENDED = ctypes.CDLL("libcudart.so.13")
_PRETENDED.standin_hazards.restype = ctypes.c_int64


def _use(buffer: torch.Tensor, stream: torch.cuda.Stream, owner: int) -> None:
    """Work on the buffer, which the order detector follows: a number for each use."""
    error = _PRETENDED.standin_use(
        ctypes.c_void_p(stream.cuda_stream),
        ctypes.c_void_p(buffer.data_ptr()),
        ctypes.c_uint64(BYTES),
        ctypes.c_uint64(owner),
    )
    if error != 0:
        raise RuntimeError(f"the pretended GPU reports error {error}")


def train(steps: int) -> None:
    """Makes, hands over and frees buffers, a step at a time."""
    _PRETENDED.standin_set_manual(1)  # new streams complete nothing by themselves
    consumer = torch.cuda.Stream()
    producer = torch.cuda.current_stream()
    weight = torch.nn.Parameter(torch.zeros(BYTES // 4, device="cuda"))
    optimizer = torch.optim.SGD([weight])
    owners = itertools.count(1)
    for step in range(steps):
        (weight * 2).sum().backward()
        for _ in range(BUFFERS):
            buffer = torch.empty(BYTES, dtype=torch.uint8, device="cuda")
            _use(buffer, producer, next(owners))
            consumer.wait_stream(producer)
            _use(buffer, consumer, next(owners))
            buffer.record_stream(consumer)
        del buffer
        optimizer.step()
        optimizer.zero_grad()
        stalloc.step()
        if step % BEHIND == BEHIND - 1:
            _PRETENDED.standin_drain_all()


def profile(folder: Path) -> dict[str, object]:
    """Leaves a plan of each kind in the folder; says nothing of memory."""
    with stalloc.profile(device="cuda") as prof:
        train(4)
    for streams in ("separate", "ordered"):
        prof.plan(streams=streams).save(folder / f"{streams}.json")
    return {}


def measure(plan: Path | None) -> dict[str, object]:
    """The peak reserved and live bytes of the process."""
    if plan is not None:
        stalloc.enable(stalloc.Plan.load(plan), startup=True)
    train(STEPS)
    row: dict[str, object] = {
        "reserved": torch.cuda.max_memory_reserved(),
        "load": torch.cuda.max_memory_allocated(),
        "hazards": _PRETENDED.standin_hazards(),
    }
    if plan is not None:
        stats = stalloc.memory_stats()
        row |= {key: stats[key] for key in ("hit_rate", "stream_waits", "handed_back")}
    return row


def compare() -> list[dict[str, object]]:
    """A row for each allocator."""
    with tempfile.TemporaryDirectory() as folder:
        in_a_process(__file__, "--profile", folder)
        rows = [
            {"allocator": "torch", **in_a_process(__file__, "--measure")},
            {
                "allocator": "expandable segments",
                **in_a_process(__file__, "--measure", **EXPANDABLE),
            },
        ]
        for streams in ("separate", "ordered"):
            plan = str(Path(folder) / f"{streams}.json")
            row = in_a_process(__file__, "--measure", plan)
            rows.append({"allocator": f"stalloc, {streams}", **row})
    return rows


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="write NAME.json")
    parser.add_argument("--profile", metavar="DIR", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs="?", const="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.profile is not None or args.measure is not None:
        plan = Path(args.measure) if args.measure else None
        print(json.dumps(profile(args.profile) if args.profile else measure(plan)))
        return
    rows = compare()
    head = f"{'allocator':<22}{'load':>14}{'reserved':>16}"
    print(f"{head}{'waits':>8}{'handed back':>13}{'races':>7}")
    for row in rows:
        print(
            f"{row['allocator']:<22}{row['load']:>14,}{row['reserved']:>16,}"
            f"{row.get('stream_waits', ''):>8}{row.get('handed_back', ''):>13}{row['hazards']:>7}"
        )
    if args.output:
        document = {
            "device": "pretended (tests/standin)",
            "torch": torch.__version__,
            "commit": last_change("csrc", "stalloc", "benchmarks/cuda"),
            "buffers": BUFFERS,
            "bytes": BYTES,
            "steps": STEPS,
            "behind": BEHIND,
            "results": rows,
        }
        args.output.with_suffix(".json").write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
