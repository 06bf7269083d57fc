"""A lower bound for the memory of a program whose allocator adds no waits.

An address that one stream has freed can go to another one only if that one comes later by the
program's own order, and it can come back only if the order leads back, too: the iterations repeat,
and so do planned addresses. Streams of which one never comes after the other have no address in
common, at any time:

    stream 0   [ a )           [ a )     of the next iteration
    stream 1          [ b )              may have a's addresses if it waits for stream 0,
                                         and stream 0 for it

So streams fall into groups that lead to each other. Groups share nothing, and each needs its load.
"""

from __future__ import annotations

import numpy as np

import stalloc

_ALIGNMENT = 512  # bytes of torch's sizes


def bound(trace: stalloc.Trace) -> int:
    """Bytes that the last complete iteration needs at least, whatever the placement."""
    requests = trace.requests
    begin, end = trace.iterations[-2:]
    lives = (requests.upper > begin) & (requests.lower < end)
    groups = _groups(trace)
    loads: dict[int, int] = {}
    for group in set(groups.values()):
        members = [stream for stream, its in groups.items() if its == group]
        chosen = lives & np.isin(requests.stream, members)
        loads[group] = _load(requests.size[chosen], requests.lower[chosen], requests.upper[chosen])
    return sum(loads.values())


def _groups(trace: stalloc.Trace) -> dict[int, int]:
    """The group of each stream, named by one of its streams.

    An order counts at all times if the program has it at any time, so the groups are never smaller
    than they are in truth, and the bound never higher.
    """
    streams = {int(stream) for stream in np.unique(trace.requests.stream)}
    after: dict[int, set[int]] = {}
    for stream, other in zip(trace.orders.stream, trace.orders.after, strict=True):
        after.setdefault(int(stream), set()).add(int(other))

    def before(stream: int) -> set[int]:
        found, open_ = {stream}, [stream]
        while open_:
            new = after.get(open_.pop(), set()) - found
            found |= new
            open_ += new
        return found

    reach = {stream: before(stream) for stream in streams}
    return {
        stream: min(other for other in streams & reach[stream] if stream in reach[other])
        for stream in streams
    }


def _load(size: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> int:
    """The most bytes that live at once; frees of a tick come before its allocations."""
    rounded = -(-size // _ALIGNMENT) * _ALIGNMENT
    ticks = np.concatenate([upper, lower])
    changes = np.concatenate([-rounded, rounded])
    order = np.argsort(ticks, kind="stable")
    return int(np.cumsum(changes[order]).max(initial=0))
