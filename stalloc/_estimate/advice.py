"""Means that make a run fit, cheapest first.

The program is recorded as it is, with its blocks recomputed, with their activations on the host,
and with smaller batches if an option tells the batch. On each recording, weights, gradients and
states are kept in several ways (`stalloc._estimate.states`). Of what fits, a combination is left
out if a part of it fits as well. Costs are compared in this order: GPUs, bytes that cross to the
host, recomputed work, number of means.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from stalloc._estimate import answer, nccl, states
from stalloc._estimate.accumulation import accumulated
from stalloc._estimate.answer import Estimate
from stalloc._estimate.extras import Extra
from stalloc._estimate.means import Activations
from stalloc._estimate.parts import GRADIENTS, parts_at
from stalloc._estimate.states import States
from stalloc.errors import StallocError
from stalloc.tables import PHASE_KINDS
from stalloc.trace import Trace

DEGREES = (2, 4, 8)
"""Numbers of GPUs to shard over."""

_PARTS = (2, 4, 8)
"""Numbers of microbatches to divide a batch into."""

_SHARES = (2, 4)
"""Every n-th block is recomputed, if all blocks are more than necessary."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run that was recorded with some means.

    Attributes:
        estimate: What it needs.
        flops: Floating-point operations of an iteration, as torch's counter knows them.
        activations: What was done with activations.
        states: Bytes of states of 32 bits in its optimizers, and of all their states.
    """

    estimate: Estimate
    flops: float
    activations: Activations
    states: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Advice:
    """Means with which a run fits.

    Attributes:
        means: Their names.
        how: For each of them, the option of the program's framework, or a function.
        reserved: Bytes that the allocator holds of the device.
        free: Bytes that are left of the GPU's memory at the upper end of the extras.
        recomputed: Work that is done again, as a share of that of an iteration.
        transferred: Bytes between GPU and host in an iteration.
        sent: Bytes that a GPU sends to others in an iteration.
        microbatches: In the place of one.
        gpus: GPUs that share the model.
    """

    means: tuple[str, ...]
    how: tuple[str, ...]
    reserved: int
    free: int
    recomputed: float = 0.0
    transferred: int = 0
    sent: int = 0
    microbatches: int = 1
    gpus: int = 1

    @property
    def cost(self) -> tuple[float, ...]:
        """Compares: the least is the cheapest."""
        return (self.gpus, self.transferred, self.recomputed, self.microbatches, len(self.means))


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A recording, and the means that it was made with."""

    recorded: Recorded
    means: tuple[str, ...] = ()
    how: tuple[str, ...] = ()
    recomputed: float = 0.0
    microbatches: int = 1


