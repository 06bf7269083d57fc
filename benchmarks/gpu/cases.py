"""The training runs that are measured, by name."""

from __future__ import annotations

from dataclasses import dataclass, replace

from training import Run


@dataclass(frozen=True)
class Case:
    """A training run, and the most memory it takes under any allocator, in GiB."""

    run: Run
    room: float


GPT2 = Run("gpt2-345m", "", batch=8, microbatches=2, warmup=4, steps=6)
LLAMA = Run("llama-1.3b", "", batch=1, microbatches=2, warmup=4, steps=6)
EXPERTS = Run("moe-8x", "", batch=4, microbatches=2, warmup=4, steps=6)
PROXY = Run("deepseek-proxy", "", batch=8, microbatches=2, warmup=4, steps=6)


PLANNED_BY = 10  # steps after which stalloc.auto has a plan in force


def _lengths(run: Run) -> Run:
    return replace(run, lengths=True, warmup=PLANNED_BY, steps=12)


def _growing(run: Run) -> Run:
    return replace(run, growing=True, warmup=PLANNED_BY, steps=12)


CASES = {
    "gpt2-345m": Case(GPT2, 26),
    "gpt2-345m, lengths": Case(_lengths(GPT2), 34),
    "llama-1.3b": Case(LLAMA, 31),
    "llama-1.3b, lengths": Case(_lengths(LLAMA), 35),
    "gpt2-345m, growing": Case(_growing(GPT2), 34),
    "llama-1.3b, growing": Case(_growing(LLAMA), 35),
    "moe-8x": Case(EXPERTS, 30),
    "moe-8x, lengths": Case(_lengths(EXPERTS), 34),
    "deepseek-proxy": Case(PROXY, 21),
    "gpt2-345m, FSDP2, fused AdamW": Case(replace(GPT2, sharded=True, fused=True), 26),
    "gpt2-345m, compiled": Case(replace(GPT2, compiled=True), 20),
    "llama-1.3b, recomputation": Case(replace(LLAMA, batch=4, recompute=True), 35),
}
# Steps of a turn make about a second.
SPEED = {
    "gpt2-345m": replace(GPT2, microbatches=1, steps=8),
    "gpt2-345m, one sequence": replace(GPT2, batch=1, microbatches=1, steps=12),
    "gpt2-345m, lengths": replace(GPT2, microbatches=1, steps=8, lengths=True),
    "llama-1.3b": replace(LLAMA, batch=2, microbatches=1, steps=6),
    "moe-8x": replace(EXPERTS, batch=2, microbatches=1, steps=6),
}
# The largest batch of these is looked for. Their sequences have 1,024 tokens.
LARGEST = {"deepseek-proxy": replace(PROXY, steps=2)}
# Snapshots of torch's own allocator. Changing lengths need a few steps to be seen.
TRACES = {
    name: replace(case.run, allocator="torch", warmup=2, steps=3 if case.run.lengths else 2)
    for name, case in CASES.items()
    if name != "llama-1.3b, recomputation"
}
