"""Trains a mixture of experts with torch's own allocator and under plans, and compares the runs.

The router decides how many tokens each expert gets, so the sizes of the experts' tensors, and even
their number, change with every batch: they are dynamic. The plan knows where in an iteration they
come, and keeps room for them among the tensors whose sizes repeat. Four plans are tried: with and
without recomputing the blocks in backward, each with and without that room (`reuse`), where
dynamic tensors take memory of their own beside the plan.

All runs start from the same weights and see the same data, each in a process of its own. Losses and
final weights have to be identical to the bit with and without a plan.

    python examples/moe.py [--steps 50]

Prints a table, then a line of JSON for each plan.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import stalloc

PROFILED_STEPS = 4


@dataclass(frozen=True)
class Config:
    """A transformer of 5 million parameters, and how it is trained."""

    layers: int = 4
    width: int = 128
    heads: int = 4
    experts: int = 8
    top_k: int = 2
    expert_width: int = 512
    vocabulary: int = 2048
    length: int = 128
    microbatch: int = 4
    microbatches: int = 4
    balance: float = 0.01


def mlp(width: int, hidden: int) -> nn.Sequential:
    """One expert."""
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class Experts(nn.Module):
    """Runs every expert on the tokens that chose it. All that is made here is dynamic."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.experts = nn.ModuleList(mlp(c.width, c.expert_width) for _ in range(c.experts))

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum of what each token's experts make of it."""
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            tokens, rank = torch.where(chosen == i)
            if len(tokens):
                y = expert(x.index_select(0, tokens))
                out.index_add_(0, tokens, y * weights[tokens, rank, None])
        return out


class Mixture(nn.Module):
    """Routed experts and a shared one."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.top_k = c.top_k
        self.router = nn.Linear(c.width, c.experts, bias=False)
        self.experts = Experts(c)
        self.shared = mlp(c.width, c.expert_width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the result, and a loss that is least when all experts get as much."""
        tokens = x.flatten(0, 1)
        odds = self.router(tokens).softmax(-1)
        weights, chosen = odds.topk(self.top_k)
        y = self.experts(tokens, chosen, weights) + self.shared(tokens)
        share = functional.one_hot(chosen, odds.shape[-1]).sum((0, 1)) / chosen.numel()
        return y.view_as(x), (share * odds.mean(0)).sum() * odds.shape[-1]


class Block(nn.Module):
    """Attention and mixture, each before a residual connection."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.heads = c.heads
        self.norm1 = nn.LayerNorm(c.width)
        self.qkv = nn.Linear(c.width, 3 * c.width)
        self.out = nn.Linear(c.width, c.width)
        self.norm2 = nn.LayerNorm(c.width)
        self.mixture = Mixture(c)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keeps the shape, rows x length x width; also returns the mixture's balance."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).unbind(2)
        a = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        x = x + self.out(a.transpose(1, 2).reshape(batch, length, width))
        y, balance = self.mixture(self.norm2(x))
        return x + y, balance


class MoeTransformer(nn.Module):
    """A GPT with a mixture in every block."""

    def __init__(self, c: Config, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.tokens = nn.Embedding(c.vocabulary, c.width)
        self.positions = nn.Embedding(c.length, c.width)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.width)
        self.head = nn.Linear(c.width, c.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of each next token, and the sum of all balances."""
        x = self.tokens(tokens) + self.positions(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        balance = x.new_zeros(())
        for block in self.blocks:
            made = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
            x, balance = made[0], balance + made[1]
        return self.head(self.norm(x)), balance


def batch(c: Config, step: int) -> Tensor:
    """The tokens of one step, the same in all runs; as in language, a few are very common."""
    generator = torch.Generator().manual_seed(step)
    shape = (c.microbatches, c.microbatch, c.length + 1)
    return (c.vocabulary * torch.rand(shape, generator=generator) ** 4).long()


def train_step(
    c: Config, model: MoeTransformer, optimizer: torch.optim.Optimizer, tokens: Tensor
) -> list[float]:
    """One optimizer step over all microbatches; returns their losses."""
    losses = []
    for microbatch in tokens:
        logits, balance = model(microbatch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), microbatch[:, 1:].flatten())
        loss = loss + c.balance * balance
        (loss / len(tokens)).backward()
        losses.append(loss.item())
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return losses


def digest(model: nn.Module) -> str:
    """A hash of every bit of the weights."""
    sha = hashlib.sha256()
    for parameter in model.parameters():
        sha.update(parameter.detach().numpy().tobytes())
    return sha.hexdigest()


