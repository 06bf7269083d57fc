"""Measures pinned host memory under torch's allocator and under stalloc's plan.

    make bench-cuda

On the pretended GPU (tests/standin), where pinned memory is real memory. The programs offload
activations, shard weights that lie on the host (FSDP2's CPU offload), and load batches while they
stage a checkpoint. Each allocator has a process of its own, from its start on. `load` is the most
bytes that the program has of it at once, as requested. Calls of cudaHostAlloc are those until the
end of the first step, and those after it. Prints a table; with `--output NAME` writes NAME.json.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from commit import last_change
from comparison import PRETENDED, Row, in_a_process
from fsdp import Block
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader

import stalloc

for _name in ("calls", "misuses"):
    getattr(PRETENDED, f"standin_{_name}").restype = ctypes.c_int64

PROFILED, STEPS = 4, 8

Step = Callable[[], None]


def offload_activations() -> Step:
    """What the backward needs goes to the host: 12 blocks, two microbatches."""
    width, tokens = 1000, 1100
    model = nn.Sequential(*(Block(width) for _ in range(12))).to("cuda")
    optimizer = torch.optim.SGD(model.parameters())

    def step() -> None:
        for _ in range(2):
            x = torch.empty(tokens, width, device="cuda")
            with torch.autograd.graph.save_on_cpu(pin_memory=True):
                loss = model(x).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def offload_weights() -> Step:
    """FSDP2's CPU offload, 8 ranks: shards and their gradients lie on the host."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    model = nn.Sequential(*(Block(1100) for _ in range(8)))
    policy = CPUOffloadPolicy(pin_memory=True)
    for block in model:
        fully_shard(block, offload_policy=policy)
    fully_shard(model, offload_policy=policy)
    optimizer = torch.optim.SGD(model.parameters())

    def step() -> None:
        x = torch.empty(512, 1100, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def load_and_stage() -> Step:
    """Batches of a loader, and the weights staged on the host for a checkpoint, in every step."""
    rows = torch.zeros(4 * (PROFILED + STEPS), 300_000)
    model = Block(700).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    batches = iter(DataLoader(rows, batch_size=4, pin_memory=True))  # type: ignore[arg-type]

    def step() -> None:
        batch = next(batches).to("cuda", non_blocking=True)
        model(batch.view(-1)[: 64 * 700].view(64, 700)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        staged = [p.detach().to("cpu", non_blocking=True) for p in model.parameters()]
        torch.cuda.synchronize()
        del staged

    return step


PROGRAMS = {f.__name__: f for f in (offload_activations, offload_weights, load_and_stage)}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="write NAME.json")
    parser.add_argument("--measure", nargs=2, metavar=("PROGRAM", "DIR"), help=argparse.SUPPRESS)
    parser.add_argument("--profile", nargs=2, metavar=("PROGRAM", "DIR"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.profile:
        _profile(PROGRAMS[args.profile[0]], Path(args.profile[1]))
        _leave()
    if args.measure:
        print(json.dumps(_measure(PROGRAMS[args.measure[0]], args.measure[1])), flush=True)
        _leave()
    rows = [row for name in PROGRAMS for row in _compare(name)]
    _print(rows)
    if args.output:
        document = {
            "device": "pretended (tests/standin)",
            "torch": torch.__version__,
            "commit": last_change("csrc", "stalloc", "benchmarks/cuda"),
            "steps": STEPS,
            "results": rows,
        }
        args.output.with_suffix(".json").write_text(json.dumps(document, indent=2) + "\n")


def _leave() -> NoReturn:
    """Ends the process at once.

    Torch aborts where autograd's worker still holds an object of Python's (pytorch#173568).
    """
    os._exit(0)


def _profile(program: Callable[[], Step], folder: Path) -> None:
    with stalloc.profile(device="cuda", pinned=True) as prof:
        step = program()
        for _ in range(PROFILED):
            step()
            prof.step()
    prof.plan().save(folder / "plan.json")
    prof.plan_pinned().save(folder / "pinned.json")


def _measure(program: Callable[[], Step], folder: str) -> Row:
    """The figures of this process, under the plans in a folder, or torch alone."""
    if folder:
        plans = Path(folder)
        stalloc.enable(plans / "plan.json", startup=True, pinned=plans / "pinned.json")
    step = program()
    calls = []
    for _ in range(STEPS):
        step()
        stalloc.step()
        calls.append(PRETENDED.standin_calls(b"cudaHostAlloc"))
    theirs = torch.cuda.host_memory_stats()
    row: Row = {
        "reserved": theirs["allocated_bytes.peak"],
        "calls_until_first_step": calls[0],
        "calls_later": calls[-1] - calls[0],
        "misuses": PRETENDED.standin_misuses(),
    }
    if folder:
        stats = stalloc.memory_stats("pinned")
        row |= {"load": stats["run_peak_allocated"], "hit_rate": stats["hit_rate"]}
    return row


def _compare(name: str) -> list[Row]:
    """A row for each allocator. The load is the same: it is that of the program."""
    with tempfile.TemporaryDirectory() as folder:
        in_a_process(__file__, "--profile", name, folder)
        ours, theirs = (
            json.loads(in_a_process(__file__, "--measure", name, where).splitlines()[-1])
            for where in (folder, "")
        )
    theirs["load"] = ours["load"]
    rows = [{"program": name, "allocator": "torch", **theirs}]
    rows.append({"program": name, "allocator": "stalloc", **ours})
    for row in rows:
        row["reserved_by_load"] = row["reserved"] / row["load"]
    return rows


def _print(rows: list[Row]) -> None:
    head = f"{'program':<22}{'allocator':<10}{'load':>14}{'reserved':>14}{'reserved/load':>15}"
    print(f"{head}{'first calls':>13}{'later':>7}{'hits':>9}")
    for row in rows:
        print(
            f"{row['program']:<22}{row['allocator']:<10}{row['load']:>14,}{row['reserved']:>14,}"
            f"{row['reserved_by_load']:>15.4f}{row['calls_until_first_step']:>13}"
            f"{row['calls_later']:>7}{row.get('hit_rate', ''):>9}"
        )


if __name__ == "__main__":
    main()
