"""The report's sections on runs in native mode, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from configs import stream_configs
from fixed import CUBLAS, NCCL

from paper.figures import used_configs
from paper.native import EXPANDABLE, ITERATIONS, STREAM_USES, TORCH, USES, Use, UseRow

_MISSING = "Not measured: that takes a CUDA build of torch with stalloc, as `make test-cuda` makes."
_WAYS = f"""Peak of the whole run in GiB, and in brackets the load in relation to it. No replays: \
the workload's program runs on the pretended GPU, a process for each way, which makes the model, a \
warm-up iteration and {ITERATIONS - 1} more; `auto` goes on until its plan has served two. Kernels \
compute nothing. torch's operators, autograd with its thread, torch's own allocator, stalloc in \
native mode and the device's calls are real. The load has torch's workspaces for cuBLAS, which the \
replays above lack; iterations of a mixture of experts route differently.

- *whole process*: `enable(plan, startup=True)`, as `stalloc run --plan` does. The plan is made \
of an earlier process, which recorded start-up, the warm-up and three iterations.
- *`enable` after the warm-up*: torch serves until then. It gives back what it has cached, and the \
same plan goes into force. Weights and optimizer states stay in torch's segments, and so does the \
idle memory between them. *ES before*: with `PYTORCH_ALLOC_CONF=expandable_segments:True`.
- *profile, then `enable`*: README's lines. Three iterations are profiled, the warm-up first, and \
their plan is enabled in the same process.
- *`auto`*: `stalloc.auto()`, and a second run that finds the plan of the first one. The first \
plan goes into force when it is solved, in brackets the iteration (the warm-up is 0), unless it \
saves less than 1 %; then the second run has it. Meanwhile torch serves with expandable segments. \
The optimizer's states have a memory pool of their own, whose pages are idle in part, and idle \
pages go only where they are many; so `auto` may reserve up to half a percent more than ES. In a \
second run, weights and states stay in torch's segments: the plan begins with the first forward.
"""
_STREAMS = f"""Measured in the same way.

- *sharded*: Llama2-7B under torch's FullyShardedDataParallel with 8 ranks and AdamW. It gathers \
parameters and reduces gradients on streams of its own.
- *transfers*: sends and receives between stages lie on a stream of their own, as NCCL's.
- *offload*: saved activations of 1 MiB or more leave for the host and come back on a second stream.
- *behind*: the device completes no work before the next microbatch begins, so that a block that \
another stream uses comes back late. Without it, each stream completes its work at once.

All tell the allocator of other streams with `record_stream`. Collectives and copies are left out: \
there are no peers and no values. Fixed requests, the same under every allocator:

| request | MiB | source |
| --- | --- | --- |
| {CUBLAS.name}; torch's own request | {CUBLAS.size / 2**20:.1f} | {CUBLAS.source} |
| {NCCL.name}; taken of the device, and counted in load and reserved | {NCCL.size / 2**20:.1f} | \
{NCCL.source} |
"""


def render(rows: Sequence[UseRow]) -> str:
    """Both sections."""
    used = [row for row in rows if row.workload in {config.name for config in used_configs()}]
    streams = [row for row in rows if row.workload in stream_configs()]
    return "\n".join(
        [
            *("## How it is used\n", _WAYS, _section(used, USES)),
            *("## Several streams\n", _STREAMS, _section(streams, STREAM_USES)),
        ]
    )


def _section(rows: Sequence[UseRow], uses: Sequence[Use]) -> str:
    if not rows:
        return f"{_MISSING}\n"
    head = ["workload", "load", *(use.name for use in uses)]
    lines = [head, ["---"] * len(head)]
    for name, found in by_workload(rows).items():
        # Blocks that wait for another stream are live under torch, and not as asked.
        load = min(row.load for row in found.values())
        common = load if name in stream_configs() else None
        lines.append([name, _gib(load), *(_cell(found.get(use.name), common) for use in uses)])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    commits = sorted({row.commit for row in rows})
    by = sorted({row.by for row in rows})
    return (
        f"{table}\nUnder torch {' and '.join(by)}, at commit {' and '.join(commits)}.\n\n"
        f"{_comparison(rows, uses)}"
    )


def _comparison(rows: Sequence[UseRow], uses: Sequence[Use]) -> str:
    """A line for each way of stalloc: how often it reserves less than torch does."""
    lines = []
    groups = by_workload(rows).values()
    for use in uses:
        if use in (TORCH, EXPANDABLE):
            continue
        counts = []
        for peer in (TORCH, EXPANDABLE):
            both = [g for g in groups if use.name in g and peer.name in g]
            less = sum(g[use.name].reserved < g[peer.name].reserved for g in both)
            counts.append(f"than {peer.name} in {less} of {len(both)}")
        lines.append(f"- {use.name}: reserves less {' and '.join(counts)}\n")
    return "".join(lines)


def by_workload(rows: Iterable[UseRow]) -> dict[str, dict[str, UseRow]]:
    """Rows by workload, then by the way of use."""
    found: dict[str, dict[str, UseRow]] = {}
    for row in rows:
        found.setdefault(row.workload, {})[row.use] = row
    return found


def _cell(row: UseRow | None, load: int | None) -> str:
    if row is None:
        return ""
    text = f"{_gib(row.reserved)} ({(load or row.load) / row.reserved:.4f}"
    if row.is_automatic:
        text += ", no plan" if row.in_force is None else f", iteration {row.in_force}"
    return f"{text})"


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f}"
