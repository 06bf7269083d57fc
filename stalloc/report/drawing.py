"""A drawing: where in an allocator's memory each request lies, and when.

Addresses count from 0. Several segments of an allocator are stacked in the order of allocation,
so the height of the drawing is the memory that is held. Ticks count from the beginning of the drawn
iteration, and everything is cut to it: a request that wraps around is two rectangles.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from stalloc.tables import Int64s


@dataclass(frozen=True, slots=True)
class Rectangles:
    """The drawn requests, one rectangle a row.

    Attributes:
        request: Row of the scene's requests, whose size it has.
        address: First byte.
        start: First tick.
        end: One past the last tick.
    """

    request: Int64s
    address: Int64s
    start: Int64s
    end: Int64s

    def __len__(self) -> int:
        return len(self.request)

    def chosen(self, rows: npt.NDArray[np.bool_]) -> Rectangles:
        """The rows that are true."""
        return Rectangles(*(getattr(self, field.name)[rows] for field in fields(Rectangles)))


@dataclass(frozen=True, slots=True)
class Segments:
    """Ranges of memory, live or not.

    Attributes:
        address: First byte.
        size: Bytes.
        start: First tick.
        end: One past the last tick.
    """

    address: Int64s
    size: Int64s
    start: Int64s
    end: Int64s

    def __len__(self) -> int:
        return len(self.address)

    @classmethod
    def none(cls) -> Segments:
        """A table without rows."""
        return cls(*(np.zeros(0, np.int64) for _ in range(4)))


@dataclass(frozen=True, slots=True)
class Drawing:
    """One allocator's addresses for the requests.

    Attributes:
        allocator: Its name in a few characters, as in `torch`.
        title: Its name in words.
        rectangles: The requests.
        segments: The device memory that it holds.
        regions: The parts reserved for dynamic requests.
    """

    allocator: str
    title: str
    rectangles: Rectangles
    segments: Segments
    regions: Segments

    def held(self) -> tuple[Int64s, Int64s]:
        """Ticks at which the memory held changes, ascending, and the bytes from there on."""
        return running_sum(
            np.concatenate([self.segments.start, self.segments.end]),
            np.concatenate([self.segments.size, -self.segments.size]),
        )

    @property
    def reserved(self) -> int:
        """The most bytes held at once."""
        return int(self.held()[1].max(initial=0))


def running_sum(ticks: Int64s, changes: Int64s) -> tuple[Int64s, Int64s]:
    """Adds up changes in order of their ticks; each tick comes once, with the sum from there on."""
    distinct, place = np.unique(ticks, return_inverse=True)
    total = np.zeros(len(distinct), np.int64)
    np.add.at(total, place, changes)
    return distinct, np.cumsum(total)


def together(*tables: Rectangles) -> Rectangles:
    """The rectangles of all tables."""
    return Rectangles(
        *(
            np.concatenate([getattr(table, field.name) for table in tables])
            for field in fields(Rectangles)
        )
    )


def around_the_end(
    request: Int64s, address: Int64s, lower: Int64s, upper: Int64s, period: int
) -> Rectangles:
    """Rectangles of lifetimes on a circle of `period` ticks: those that wrap round become two."""
    wraps: npt.NDArray[np.bool_] = upper > period
    return Rectangles(
        request=np.concatenate([request, request[wraps]]),
        address=np.concatenate([address, address[wraps]]),
        start=np.concatenate([lower, np.zeros(int(wraps.sum()), np.int64)]),
        end=np.concatenate([np.minimum(upper, period), upper[wraps] - period]),
    )
