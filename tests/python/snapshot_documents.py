"""Memory snapshots for tests: a caching allocator's history, in the layout that torch writes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

Document = dict[str, Any]

BASE = 0x7F0000000000

ENGINE = {
    "name": "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::Gra",
    "filename": "??",
    "line": 0,
}


def frame(name: str, filename: str = "/home/me/train.py", line: int = 1) -> Document:
    return {"name": name, "filename": filename, "line": line}


FORWARD = [
    frame("at::detail::empty_cuda(c10::ArrayRef<long>)", "??", 0),
    frame("forward", "/usr/lib/python3/site-packages/torch/nn/modules/linear.py", 125),
    frame("forward", "/home/me/model.py", 10),
    frame("<module>", "/home/me/train.py", 20),
]
BACKWARD = [
    frame("at::detail::empty_cuda(c10::ArrayRef<long>)", "??", 0),
    frame("torch::autograd::generated::MulBackward0::apply(std::vector<at::Tensor>&&)", "??", 0),
    ENGINE,
    frame("__clone", "??", 0),
]
STEP = [
    frame("_single_tensor_adamw", "/x/site-packages/torch/optim/adamw.py", 400),
    frame("step", "/x/site-packages/torch/optim/adamw.py", 200),
    frame("<module>", "/home/me/train.py", 22),
]


class SnapshotWriter:
    """Records as torch does: each address is used by one live block at a time."""

    def __init__(self, device: int = 0) -> None:
        self.device = device
        self.events: list[Document] = []
        self.annotations: list[Document] = []
        self.live: dict[int, tuple[int, int]] = {}
        self.pending: dict[int, tuple[int, int]] = {}
        self._next = BASE + (device << 40)
        self.now = 1_700_000_000_000_000

    def alloc(
        self, size: int, frames: list[Document] | None = None, stream: int = 0, **more: Any
    ) -> int:
        address, self._next = self._next, self._next + (size + 511) // 512 * 512
        self.live[address] = (size, stream)
        self._event("alloc", address, size, stream, frames, more)
        return address

    def free(self, address: int, completed: bool = True) -> None:
        size, stream = self.live.pop(address)
        self._event("free_requested", address, size, stream, [], {})
        if completed:
            self._event("free_completed", address, size, stream, [], {})
        else:
            self.pending[address] = (size, stream)

    def complete(self, address: int) -> None:
        size, stream = self.pending.pop(address)
        self._event("free_completed", address, size, stream, [], {})

    def segment(self, action: str, size: int) -> None:
        self._event(action, BASE, size, 0, [], {})

    def annotate(self, stage: str, name: str) -> None:
        self.now += 1
        self.annotations.append(
            {"stage": stage, "name": name, "device": self.device, "time_us": self.now}
        )

    def segments(self) -> list[Document]:
        """One segment a live block, and a free block behind it."""
        result = []
        states = ((self.live, "active_allocated"), (self.pending, "active_pending_free"))
        for blocks, state in states:
            for address, (size, stream) in blocks.items():
                rounded = (size + 511) // 512 * 512
                result.append(
                    {
                        "device": self.device,
                        "address": address,
                        "total_size": rounded + 512,
                        "allocated_size": rounded,
                        "active_size": rounded,
                        "requested_size": size,
                        "stream": stream,
                        "segment_type": "large",
                        "segment_pool_id": (0, 0),
                        "is_expandable": False,
                        "frames": [],
                        "blocks": [
                            {
                                "address": address,
                                "size": rounded,
                                "requested_size": size,
                                "state": state,
                                "frames": [],
                            },
                            {
                                "address": address + rounded,
                                "size": 512,
                                "requested_size": 0,
                                "state": "inactive",
                                "frames": [],
                            },
                        ],
                    }
                )
        return result

    def document(self, cut: int = 0) -> Document:
        """The snapshot; the first `cut` events were overwritten."""
        return {
            "segments": self.segments(),
            "device_traces": [[]] * self.device + [self.events[cut:]],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
            "external_annotations": self.annotations,
        }

    def _event(
        self,
        action: str,
        address: int,
        size: int,
        stream: int,
        frames: list[Document] | None,
        more: Document,
    ) -> None:
        self.now += 1
        entry: Document = {"action": action, "addr": address, "size": size, "stream": stream}
        entry |= {"time_us": self.now, "frames": frames or [], **more}
        self.events.append(entry)


class Training:
    """Steps of a model whose every layer has a weight, an activation and a gradient."""

    def __init__(
        self, layers: int = 6, annotate: bool = True, stacks: bool = True, unit: int = 1 << 20
    ) -> None:
        self._unit = unit
        self.writer = SnapshotWriter()
        self._annotate = annotate
        self._stacks = stacks
        self._layers = layers
        self._gradients: list[int] = []
        self._weights = [self.writer.alloc((i + 2) * unit) for i in range(layers)]
        self._states: list[int] = []
        self.loaded = len(self.writer.events)

    def step(self) -> None:
        writer, unit = self.writer, self._unit
        forward, backward, step = (FORWARD, BACKWARD, STEP) if self._stacks else ([], [], [])
        for gradient in self._gradients:  # zero_grad
            writer.free(gradient)
        activations = [writer.alloc((2 * i + 3) * unit, forward) for i in range(self._layers)]
        loss = writer.alloc(4, forward)
        self._gradients = []
        for row, activation in reversed(list(enumerate(activations))):
            self._gradients.append(writer.alloc((row + 2) * unit, backward))
            writer.free(activation)
        writer.free(loss)
        if self._annotate:
            writer.annotate("START", "Optimizer.step#AdamW.step")
        for row in range(self._layers):
            writer.free(writer.alloc((row + 2) * unit, step))
        if not self._states:
            self._states = [writer.alloc((i + 2) * unit, step) for i in range(self._layers)]
        if self._annotate:
            writer.annotate("END", "Optimizer.step#AdamW.step")


def trained(steps: int = 4, **options: Any) -> SnapshotWriter:
    training = Training(**options)
    for _ in range(steps):
        training.step()
    return training.writer


def last_step(**options: Any) -> Document:
    """A recording of the second step alone, from behind its zero_grad on."""
    training = Training(**options)
    training.step()
    first = len(training.writer.events)
    training.step()
    events = enumerate(training.writer.events[first:], first)
    return training.writer.document(next(i for i, e in events if e["action"] == "alloc"))


def dump(document: Any, protocol: int = 4) -> bytes:
    return pickle.dumps(document, protocol)


Shape = tuple[int, int]


def changing_sizes(rows: int, tokens: int) -> list[int]:
    """A layer's activations: affine in the tokens, and quadratic."""
    return [4 * 4096 * rows * tokens, 4 * 16 * rows * tokens * tokens, 4 * 1024 * rows * tokens]