@dataclass(slots=True)
class Adviser:
    """Tries means on a program.

    Args:
        run: Records the program: with some activations, and the batch divided by a number, or None
            where nothing tells how to divide it.
        allocator: One of torch's.
        iterations: Iterations of a recording.
        sharded: The program shares its model among GPUs already.
    """

    run: Callable[[Activations, int], Recorded | None]
    allocator: str
    iterations: int
    sharded: bool = False
    failed: list[str] = field(default_factory=list)
    """Means with which the program could not be recorded, each with the reason."""

    def advise(self, plain: Recorded) -> list[Advice]:
        """The combinations that fit, cheapest first; one of no means if the run fits as it is."""
        as_it_is = self._with(_Attempt(plain), states.AS_THEY_ARE)
        if as_it_is is not None:
            return [as_it_is]
        found = list(self._found(plain)) or list(self._with_both(plain))
        found.sort(key=lambda advice: advice.cost)
        kept: list[Advice] = []
        for advice in found:
            if not any(_is_needless(advice, other) for other in found if other is not advice):
                kept.append(advice)
        return kept

    def _found(self, plain: Recorded) -> Iterator[Advice]:
        yield from self._fitting(_Attempt(plain))
        for number in _PARTS:
            smaller = self._record(f"batches of 1/{number}", Activations(), number)
            if smaller is None:
                break
            name, how = f"accumulation of {number} microbatches", _how("accumulation")
            yield from self._fitting(_Attempt(smaller, (name,), (how,), microbatches=number))
        if plain.activations.blocks:
            yield from self._recomputed(plain)
            yield from self._moved()

    def _recomputed(self, plain: Recorded) -> Iterator[Advice]:
        for share in (1, *_SHARES):
            name = "recomputation of " + ("all blocks" if share == 1 else f"1 of {share} blocks")
            recorded = self._record(name, Activations(recomputed=share), 1)
            if recorded is None:
                return
            work = max(0.0, recorded.flops / plain.flops - 1) if plain.flops else 0.0
            how = _how("recomputation" if share == 1 else "recomputation of some")
            fitting = self._fitting(_Attempt(recorded, (name,), (how,), recomputed=work))
            yield from fitting
            if not fitting:
                return  # fewer blocks save less

    def _with_both(self, plain: Recorded) -> Iterator[Advice]:
        """Smaller batches whose blocks are recomputed."""
        for number in _PARTS if plain.activations.blocks else ():
            name = f"accumulation of {number} microbatches"
            again = "recomputation of all blocks"
            recorded = self._record(f"{name}, {again}", Activations(recomputed=1), number)
            if recorded is None:
                return
            work = max(0.0, recorded.flops * number / plain.flops - 1) if plain.flops else 0.0
            how = (_how("accumulation"), _how("recomputation"))
            means = (name, again)
            attempt = _Attempt(recorded, means, how, recomputed=work, microbatches=number)
            yield from self._fitting(attempt)

    def _moved(self) -> Iterator[Advice]:
        name = "activations on the host"
        recorded = self._record(name, Activations(moved=True), 1)
        if recorded is not None and recorded.activations.transferred:
            yield from self._fitting(_Attempt(recorded, (name,), (_how("offload"),)))

    def _record(self, name: str, activations: Activations, number: int) -> Recorded | None:
        try:
            return self.run(activations, number)
        except StallocError as error:
            self.failed.append(f"{name}: {error}")
            return None

    def _fitting(self, attempt: _Attempt) -> list[Advice]:
        advice = (self._with(attempt, kept) for kept in _ways(attempt.recorded, self.sharded))
        return [each for each in advice if each is not None]

    def _with(self, attempt: _Attempt, kept: States) -> Advice | None:
        estimate, activations = attempt.recorded.estimate, attempt.recorded.activations
        card = estimate.card
        assert card is not None
        gradients = _gradients(estimate.trace)
        more = kept.gathered * activations.largest
        more += max(0, kept.gathered - 1) * activations.outside
        more += kept.buckets * gradients
        trace = estimate.trace
        if attempt.microbatches > 1:  # those of the first ones live while the next one runs
            summed = accumulated(trace)
            trace = trace if summed is None else summed
            if summed is None:
                more += max(0, gradients - estimate.parts.get(GRADIENTS, 0))
        extras = list(estimate.extras)
        if kept.gpus > 1 and not self.sharded:
            network = nccl.of_shards(kept.gpus, card.capability, card.processors)
            extras += [] if network is None else [network]
        beside = sum(extra.high for extra in extras)
        extras.append(Extra("what the means add", more, more, ""))
        trace = kept.changed(trace)
        if not answer.fits(trace, self.allocator, card, tuple(extras)):
            return None
        held = answer.reserved(trace, self.allocator) + more
        moved = 2 * activations.transferred // self.iterations
        return Advice(
            means=attempt.means + ((kept.name,) if kept.name else ()),
            how=attempt.how + ((_how(kept.name),) if kept.name else ()),
            reserved=held,
            free=card.memory - held - beside,
            recomputed=attempt.recomputed,
            transferred=moved + int(kept.by_bus * gradients),
            sent=int(kept.by_network * gradients),
            microbatches=attempt.microbatches,
            gpus=kept.gpus,
        )


