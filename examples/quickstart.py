"""Trains a small GPT twice, with torch's own allocator and under a plan, and compares the two.

Both runs start from the same weights and see the same data, each in a process of its own, and take
their steps in turn so that the machine's mood falls on both alike. The second one profiles its
first steps, plans them, and serves all later ones from the plan. Losses and final weights have to
be identical to the bit.

    python examples/quickstart.py [--steps 20]

Prints a table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, cast

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import stalloc

PROFILED_STEPS = 3


@dataclass(frozen=True)
class Config:
    """A GPT of 17 million parameters, and how it is trained."""

    layers: int = 8
    width: int = 384
    heads: int = 6
    vocabulary: int = 8192
    length: int = 64
    microbatch: int = 2
    microbatches: int = 4


class Block(nn.Module):
    """Attention and MLP, each before a residual connection."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.heads = c.heads
        self.norm1 = nn.LayerNorm(c.width)
        self.qkv = nn.Linear(c.width, 3 * c.width)
        self.out = nn.Linear(c.width, c.width)
        self.norm2 = nn.LayerNorm(c.width)
        self.mlp = nn.Sequential(
            nn.Linear(c.width, 4 * c.width), nn.GELU(), nn.Linear(4 * c.width, c.width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape: rows x length x width."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).unbind(2)
        a = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        x = x + self.out(a.transpose(1, 2).reshape(batch, length, width))
        return cast("Tensor", x + self.mlp(self.norm2(x)))


class Gpt(nn.Module):
    """A GPT whose every other block is recomputed in backward."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(c.vocabulary, c.width)
        self.positions = nn.Embedding(c.length, c.width)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.width)
        self.head = nn.Linear(c.width, c.vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token, rows x length x vocabulary."""
        x = self.tokens(tokens) + self.positions(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        for i, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if i % 2 else block(x)
        return cast("Tensor", self.head(self.norm(x)))


def batch(c: Config, step: int, device: str) -> Tensor:
    """The tokens of one step, the same in both runs."""
    generator = torch.Generator().manual_seed(step)
    shape = (c.microbatches, c.microbatch, c.length + 1)
    return torch.randint(c.vocabulary, shape, generator=generator).to(device)


def train_step(model: Gpt, optimizer: torch.optim.Optimizer, tokens: Tensor) -> list[float]:
    """One optimizer step over all microbatches; returns their losses."""
    losses = []
    for microbatch in tokens:
        logits = model(microbatch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), microbatch[:, 1:].flatten())
        torch.autograd.backward(loss / len(tokens))
        losses.append(loss.item())
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return losses


def digest(model: nn.Module) -> str:
    """A hash of every bit of the weights."""
    sha = hashlib.sha256()
    for parameter in model.parameters():
        sha.update(parameter.detach().cpu().numpy().tobytes())
    return sha.hexdigest()


def run(connection: Connection, planned: bool, steps: int, device: str) -> None:
    """One of the two runs: takes a step each time it is told to, and reports at the end."""
    c = Config()
    # On a busy machine, several threads of plain torch may add numbers in another order each time.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Gpt(c).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    losses: list[list[float]] = []

    def steps_from(first: int, count: int) -> Iterator[None]:
        for step in range(first, first + count):
            tokens = batch(c, step, device)
            losses.append(train_step(model, optimizer, tokens))
            stalloc.step()
            del tokens
            yield

    plan = None
    if planned:
        with stalloc.profile(model) as prof:
            for _ in steps_from(0, PROFILED_STEPS):
                ...
        plan = prof.plan()
        stalloc.enable(plan)
    else:
        for _ in steps_from(0, PROFILED_STEPS):
            ...

    seconds = []
    remaining = steps_from(PROFILED_STEPS, steps)
    for _ in range(steps):
        connection.send("ready")
        connection.recv()
        start = time.perf_counter()
        next(remaining)
        seconds.append(time.perf_counter() - start)
    report: dict[str, Any] = {"losses": losses, "weights": digest(model), "seconds": seconds}
    if plan is not None:
        report |= {"pool": plan.pool, "bound": plan.bound, "gap": plan.gap}
        report["stats"] = stalloc.memory_stats()
    connection.send(report)


def take_turns(steps: int, device: str) -> list[dict[str, Any]]:
    """Runs both, one step at a time; returns their reports, the one without stalloc first."""
    # A process that waits for its turn must not burn the other's cores.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    context = multiprocessing.get_context("spawn")
    runs = []
    for planned in (False, True):
        ours, theirs = context.Pipe()
        process = context.Process(target=run, args=(theirs, planned, steps, device))
        process.start()
        theirs.close()
        runs.append((process, ours))
        ours.recv()  # profiled and waiting
    for step in range(steps):
        # First one first, then the other: neither always has the warmer cache.
        for _, connection in runs if step % 2 else reversed(runs):
            connection.send("step")
            if step < steps - 1:
                connection.recv()
            else:
                connection.poll(None)
    reports = [connection.recv() for _, connection in runs]
    for process, _ in runs:
        process.join()
    return reports


def main() -> int:
    """Trains, compares, prints; returns 1 when the two runs differ."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=20, help="planned steps (default: 20)")
    steps = parser.parse_args().steps
    device = "cpu"

    plain, planned = take_turns(steps, device)
    stats = planned["stats"]
    result = {
        "losses_identical": plain["losses"] == planned["losses"]
        and plain["weights"] == planned["weights"],
        "load": stats["peak_allocated"],
        "pool": planned["pool"],
        "bound": planned["bound"],
        "gap": planned["gap"],
        "efficiency": stats["efficiency"],
        "hit_rate": stats["hit_rate"],
        "fallback_bytes": stats["peak_fallback_allocated"],
        "step_seconds_without": statistics.median(plain["seconds"]),
        "step_seconds_with": statistics.median(planned["seconds"]),
    }

    def mib(value: int) -> str:
        return f"{value / 2**20:.1f} MiB"

    table = Table(title=f"GPT on {device}, {steps} planned steps", title_justify="left")
    table.add_column("")
    table.add_column("torch's allocator", justify="right")
    table.add_column("stalloc", justify="right")
    table.add_row("live at the peak", "", mib(result["load"]))
    table.add_row("pool", "", mib(result["pool"]))
    table.add_row("lower bound", "", mib(result["bound"]))
    table.add_row("gap", "", f"{100 * result['gap']:.3f} %")
    table.add_row("efficiency", "", f"{result['efficiency']:.4f}")
    table.add_row("hits", "", f"{stats['hits']} ({100 * result['hit_rate']:.2f} %)")
    table.add_row("misses", "", str(stats["misses"]))
    table.add_row("fallback at the peak", "", mib(result["fallback_bytes"]))
    table.add_row(
        "time per step",
        f"{1e3 * result['step_seconds_without']:.1f} ms",
        f"{1e3 * result['step_seconds_with']:.1f} ms",
    )
    same = "identical" if result["losses_identical"] else "DIFFERENT"
    table.add_row("losses and weights", "", same)
    Console().print(table)
    print(json.dumps(result))
    return 0 if result["losses_identical"] else 1


if __name__ == "__main__":
    sys.exit(main())
