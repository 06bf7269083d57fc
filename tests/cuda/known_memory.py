"""The memory of a device, as the events of segments tell it."""

from __future__ import annotations


class KnownMemory:
    """Ranges of addresses with memory: their sizes, by address."""

    def __init__(self, ranges: dict[int, int] | None = None) -> None:
        self.ranges = dict(ranges or {})

    def add(self, begin: int, size: int) -> None:
        """A segment, or a part of one, has come."""
        assert not overlaps(self.ranges, begin, size), "memory where some is"
        self.ranges[begin] = size

    def remove(self, begin: int, size: int) -> None:
        """Takes a range away, all of which is there."""
        end, left = begin + size, {}
        for at, n in self.ranges.items():
            if at < end and begin < at + n:
                size -= min(at + n, end) - max(at, begin)
                left |= {at: begin - at} if at < begin else {}
                left |= {end: at + n - end} if at + n > end else {}
            else:
                left[at] = n
        assert size == 0, "memory goes that was not there"
        self.ranges = left


def overlaps(ranges: dict[int, int], begin: int, size: int) -> bool:
    """True if a range shares an address with the given one."""
    return any(at < begin + size and begin < at + n for at, n in ranges.items())


def joined(ranges: dict[int, int]) -> list[tuple[int, int]]:
    """The ranges in order; those without a gap between them are one."""
    result: list[tuple[int, int]] = []
    for begin, size in sorted(ranges.items()):
        if result and sum(result[-1]) == begin:
            result[-1] = (result[-1][0], result[-1][1] + size)
        else:
            result.append((begin, size))
    return result
