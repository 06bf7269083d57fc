"""Recordings of a functional AdamW, which replaces weights and states instead of updating them.

A transformer of 24 layers, as a memory snapshot of one training step: forward, backward, and an
optimizer that makes each new weight and state before it frees the old one. The orders differ in how
much of the new is made before the first of the old is freed.
"""

from __future__ import annotations

import pickle
from typing import Any

ORDERS = ("each", "pair", "kind", "all")
"""One block after another; a weight and both of its states together; all weights, then all states
of one kind; everything."""

_MIB = 1 << 20
_LAYERS = 24
_WIDTH = 1024
_VOCABULARY = 50257
_ACTIVATIONS = [size * _MIB for size in (8, 8, 24, 8, 32, 32, 8)]  # of a layer
_WEIGHTS = [4 * count * _WIDTH * _WIDTH for count in (3, 1, 4, 4)] + [4 * _WIDTH] * 4
_LOGITS = 4 * 512 * _VOCABULARY
_FORWARD = {"name": "forward", "filename": "/torch/nn/modules/linear.py", "line": 1}
_BACKWARD = {"name": "torch::autograd::Engine::evaluate_function", "filename": "??", "line": 0}


class _Recorder:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.notes: list[dict[str, Any]] = []
        self._live: dict[int, int] = {}
        self._next = 1 << 40

    def make(self, size: int, frame: dict[str, Any] | None = None) -> int:
        address = self._next
        self._next += -(-size // 512) * 512
        self._live[address] = size
        self._add("alloc", address, size, frame)
        return address

    def free(self, address: int) -> None:
        size = self._live.pop(address)
        self._add("free_requested", address, size)
        self._add("free_completed", address, size)

    def note(self, stage: str) -> None:
        note = {"stage": stage, "name": "Optimizer.step#AdamW.step", "device": 0}
        self.notes.append({**note, "time_us": 2 * len(self.events)})

    def _add(
        self, action: str, address: int, size: int, frame: dict[str, Any] | None = None
    ) -> None:
        entry = {"action": action, "addr": address, "size": size, "stream": 0}
        frames = [] if frame is None else [frame]
        self.events.append({**entry, "time_us": 2 * len(self.events) + 1, "frames": frames})


def recording(order: str) -> bytes:
    """A snapshot of the second step: weights and states were live before it."""
    recorder = _Recorder()
    sizes = [*_WEIGHTS * _LAYERS, 4 * _VOCABULARY * _WIDTH]
    old = [[recorder.make(size) for _ in range(3)] for size in sizes]
    begin = len(recorder.events)

    activations = [recorder.make(size, _FORWARD) for _ in range(_LAYERS) for size in _ACTIVATIONS]
    logits = recorder.make(_LOGITS, _FORWARD)
    gradients = [recorder.make(sizes[-1], _BACKWARD)]
    recorder.free(logits)
    for layer in reversed(range(_LAYERS)):
        first = layer * len(_WEIGHTS)
        gradients += [recorder.make(size, _BACKWARD) for size in sizes[first:][: len(_WEIGHTS)]]
        for _ in _ACTIVATIONS:
            recorder.free(activations.pop())

    recorder.note("START")
    for blocks in _handed_over(order, sizes, old):
        for size, _ in blocks:
            if order == "each":
                temporary = recorder.make(size)
                recorder.make(size)
                recorder.free(temporary)
            else:
                recorder.make(size)
        for _, address in blocks:
            recorder.free(address)
    for address in gradients:
        recorder.free(address)
    recorder.note("END")
    return pickle.dumps(
        {
            "segments": [],
            "device_traces": [recorder.events[begin:]],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
            "external_annotations": recorder.notes,
        }
    )


def _handed_over(order: str, sizes: list[int], old: list[list[int]]) -> list[list[tuple[int, int]]]:
    """Sizes and old addresses of the blocks that are made together, in the order of the steps."""
    groups = [
        [(size, address) for address in group] for size, group in zip(sizes, old, strict=True)
    ]
    if order == "each":
        return [[block] for group in groups for block in group]
    if order == "pair":
        return groups
    if order == "kind":
        return [list(kind) for kind in zip(*groups, strict=True)]
    return [[block for group in groups for block in group]]
