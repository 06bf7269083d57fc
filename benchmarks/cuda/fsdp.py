"""Measures the memory of FSDP2 under torch's allocators and stalloc, separate streams and ordered.

    make bench-cuda

On the pretended GPU (tests/standin), with collectives that do nothing: what is asked for, on which
of FSDP2's three streams, is real. Each allocator has a process of its own, from its start on.
Prints a table; with `--output NAME` writes NAME.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from processes import EXPANDABLE, in_a_process
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import stalloc

ROOT = Path(__file__).resolve().parents[2]
RANKS, BLOCKS, WIDTH, TOKENS, STEPS = 8, 12, 2048, 8192, 8


class Block(nn.Module):
    """As many parameters and activations as a small MLP, without its products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.empty(4 * width * width))
        self.scale = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        """Some activations of the size of `x`."""
        return x + nn.functional.gelu(x * self.scale + self.weight[: self.width]).tanh()


def sharded(blocks: int, width: int) -> nn.Module:
    """A rank's model, and the process group: its collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    with torch.device("cuda"):
        model = nn.Sequential(*(Block(width) for _ in range(blocks)))
    for block in model:
        fully_shard(block)
    fully_shard(model)
    return model


def train(steps: int) -> None:
    """Trains a rank from the making of its model on."""
    model = sharded(BLOCKS, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        x = torch.empty(TOKENS, WIDTH, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        stalloc.step()


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
    }
    if plan is not None:
        stats = stalloc.memory_stats()
        row |= {"hit_rate": stats["hit_rate"], "stream_waits": stats["stream_waits"]}
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
    print(f"{'allocator':<22}{'reserved':>14}{'efficiency':>12}{'stream waits':>14}")
    for row in rows:
        row["efficiency"] = row["load"] / row["reserved"]  # type: ignore[operator]
        print(
            f"{row['allocator']:<22}{row['reserved']:>14,}{row['efficiency']:>12.4f}"
            f"{row.get('stream_waits', ''):>14}"
        )
    if args.output:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        document = {
            "device": "pretended (tests/standin)",
            "torch": torch.__version__,
            "commit": commit.stdout.strip(),
            "model": {"ranks": RANKS, "blocks": BLOCKS, "width": WIDTH, "tokens": TOKENS},
            "steps": STEPS,
            "results": rows,
        }
        args.output.with_suffix(".json").write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
