"""Counts the driver's calls when a trainer and an engine take turns, with a weight shared by IPC.

    make bench-cuda

On the pretended GPU (tests/standin). 200 times, the trainer's memory goes, an engine takes and
returns 2 GiB, and the trainer takes a step. Under torch, its cache goes at each switch. Under
stalloc, the plan's pool goes: virtual memory, the same with the last output alive, plain memory.
Where batches change, they have 1,024 to 4,096 rows; the largest is not in the profile.
Under torch_memory_saver, the memory of the steps is torch's in its region, which is paused. Each
has a process of its own. Calls are those of a switch and back, without the step. Prints a table;
with `--output NAME` writes NAME.json.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from commit import last_change
from comparison import PRETENDED, Row, in_a_process
from fsdp import Block
from torch import Tensor, nn

import stalloc

for _name in ("calls", "misuses", "hazards", "used"):
    getattr(PRETENDED, f"standin_{_name}").restype = ctypes.c_int64

SWITCHES, PROFILED = 200, 4
ROWS, WIDTH, LAYERS = 4096, 1024, 8
ENGINE = 2 << 30
_VIRTUAL = ("Create", "Map", "SetAccess", "Unmap", "Release", "AddressReserve", "AddressFree")
_CALLS = (
    *(f"cuMem{name}" for name in _VIRTUAL),
    "cudaMalloc",
    "cudaFree",
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
)
_WAYS = (
    "torch",
    "torch_memory_saver",
    "stalloc, virtual",
    "stalloc, virtual, a tensor lives",
    "stalloc, plain",
    "torch_memory_saver, batches change",
    "stalloc, virtual, batches change",
)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="write NAME.json")
    parser.add_argument("--measure", metavar="WAY", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(_measure(args.measure)), flush=True)
        os._exit(0)  # torch aborts where autograd's worker still holds an object of Python's
    rows = [
        {"allocator": way} | json.loads(in_a_process(__file__, "--measure", way).splitlines()[-1])
        for way in _WAYS
    ]
    for row in rows:
        print(
            f"{row['allocator']:<36}reserved/load {row['reserved'] / row['load']:.3f}"
            f"  pool {row['pool']:>13,}  stranded {row['stranded']:>13,}"
            f"  calls {row['calls']:>9,.1f}  leaked {row['leaked']}  misuses {row['misuses']}"
        )
    if args.output:
        document = {
            "device": "pretended (tests/standin)",
            "torch": torch.__version__,
            "commit": last_change("csrc", "stalloc", "benchmarks/cuda"),
            "switches": SWITCHES,
            "results": rows,
        }
        args.output.with_suffix(".json").write_text(json.dumps(document, indent=2) + "\n")


def _count(name: str) -> int:
    return int(getattr(PRETENDED, f"standin_{name}")())


def _used() -> int:
    return int(PRETENDED.standin_used(0))


def _calls() -> int:
    return sum(int(PRETENDED.standin_calls(name.encode())) for name in _CALLS)


def _trainer(rows: Iterator[int]) -> Callable[[], Tensor]:
    """A step, which returns the model's output."""
    model = nn.Sequential(*(Block(WIDTH) for _ in range(LAYERS))).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> Tensor:
        y: Tensor = model(torch.empty(next(rows), WIDTH, device="cuda"))
        y.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return y.detach()

    return step


def _memory_saver() -> Any:
    from torch_memory_saver import torch_memory_saver

    torch_memory_saver.hook_mode = "torch"
    return torch_memory_saver


@contextmanager
def _paused(saver: Any) -> Iterator[None]:
    saver.pause()
    yield
    saver.resume()


def _measure(way: str) -> Row:
    random = Random(0)
    changes = way.endswith("change")
    step = _trainer(random.randint(ROWS // 4, ROWS) if changes else ROWS for _ in count())
    plan = saver = None
    if way == "torch":
        for _ in range(PROFILED):
            step()
    elif way.startswith("torch_memory_saver"):
        saver = _memory_saver()
        step()  # the states of the optimizer stay outside
        step = saver.region()(step)
    else:
        with stalloc.profile(device="cuda") as prof:
            for _ in range(PROFILED):
                step()
                prof.step()
        plan = prof.plan()
        stalloc.enable(plan, keep_addresses=False if way.endswith("plain") else None)
        for _ in range(2):
            step()
            stalloc.step()
    weight = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
    handle = weight.untyped_storage()._share_cuda_()
    # Idle memory of the pool may have given way to the weight. The next step takes it back.
    step()
    if plan:
        stalloc.step()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    used = _used()
    # Torch holds more than the tensors that stay: the rest of their segments.
    resident = (
        used - torch.cuda.memory_allocated() - (stalloc.memory_stats()["pool"] if plan else 0)
    )
    stranded = peak = calls = 0
    kept: list[Tensor] = []

    def rollout() -> AbstractContextManager[object]:
        if saver:
            return _paused(saver)
        return stalloc.phase("rollout") if plan else nullcontext()

    for _ in range(SWITCHES):
        if not way.endswith("lives"):
            kept.clear()
        before = _calls()
        torch.cuda.empty_cache()
        with rollout():
            live = torch.cuda.memory_allocated()
            stranded = max(stranded, _used() - live - resident)
            calls += _calls() - before
            cache = torch.empty(ENGINE, dtype=torch.uint8, device="cuda")
            peak = max(peak, _used())
            del cache
            before = _calls()
            torch.cuda.empty_cache()
        calls += _calls() - before
        kept.clear()
        kept.append(step())
        stalloc.step()
        peak = max(peak, _used())
    kept.clear()
    torch.cuda.empty_cache()
    # The memory of the largest batch so far stays.
    leaked = None if changes else _used() - used
    if weight.untyped_storage()._share_cuda_()[1] != handle[1]:
        raise RuntimeError("the handle of the shared weight has changed")
    return {
        "load": torch.cuda.max_memory_allocated(),
        "reserved": peak,
        "pool": plan.pool if plan else 0,
        "stranded": stranded,
        "calls": calls / SWITCHES,
        "leaked": leaked,
        "misuses": _count("misuses"),
        "hazards": _count("hazards"),
    }


if __name__ == "__main__":
    main()
