"""Tells which microbatch and chunk of the model a backward belongs to.

Pipelines' backward functions get the output tensor of the forward and no number. So the forward's
output is tagged, as an attribute of the Python object, which lives as long as the schedule keeps
it, even where it drops the data. What comes back without its tag counts in the order of forwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

_TAG = "_stalloc_place"


class Place(NamedTuple):
    """A microbatch, and the chunk of the model that it is at; both count from 0."""

    microbatch: int
    chunk: int = 0


class Places:
    """The microbatches of one iteration that have been forward and not yet backward."""

    def __init__(self) -> None:
        self._forwarded: dict[int, int] = {}  # by chunk
        self._waiting: deque[Place] = deque()

    def restart(self) -> None:
        """Begins an iteration."""
        self._forwarded.clear()
        self._waiting.clear()

    def forward(self, chunk: int, microbatch: int | None) -> Place:
        """The place of a forward; without a number it is the chunk's next microbatch."""
        if microbatch is None:
            microbatch = self._forwarded.get(chunk, 0)
        self._forwarded[chunk] = microbatch + 1
        return Place(microbatch, chunk)

    def forwarded(self, place: Place, output: Any) -> None:
        """Tags what a forward returned."""
        self._waiting.append(place)
        for tensor in _tensors(output):
            setattr(tensor, _TAG, place)
            return

    def backward(self, output: Any) -> Place:
        """The place of the backward of what a forward returned."""
        for tensor in _tensors(output):
            place = getattr(tensor, _TAG, None)
            if isinstance(place, Place):
                if place in self._waiting:
                    self._waiting.remove(place)
                return place
        return self._waiting.popleft() if self._waiting else Place(0)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
