"""Finds the microbatch and the chunk of the model of a backward.

Pipelines' backward functions get the output tensor of the forward and no number. So the forward's
output is tagged, as an attribute of the Python object, which lives as long as the schedule keeps
it, even where it drops the data. An output that has lost its tag counts in the order of forwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from stalloc._frameworks.patches import Argument, Function, Make
from stalloc.driver import Driver

_TAG = "_stalloc_position"


class Position(NamedTuple):
    """A microbatch, and the chunk of the model that it is at; both count from 0."""

    microbatch: int
    chunk: int = 0


class Positions:
    """The microbatches of one iteration that have been forward and not yet backward."""

    def __init__(self) -> None:
        self._forwarded: dict[int, int] = {}  # by chunk
        self._waiting: deque[Position] = deque()

    def restart(self) -> None:
        """Begins an iteration."""
        self._forwarded.clear()
        self._waiting.clear()

    def forward(self, chunk: int, microbatch: int | None) -> Position:
        """The position of a forward; without a number it is the chunk's next microbatch."""
        if microbatch is None:
            microbatch = self._forwarded.get(chunk, 0)
        self._forwarded[chunk] = microbatch + 1
        return Position(microbatch, chunk)

    def forwarded(self, position: Position, output: Any) -> None:
        """Tags the output of a forward."""
        self._waiting.append(position)
        for tensor in _tensors(output):
            setattr(tensor, _TAG, position)
            return

    def backward(self, output: Any) -> Position:
        """The position of the backward of a forward's output."""
        for tensor in _tensors(output):
            position = getattr(tensor, _TAG, None)
            if isinstance(position, Position):
                if position in self._waiting:
                    self._waiting.remove(position)
                return position
        return self._waiting.popleft() if self._waiting else Position(0)

    def followed_backward(self, driver: Driver, argument: str) -> Make:
        """Makes a wrapper of a backward function that reports each call to the driver.

        Args:
            driver: Hears of the phase while an iteration is profiled or planned.
            argument: The function's name for the output of the forward.
        """

        def wrap(original: Function) -> Function:
            output = Argument(original, argument)

            def backward_step(*args: Any, **kwargs: Any) -> Any:
                if not driver.active:
                    return original(*args, **kwargs)
                with driver.backward(*self.backward(output.of(args, kwargs))):
                    return original(*args, **kwargs)

            return backward_step

        return wrap


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
