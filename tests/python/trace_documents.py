"""Traces for tests, written event by event as JSON documents."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Sequence
from typing import Any

from stalloc.trace import Trace

Document = dict[str, Any]


class TraceWriter:
    """Counts ticks as a recorder does."""

    def __init__(self) -> None:
        self._now = 0
        self._iterations = [0]
        self._phases: list[Document] = []
        self._requests: list[Document] = []

    def phase(self, kind: str, microbatch: int = -1) -> int:
        """Begins a phase; returns its row."""
        self._close_phase()
        self._phases.append(
            {
                "kind": kind,
                "microbatch": microbatch,
                "chunk": 0,
                "occurrence": 0,
                "begin": self._now,
                "end": self._now,
                "iteration": len(self._iterations) - 1,
            }
        )
        return len(self._phases) - 1

    def alloc(self, size: int, stream: int = 0, dynamic: bool = False) -> int:
        if not self._phases:
            self.phase("other")
        self._requests.append(
            {
                "size": size,
                "lower": self._now,
                "upper": None,
                "phase_begin": len(self._phases) - 1,
                "phase_end": -1,
                "layer_begin": 0,
                "layer_end": -1,
                "stream": stream,
                "thread": 0,
                "dynamic": dynamic,
            }
        )
        self._now += 1
        return len(self._requests) - 1

    def free(self, request: int) -> None:
        row = self._requests[request]
        row["upper"] = self._now
        row["phase_end"] = len(self._phases) - 1
        self._now += 1

    def step(self) -> None:
        self._close_phase()
        self._iterations.append(self._now)
        self.phase("other")

    def document(self) -> Document:
        self._close_phase()
        phase_columns = ("kind", "microbatch", "chunk", "occurrence", "begin", "end", "iteration")
        request_columns = (
            *("size", "lower", "upper", "phase_begin", "phase_end"),
            *("layer_begin", "layer_end", "stream", "thread", "dynamic"),
        )
        return {
            "format": "stalloc-trace",
            "version": 1,
            "info": {"device": "cpu"},
            "end": self._now,
            "iterations": self._iterations,
            "layers": ["model[0]"],
            "phases": {name: [row[name] for row in self._phases] for name in phase_columns},
            "layer_spans": {"layer": [], "phase": [], "begin": [], "end": [], "recompute": []},
            "requests": {name: [row[name] for row in self._requests] for name in request_columns},
        }

    def _close_phase(self) -> None:
        if self._phases:
            self._phases[-1]["end"] = self._now


def training_document(iterations: int = 3) -> Document:
    """Weights, activations, a gradient that wraps round, an evaluation and a dynamic request."""
    writer = TraceWriter()
    writer.alloc(100_000)
    gradient = None
    for iteration in range(iterations):
        writer.phase("forward", 0)
        activations = [writer.alloc(1000), writer.alloc(2000)]
        if gradient is not None:
            writer.free(gradient)
        dynamic = writer.alloc(700 + iteration)
        writer.phase("unplanned")
        writer.free(writer.alloc(50_000))
        writer.phase("backward", 0)
        writer.free(dynamic)
        gradient = writer.alloc(3000)
        for activation in reversed(activations):
            writer.free(activation)
        writer.phase("optimizer")
        writer.free(writer.alloc(400))
        writer.step()
    return writer.document()


def random_document(seed: int, iterations: int = 3) -> Document:
    """Something like training: the same requests in every iteration, with random lifetimes."""
    rng = random.Random(seed)
    count = rng.randrange(1, 40)
    sizes = [rng.choice([1, 512, 513, 4096, rng.randrange(1, 1 << 20)]) for _ in range(count)]
    lives = [rng.randrange(0, 2 * count) for _ in range(count)]
    streams = [rng.choice([0, 0, 0, 1]) for _ in range(count)]
    writer = TraceWriter()
    pending: list[tuple[int, int]] = []
    clock = 0
    for _ in range(iterations):
        for row in range(count):
            if row % 7 == 0:
                writer.phase("forward", row // 7)
            for due, request in list(pending):
                if due <= clock:
                    writer.free(request)
                    pending.remove((due, request))
            pending.append((clock + lives[row], writer.alloc(sizes[row], streams[row])))
            clock += 1
        writer.step()
    return writer.document()


def changing_document(shapes: Sequence[tuple[int, int]]) -> Document:
    """Training whose iterations have a microbatch of each shape of rows and tokens.

    The sizes are constant, affine, quadratic, cubic and stepped; one request wraps round.
    """
    writer = TraceWriter()
    forwards = []
    writer.alloc(100_000)
    gradient = None
    for rows, tokens in shapes:
        forwards.append(writer.phase("forward", 0))
        kept = [writer.alloc(size) for size in changing_sizes(rows, tokens)]
        if gradient is not None:
            writer.free(gradient)
        writer.phase("backward", 0)
        gradient = writer.alloc(3000)
        for request in reversed(kept):
            writer.free(writer.alloc(256 * tokens))
            writer.free(request)
        writer.phase("optimizer")
        writer.free(writer.alloc(400))
        writer.step()
    return writer.document() | {
        "extent_names": ["ids.0", "ids.1"],
        "extents": {"phase": forwards, "values": [list(shape) for shape in shapes]},
    }


def changing_sizes(rows: int, tokens: int) -> list[int]:
    """The sizes of the requests of a forward of `changing_document`."""
    return [
        8 * rows * tokens,
        4096 * rows * tokens,
        64 * rows * tokens * tokens,
        2000,
        -(-1000 * tokens // 512) * 512,
        96 * tokens + 40,
    ]


def random_laws(seed: int, count: int) -> Document:
    """Tables of a plan: size laws of three extents, of up to 2^46 bytes at the largest."""
    rng = random.Random(seed)
    largest = [rng.choice([7, 64, 4096, 131_072, 1_000_003]) for _ in range(3)]
    laws: Document = {name: [] for name in ("constant", "divisor", "step", "proof", "source")}
    terms: Document = {name: [] for name in ("law", "coefficient", "first", "second", "third")}
    for law in range(count):
        divisor = rng.choice([1, 1, 2, 3, 8, 4096])
        row = (rng.choice([0, rng.randrange(-(1 << 20), 1 << 40)]), divisor)
        row = (*row, rng.choice([1, 1, 16, 512, 2 << 20]), "proven", "own")
        for column, value in zip(laws.values(), row, strict=True):
            column.append(value)
        for _ in range(rng.randrange(3)):
            factors = sorted(rng.choices(range(3), k=rng.randint(1, 3)))
            # The sum may exceed 2^53; the size is that of a request.
            most = divisor * (1 << 45) // math.prod(largest[factor] for factor in factors)
            if most == 0:
                continue
            row = (law, rng.randint(1, most), *factors, *[-1] * (3 - len(factors)))
            for column, value in zip(terms.values(), row, strict=True):
                column.append(value)
    return {
        "laws": laws,
        "law_terms": terms,
        "extent_names": ["a", "b", "c"],
        "extents": largest,
        "seen": [],
    }


def to_trace(document: Document) -> Trace:
    return Trace.from_json(json.dumps(document).encode(), "test.json")


def damaged(document: Document, *path: str | int, value: Any) -> Document:
    """A copy with one value replaced."""
    result = copy.deepcopy(document)
    target: Any = result
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return result