def _ways(recorded: Recorded, sharded: bool) -> list[States]:
    whole, total = recorded.states
    ways = [states.AS_THEY_ARE]
    if total:
        ways += [states.IN_16_BITS, states.IN_8_BITS] if whole > total // 2 else []
        ways += [states.ON_HOST]
    if not sharded:
        ways += [states.sharded_states(gpus) for gpus in DEGREES] if total else []
        if recorded.activations.blocks:  # which are gathered one after another
            ways += [states.fully_sharded(gpus) for gpus in DEGREES]
    return ways


def _gradients(trace: Trace) -> int:
    """Bytes of gradients that live when the last optimizer's step begins."""
    steps = np.flatnonzero(trace.phases.kind == PHASE_KINDS.index("optimizer"))
    if not len(steps):
        return 0
    return parts_at(trace, int(trace.phases.begin[steps[-1]])).get(GRADIENTS, 0)


def _is_needless(advice: Advice, other: Advice) -> bool:
    """True if the other one has no other means, and does not cost more."""
    mine, theirs = (frozenset(map(_kind, each.means)) for each in (advice, other))
    if theirs == mine:
        return other.cost < advice.cost
    return theirs < mine and other.cost[:4] <= advice.cost[:4]


def _kind(name: str) -> str:
    """The means without its amount."""
    return name.split(" of ", maxsplit=1)[0].split(" over ", maxsplit=1)[0]


def framework() -> str:
    """The framework that the program has imported, if its options are known; else empty."""
    for name, module in (
        ("megatron", "megatron.training"),
        ("torchtitan", "torchtitan.trainer"),
        ("transformers", "transformers.trainer"),
    ):
        if module in sys.modules:
            return name
    return ""


_OPTIONS: dict[str, dict[str, str]] = {
    "accumulation": {
        "transformers": "--per_device_train_batch_size, --gradient_accumulation_steps",
        "megatron": "--micro-batch-size, with the same --global-batch-size",
        "torchtitan": "--training.local_batch_size, with the same --training.global_batch_size",
        "": "smaller batches, loss / N, optimizer.step() after N of them",
    },
    "recomputation": {
        "transformers": "--gradient_checkpointing true",
        "megatron": "--recompute-granularity full --recompute-method uniform "
        "--recompute-num-layers 1",
        "torchtitan": "--activation_checkpoint.mode full",
        "": "torch.utils.checkpoint.checkpoint(block, ..., use_reentrant=False)",
    },
    "recomputation of some": {
        "megatron": "--recompute-granularity full --recompute-method block "
        "--recompute-num-layers N",
        "": "torch.utils.checkpoint.checkpoint(block, ..., use_reentrant=False) for these blocks",
    },
    "offload": {
        "": "torch.autograd.graph.saved_tensors_hooks around each block, for tensors of 1 MiB or "
        "more that are no weights"
    },
    states.IN_16_BITS.name: {
        "megatron": "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
        "": "an optimizer that keeps its states in bfloat16",
    },
    states.IN_8_BITS.name: {
        "transformers": "--optim adamw_bnb_8bit",
        "": "torchao.optim.AdamW8bit, bitsandbytes.optim.AdamW8bit",
    },
    states.ON_HOST.name: {
        "megatron": "--optimizer-cpu-offload",
        "": "torchao.optim.CPUOffloadOptimizer, DeepSpeed's offload_optimizer",
    },
    states.sharded_states(2).name: {
        "megatron": "--use-distributed-optimizer",
        "": "torch.distributed.optim.ZeroRedundancyOptimizer",
    },
    states.fully_sharded(2).name: {
        "transformers": "--fsdp full_shard",
        "torchtitan": "--parallelism.data_parallel_shard_degree N",
        "": "torch.distributed.fsdp.fully_shard",
    },
}


def _how(name: str) -> str:
    known = _OPTIONS.get(name) or next(
        options for text, options in _OPTIONS.items() if _kind(text) == _kind(name)
    )
    return known.get(framework(), known[""])
