"""The order in which a pipeline rank runs its forwards and backwards, as Megatron-LM has it.

`steps` gives the order alone; megatron/core/pipeline_parallel/schedules.py is the source:
`forward_backward_pipelining_without_interleaving` for one chunk a rank, `..._with_interleaving` for
more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from configs import Layout


@dataclass(frozen=True)
class Step:
    """One forward or backward of one microbatch through one chunk."""

    backward: bool
    chunk: int
    microbatch: int


def steps(layout: Layout, stage: int) -> Iterator[Step]:
    """Everything that pipeline rank `stage` runs in an iteration, in order."""
    total = layout.microbatches * layout.chunks
    if layout.chunks == 1:
        warmup = min(layout.pipeline - stage - 1, total)
    elif layout.microbatches == layout.pipeline:
        warmup = total
    else:
        warmup = min(
            (layout.pipeline - stage - 1) * 2 + (layout.chunks - 1) * layout.pipeline, total
        )
    for index in range(warmup):
        yield _step(layout, index, backward=False)
    for index in range(total - warmup):
        yield _step(layout, index + warmup, backward=False)
        yield _step(layout, index, backward=True)
    for index in range(total - warmup, total):
        yield _step(layout, index, backward=True)


def _step(layout: Layout, index: int, *, backward: bool) -> Step:
    """The `index`-th forward or backward: groups of `pipeline` microbatches, chunk by chunk."""
    group, place = divmod(index, layout.pipeline * layout.chunks)
    chunk, offset = divmod(place, layout.pipeline)
    if layout.chunks == 1:
        return Step(backward, 0, index)
    if backward:
        chunk = layout.chunks - 1 - chunk
    return Step(backward, chunk, group * layout.pipeline + offset)
