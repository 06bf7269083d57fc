"""Generates what one pipeline rank of a large-model training run allocates in an iteration.

A rank holds `chunks` model chunks of some transformer layers each and runs `microbatches` through
them under the 1F1B schedule, interleaved where there is more than one chunk. Every layer saves
activations for its backward pass and uses transients in both directions; with recomputation it
saves its input only and runs its forward again inside its backward. With varying lengths every
microbatch has a sequence length of its own. Weights, gradients and optimizer states live
throughout.

The shapes follow what Megatron-LM allocates for a GPT layer; the generator is deterministic.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Rank:
    """The training and this rank in it."""

    layers: int = 32  # of this rank, over all its chunks
    microbatches: int = 64
    chunks: int = 1
    pipeline: int = 8
    rank: int = 0
    hidden: int = 4096
    heads: int = 32
    sequence: int = 4096
    recompute: bool = False
    varying: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Instance:
    """One planning problem, as `stalloc.plan` takes it."""

    name: str
    lower: Int64
    upper: Int64
    size: Int64
    phase_begin: Int32
    phase_end: Int32

    @property
    def digest(self) -> str:
        """A hash of everything that is planned."""
        digest = hashlib.sha256()
        for column in (self.lower, self.upper, self.size, self.phase_begin, self.phase_end):
            digest.update(np.ascontiguousarray(column).tobytes())
        return digest.hexdigest()[:16]


class _Recorder:
    """Counts ticks and writes requests down, as the real recorder would."""

    def __init__(self) -> None:
        self.tick = 0
        self.phase = 0
        self.lower: list[int] = []
        self.upper: list[int] = []
        self.size: list[int] = []
        self.phase_begin: list[int] = []
        self.phase_end: list[int] = []

    def allocate(self, size: int) -> int:
        self.lower.append(self.tick)
        self.upper.append(-1)
        self.size.append(size)
        self.phase_begin.append(self.phase)
        self.phase_end.append(-1)
        self.tick += 1
        return len(self.lower) - 1

    def free(self, request: int) -> None:
        self.upper[request] = self.tick
        self.phase_end[request] = self.phase
        self.tick += 1

    def transient(self, *sizes: int) -> None:
        for request in [self.allocate(size) for size in sizes]:
            self.free(request)


class _Layer:
    """One transformer layer: its forward, and the backward of what that saved."""

    def __init__(self, rank: Rank, recorder: _Recorder) -> None:
        self.rank = rank
        self.recorder = recorder

    def forward(self, sequence: int) -> list[int]:
        """Runs the layer; returns what its backward needs, in order of allocation."""
        rec = self.recorder
        unit = 2 * sequence * self.rank.hidden  # a bf16 tensor of sequence x hidden
        saved = [rec.allocate(unit), rec.allocate(4 * sequence), rec.allocate(4 * sequence)]
        qkv = rec.allocate(3 * unit)
        saved += [rec.allocate(unit) for _ in range(3)]  # q, k, v with rotary embedding
        rec.free(qkv)
        saved.append(rec.allocate(unit))  # attention
        saved.append(rec.allocate(4 * sequence * self.rank.heads))  # its log-sum-exp
        rec.transient(sequence * 256)
        projection = rec.allocate(unit)
        saved.append(rec.allocate(unit))  # residual
        rec.free(projection)
        saved += [rec.allocate(unit), rec.allocate(4 * sequence), rec.allocate(4 * sequence)]
        saved.append(rec.allocate(8 * unit))  # gate and up projection
        saved.append(rec.allocate(4 * unit))  # their product
        down = rec.allocate(unit)
        rec.transient(512)
        saved.append(rec.allocate(unit))  # residual
        rec.free(down)
        return saved

    def backward(self, saved: list[int], sequence: int) -> None:
        """Consumes what the forward saved, last first, a gradient flowing through."""
        rec = self.recorder
        unit = 2 * sequence * self.rank.hidden
        gradient = rec.allocate(unit)
        for step, request in enumerate(reversed(saved)):
            size = rec.size[request]
            flowing = rec.allocate(max(unit, size))
            if step % 4 == 1:
                rec.transient(2 * self.rank.hidden * self.rank.hidden)  # a weight's gradient
            rec.free(request)
            rec.free(gradient)
            gradient = flowing
        rec.free(gradient)


def _schedule(rank: Rank) -> list[tuple[str, int, int]]:
    """(direction, microbatch, chunk) in the order in which this rank runs them."""
    total = rank.microbatches * rank.chunks
    group = rank.pipeline * rank.chunks

    def step(k: int, forward: bool) -> tuple[int, int]:
        if rank.chunks == 1:
            return k, 0
        chunk = (k % group) // rank.pipeline
        microbatch = (k // group) * rank.pipeline + k % rank.pipeline
        return microbatch, chunk if forward else rank.chunks - 1 - chunk

    warmup = rank.pipeline - rank.rank - 1
    if rank.chunks > 1:
        warmup = 2 * warmup + (rank.chunks - 1) * rank.pipeline
    warmup = min(warmup, total)
    steps: list[tuple[str, int, int]] = [("F", *step(k, True)) for k in range(warmup)]
    for k in range(total - warmup):
        steps.append(("F", *step(warmup + k, True)))
        steps.append(("B", *step(k, False)))
    steps += [("B", *step(k, False)) for k in range(total - warmup, total)]
    return steps


def generate(rank: Rank, name: str) -> Instance:
    """All requests of one iteration, from tick 0 on."""
    rng = np.random.default_rng(rank.seed)
    rec = _Recorder()
    layer = _Layer(rank, rec)
    lengths = np.full(rank.microbatches, rank.sequence)
    if rank.varying:
        lengths = np.clip(
            rng.lognormal(np.log(rank.sequence * 0.6), 0.5, rank.microbatches),
            64,
            2 * rank.sequence,
        ).astype(np.int64)
    square = rank.hidden * rank.hidden
    weights = [n * square for n in (3, 1, 8, 4)] + [rank.hidden, rank.hidden]
    persistent = [
        rec.allocate(width * count)
        for width in (2, 4, 4, 4, 4)  # bf16 weight, fp32 gradient, master weight, two moments
        for _ in range(rank.layers)
        for count in weights
    ]
    per_chunk = max(1, rank.layers // rank.chunks)
    waiting: dict[tuple[int, int], list[list[int]]] = {}
    inputs: dict[tuple[int, int], int] = {}
    for direction, microbatch, chunk in _schedule(rank):
        rec.phase += 1
        sequence = int(lengths[microbatch])
        unit = 2 * sequence * rank.hidden
        key = (microbatch, chunk)
        if direction == "F":
            inputs[key] = rec.allocate(unit)  # received from the rank before
            waiting[key] = []
            for _ in range(per_chunk):
                saved = layer.forward(sequence)
                if rank.recompute:
                    for request in saved[1:]:
                        rec.free(request)
                    saved = saved[:1]
                waiting[key].append(saved)
            rec.transient(unit)  # sent to the next one
        else:
            gradient = rec.allocate(unit)
            for saved in reversed(waiting.pop(key)):
                if rank.recompute:
                    layer.backward(layer.forward(sequence), sequence)
                    rec.free(saved[0])
                else:
                    layer.backward(saved, sequence)
            rec.free(inputs.pop(key))
            rec.free(gradient)
    rec.phase += 1
    for _ in range(rank.layers):
        for count in weights:
            rec.transient(4 * count, 4 * count)
    rec.phase += 1
    for request in persistent:
        rec.free(request)
    return Instance(
        name,
        np.array(rec.lower, np.int64),
        np.array(rec.upper, np.int64),
        np.array(rec.size, np.int64),
        np.array(rec.phase_begin, np.int32),
        np.array(rec.phase_end, np.int32),
    )


KINDS: dict[str, Rank] = {
    "plain": Rank(),
    "virtual": Rank(chunks=4),
    "recompute": Rank(recompute=True),
    "varying": Rank(varying=True),
    "recompute-varying": Rank(recompute=True, varying=True),
    "all": Rank(chunks=4, recompute=True, varying=True),
}


def sized(kind: str, requests: int) -> Instance:
    """A rank of this kind with about that many requests: more microbatches, of at least 8."""
    rank = KINDS[kind]
    layers = 8 if requests < 50_000 else 32
    per_step = 60 if rank.recompute else 42  # requests a layer and microbatch
    microbatches = max(1, round(requests / (layers * per_step)))
    microbatches = max(8, -(-microbatches // rank.pipeline) * rank.pipeline)
    return generate(
        replace(rank, layers=layers, microbatches=microbatches), f"{kind}-{requests // 1000}k"
    )