def changing(
    iterations: Sequence[Sequence[Shape]],
    *,
    layers: int = 6,
    noise: Callable[[int], list[int]] = lambda _: [],
    rounded: int = 1,
    sizes: Callable[[int, int], list[int]] = changing_sizes,
) -> SnapshotWriter:
    """Steps of a transformer whose microbatches have shapes of their own.

    Args:
        iterations: The rows and tokens of the microbatches of each iteration.
        layers: Number of layers.
        noise: Sizes of further requests of a layer that follow no shape; gets the layer.
        rounded: Bytes that sizes are rounded up to.
        sizes: Sizes of a layer's activations by rows and tokens.
    """
    writer = SnapshotWriter()

    def alloc(size: int, frames: list[Document]) -> int:
        return writer.alloc(-(-size // rounded) * rounded, frames)

    def call(line: int) -> list[Document]:
        return [*FORWARD[:2], frame("forward", "/home/me/model.py", line), *FORWARD[3:]]

    for layer in range(layers):
        alloc(1 << 20, call(layer))
    states: list[int] = []
    for microbatches in iterations:
        gradients: list[int] = []
        for number, (rows, tokens) in enumerate(microbatches):
            ids = alloc(8 * rows * tokens, call(100))
            positions = alloc(8 * tokens, call(101))
            kept = []
            for layer in range(layers):
                here = call(200 + layer)
                kept += [alloc(size, here) for size in (*sizes(rows, tokens), 4096)]
                for size in noise(layer):
                    writer.free(alloc(size, here))
            loss = alloc(4, call(300))
            for activation in reversed(kept):
                writer.free(alloc(writer.live[activation][0], BACKWARD))
                writer.free(activation)
            if number == 0:
                gradients = [alloc(1 << 20, BACKWARD) for _ in range(layers)]
            for address in (loss, positions, ids):
                writer.free(address)
        for _ in range(layers):
            writer.free(alloc(1 << 20, STEP))
        states = states or [alloc(2 << 20, STEP) for _ in range(layers)]
        for gradient in gradients:
            writer.free(gradient)
    return writer