def start(recompute: bool) -> tuple[Config, MoeTransformer, torch.optim.Optimizer]:
    """The beginning of every run."""
    torch.set_num_threads(1)  # two runs at a time share the cores
    torch.manual_seed(0)
    c = Config()
    model = MoeTransformer(c, recompute)
    return c, model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def run_plain(recompute: bool, steps: int) -> dict[str, Any]:
    """Trains without a plan."""
    c, model, optimizer = start(recompute)
    losses = [
        train_step(c, model, optimizer, batch(c, step)) for step in range(PROFILED_STEPS + steps)
    ]
    return {"losses": losses, "weights": digest(model)}


def run_planned(recompute: bool, reuse: bool, steps: int) -> dict[str, Any]:
    """Profiles the first steps, plans them, and trains on under the plan."""
    c, model, optimizer = start(recompute)
    losses = []
    # Experts of known frameworks are dynamic by default; these are ours.
    with stalloc.profile(model, dynamic=[Experts]) as prof:
        for step in range(PROFILED_STEPS):
            losses.append(train_step(c, model, optimizer, batch(c, step)))
            prof.step()
    plan = prof.plan()
    stalloc.enable(plan, model=model, reuse=reuse)
    for step in range(PROFILED_STEPS, PROFILED_STEPS + steps):
        losses.append(train_step(c, model, optimizer, batch(c, step)))
        stalloc.step()
    return {"losses": losses, "weights": digest(model), "stats": stalloc.memory_stats()}


def result_of(
    recompute: bool, reuse: bool, plain: dict[str, Any], planned: dict[str, Any]
) -> dict[str, Any]:
    """The figures of one plan."""
    stats = planned["stats"]
    # The two need not be largest at one moment.
    in_pool = stats["peak_dynamic_in_region"] + stats["peak_dynamic_reused"]
    return {
        "recompute": recompute,
        "reuse": reuse,
        "losses_identical": plain["losses"] == planned["losses"]
        and plain["weights"] == planned["weights"],
        "load": stats["peak_allocated"],
        "reserved": stats["peak_reserved"],
        "efficiency": stats["efficiency"],
        "static_hit_rate": stats["hit_rate"],
        "dynamic_bytes": stats["peak_dynamic_allocated"],
        "dynamic_in_pool_bytes": min(in_pool, stats["peak_dynamic_allocated"]),
        "fallback_bytes": stats["peak_fallback_allocated"],
    }


def main() -> int:
    """Trains, compares, prints; returns 1 when any two runs differ."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=50, help="planned steps (default: 50)")
    steps = parser.parse_args().steps

    results = []
    # A process serves one run: torch has one allocator a process.
    with ProcessPoolExecutor(
        2, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1
    ) as pool:
        plain = {r: pool.submit(run_plain, r, steps) for r in (True, False)}
        settings = [(recompute, reuse) for recompute in (True, False) for reuse in (True, False)]
        planned = [pool.submit(run_planned, *setting, steps) for setting in settings]
        for setting, run in zip(settings, planned, strict=True):
            results.append(result_of(*setting, plain[setting[0]].result(), run.result()))

    def mib(value: int) -> str:
        return f"{value / 2**20:.1f} MiB"

    table = Table(title=f"Mixture of experts, {steps} planned steps", title_justify="left")
    table.add_column("")
    for r in results:
        recompute = "recomputed" if r["recompute"] else "not recomputed"
        table.add_column(f"{recompute},\n{'reuse' if r['reuse'] else 'no reuse'}", justify="right")
    rows = {
        "live at the peak": [mib(r["load"]) for r in results],
        "reserved": [mib(r["reserved"]) for r in results],
        "efficiency": [f"{r['efficiency']:.4f}" for r in results],
        "static hits": [f"{100 * r['static_hit_rate']:.2f} %" for r in results],
        "dynamic at the peak": [mib(r["dynamic_bytes"]) for r in results],
        "  of it in the pool": [mib(r["dynamic_in_pool_bytes"]) for r in results],
        "fallback at the peak": [mib(r["fallback_bytes"]) for r in results],
        "losses and weights": [
            "identical" if r["losses_identical"] else "DIFFERENT" for r in results
        ],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells)
    Console().print(table)
    for r in results:
        print(json.dumps(r))
    return 0 if all(r["losses_identical"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
