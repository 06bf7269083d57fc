"""The order in which a pipeline rank runs its forwards and backwards, as Megatron-LM has it.

`steps` gives the order alone; megatron/core/pipeline_parallel/schedules.py is the source:
`forward_backward_pipelining_without_interleaving` for one chunk a rank, `..._with_interleaving` for
more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from configs import Parallelism


@dataclass(frozen=True)
class Step:
    """One forward or backward of one microbatch through one chunk."""

    backward: bool
    chunk: int
    microbatch: int


def steps(parallelism: Parallelism, stage: int) -> Iterator[Step]:
    """Everything that pipeline rank `stage` runs in an iteration, in order."""
    total = parallelism.microbatches * parallelism.chunks
    if parallelism.chunks == 1:
        warmup = min(parallelism.pipeline - stage - 1, total)
    elif parallelism.microbatches == parallelism.pipeline:
        warmup = total
    else:
        warmup = min(
            (parallelism.pipeline - stage - 1) * 2
            + (parallelism.chunks - 1) * parallelism.pipeline,
            total,
        )
    for index in range(warmup):
        yield _step(parallelism, index, backward=False)
    for index in range(total - warmup):
        yield _step(parallelism, index + warmup, backward=False)
        yield _step(parallelism, index, backward=True)
    for index in range(total - warmup, total):
        yield _step(parallelism, index, backward=True)


def _step(parallelism: Parallelism, index: int, *, backward: bool) -> Step:
    """The `index`-th forward or backward: groups of `pipeline` microbatches, chunk by chunk."""
    group, place = divmod(index, parallelism.pipeline * parallelism.chunks)
    chunk, offset = divmod(place, parallelism.pipeline)
    if parallelism.chunks == 1:
        return Step(backward, 0, index)
    if backward:
        chunk = parallelism.chunks - 1 - chunk
    return Step(backward, chunk, group * parallelism.pipeline + offset)
