"""Mail between ranks that run at the same time, each in a process of its own.

The n-th message that a rank receives on a route is the n-th that was sent there, whenever it comes:
so the answers do not depend on which process is faster. A rank waits only for messages that may be
known; a message of which nothing is known is taken at once.

Messages travel as bytes, which the receiver alone reads. `torch.save` writes nothing during a run,
so tensors are sent as what they are made of.
"""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from stalloc._estimate.mail import Mail, Route
from stalloc._estimate.pipelines import Shapes

Key = Route | int
"""A route, or the number of a stage, which sends its shapes to the next one."""

Tell = Callable[[str, Any, bytes], None]
Ask = Callable[[Key, int], bytes]
"""The n-th message of a key; empty if it is not known."""


class Post(Mail):
    """The mail of one rank.

    Args:
        tell: Called with `sent`, a key and a message; or with `met`, a rank and nothing.
        ask: Waits for a message.
    """

    def __init__(self, tell: Tell, ask: Ask) -> None:
        super().__init__()
        self._tell, self._ask = tell, ask
        self._taken: Counter[Key] = Counter()
        self._met: set[int] = set()

    def begin(self, rank: int) -> None:
        """The rank runs from its start, and receives all again."""
        self._taken.clear()

    def send(self, route: Key, message: Any) -> None:
        """Sends a message; one that cannot be sent is not known to the receiver."""
        self._tell("sent", route, _packed(message))

    def receive(self, route: Key, *, waits: bool = True) -> Any:
        """The next message; None where it is not known."""
        number = self._taken[route]
        self._taken[route] += 1
        content = self._ask(route, number) if waits else b""
        return pickle.loads(content) if content else None

    def meet(self, rank: int) -> None:
        """Tells of another rank of the pipeline, which may begin."""
        if rank not in self._met:
            self._met.add(rank)
            self._tell("met", rank, b"")


class PostedShapes(Shapes):
    """The shapes that stages send, by the post."""

    complete = True

    def __init__(self, post: Post) -> None:
        super().__init__()
        self._post = post

    def of(self, stage: int) -> Any:
        """The next shapes that a stage sends, else its last ones; None if it sends none."""
        shapes = self._post.receive(stage)
        if shapes is not None:
            self.sent[stage] = shapes
        return self.sent.get(stage)

    def tell(self, stage: int, shapes: Any) -> None:
        """A stage of this rank sends its shapes."""
        self._post.send(stage, shapes)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FakeTensor):
            shape, stride = tuple(value.shape), value.stride()
            return _without_values, (shape, stride, value.dtype, value.fake_device.type)
        if isinstance(value, Tensor):
            return _with_values, (value.tolist(), tuple(value.shape), value.dtype)
        return NotImplemented


def _with_values(values: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=dtype).reshape(shape)


def _without_values(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: str
) -> Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


def _packed(message: Any) -> bytes:
    if message is None:
        return b""
    content = io.BytesIO()
    try:
        _Pickler(content).dump(message)
    except Exception:  # pickling calls code of any kind
        return b""
    return content.getvalue()
