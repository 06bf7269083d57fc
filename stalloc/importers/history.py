"""Allocations and frees as an importer finds them, and the lifetimes they make.

A recorder inside torch knows phases, iterations, and the blocks that were live at its start. This
module infers them from the order of events and from hints, and states every assumption in words.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from stalloc import _core
from stalloc.importers.phases import Hint, Run
from stalloc.tables import Int64s

LARGEST = (1 << 63) - 1
"""The largest size, in bytes, that a trace can hold."""

REPETITION = "the iteration is repeated"
"""The beginning of the assumption that the importer repeats the only iteration."""

_FEW = 2  # iterations that are all compared


@dataclass(slots=True)
class Block:
    """Something that was live before the first event."""

    address: int
    size: int
    stream: int
    site: int


@dataclass(slots=True)
class History:
    """The events of one device, in order: one list a column.

    Attributes:
        device: As torch names it, `cuda:0`.
        allocates: True for an allocation, False for a free.
        addresses: The allocated or freed addresses.
        sizes: Bytes as asked; of a free what it says, or 0.
        streams: Handles as recorded.
        hints: The hint of each event about its phase: a `phases.Hint`.
        sites: The call site of each event: an index into `names`, or -1.
        names: Names of call sites or modules.
        live: Blocks that were live before, as far as other sources tell.
        assumptions: The assumptions so far.
        info: Facts about the run.
    """

    device: str
    allocates: list[bool] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    hints: list[int] = field(default_factory=list)
    sites: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    live: list[Block] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    info: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.allocates)

    def add(
        self, allocates: bool, address: int, size: int, stream: int, hint: int, site: int
    ) -> None:
        """Appends an event."""
        self.allocates.append(allocates)
        self.addresses.append(address)
        self.sizes.append(size)
        self.streams.append(stream)
        self.hints.append(hint)
        self.sites.append(site)

    def state(self, assumption: str) -> None:
        """Adds an assumption."""
        self.assumptions.append(assumption)


@dataclass(slots=True)
class Lifetimes:
    """Requests as pairs of allocation and free: a row a request, in order of allocation.

    Attributes:
        size: Bytes.
        born: Index of the event; negative for a block that was live before the first one.
        freed: Index of the event, or -1 when there was none.
        stream: Ordinal.
        site: Index into the history's names, or -1.
        kept: True for each event that counts.
    """

    size: Int64s
    born: Int64s
    freed: Int64s
    stream: Int64s
    site: Int64s
    kept: list[bool]

    @property
    def before(self) -> int:
        """The number of requests that were live before the first event."""
        return int(np.count_nonzero(self.born < 0))


def pair(history: History) -> Lifetimes:
    """Finds the free of each allocation, and reports oddities in words.

    A free of an address that no event allocated is of something that was live before the first
    event: the recording began later than the program, or its head was overwritten.
    """
    initial = _live_before(history)
    sizes = [block.size for block in initial]
    born = [row - len(initial) for row in range(len(initial))]
    freed = [-1] * len(initial)
    streams = [block.stream for block in initial]
    sites = [block.site for block in initial]
    if initial:
        total = _core.format_bytes(min(sum(sizes), LARGEST))
        history.state(
            f"{len(initial):,} requests of {total} were live before the first event; they are put "
            "in front of it, by address"
        )
    live = {block.address: row for row, block in enumerate(initial)}
    kept = [True] * len(history)
    twice = overlapping = empty = 0
    for event, (allocates, address, size) in enumerate(
        zip(history.allocates, history.addresses, history.sizes, strict=True)
    ):
        if not allocates:
            row = live.pop(address, -1)
            if row < 0:
                kept[event] = False
                twice += 1
            else:
                freed[row] = event
            continue
        if size == 0:
            kept[event] = False
            empty += 1
            continue
        row = live.get(address, -1)
        if row >= 0:
            # Its free is missing. It must have come before this, and takes no tick of its own.
            freed[row] = event
            overlapping += 1
        live[address] = len(sizes)
        sizes.append(size)
        born.append(event)
        freed.append(-1)
        streams.append(history.streams[event])
        sites.append(history.sites[event])
    _state(history, twice, "{} of an address that is free already: ignored", "free", "frees")
    _state(
        history,
        overlapping,
        "{} of an address that is live: the earlier request counts as freed just before",
        "allocation",
        "allocations",
    )
    _state(history, empty, "{} of no bytes: ignored", "allocation", "allocations")
    return Lifetimes(
        size=np.array(sizes, np.int64),
        born=np.array(born, np.int64),
        freed=np.array(freed, np.int64),
        stream=_ordinals(streams),
        site=np.array(sites, np.int64),
        kept=kept,
    )


def repeat(
    history: History, lifetimes: Lifetimes, begin: int, end: int, repetitions: int
) -> list[int]:
    """Repeats the only iteration, `[begin, end)`, and drops what comes after it.

    Blocks that are live at its end must be freed in the next iteration, or memory would grow. If
    the iteration frees a block of the same size and stream that it did not allocate, this is the
    predecessor, which the first repetition lacks. The rest is freed as the next one starts, as by
    `zero_grad`.

    Returns:
        The boundaries of the iterations.
    """
    born, freed = lifetimes.born, lifetimes.freed
    survivors = np.flatnonzero((born >= begin) & (born < end) & ((freed < 0) | (freed >= end)))
    foreign = np.flatnonzero((born < begin) & (freed >= begin) & (freed < end))
    foreign = foreign[np.argsort(freed[foreign], kind="stable")]
    # By the event that frees an older block: the survivor that the next repetition frees there.
    successor: dict[int, int] = {}
    once: set[int] = set()
    waiting = _Successors(lifetimes, survivors)
    for row in foreign.tolist():
        event = int(freed[row])
        if history.allocates[event]:
            continue
        found = waiting.take(row, event)
        if found is None:
            once.add(event)
        else:
            successor[event] = found
    rest = waiting.rest()
    result = _Repetition(history)
    result.copy(range(begin), 0)
    boundaries = [begin]
    for repetition in range(repetitions):
        if repetition > 0:
            for row in rest:
                result.free(int(born[row]), repetition - 1, Hint.OTHER)
        for event in range(begin, end):
            if event in successor:
                if repetition > 0:
                    result.free(int(born[successor[event]]), repetition - 1, Hint.NONE)
            elif repetition == 0 or (lifetimes.kept[event] and event not in once):
                result.copy((event,), repetition)
        boundaries.append(len(result.new))
    for name in ("allocates", "addresses", "sizes", "streams", "hints", "sites"):
        setattr(history, name, getattr(result.new, name))
    history.state(_described(lifetimes, repetitions, list(successor.values()), rest))
    return boundaries


def add_startup(runs: list[Run], boundaries: list[int], before: int) -> list[int]:
    """Makes the first iteration begin with the process.

    A trace of stalloc's own has start-up at the beginning of its first iteration. The same holds
    for the result, with two exceptions. If the recording begins inside an iteration, or has two
    iterations only, start-up and the partial iteration form an iteration of their own.

    Args:
        runs: The phases.
        boundaries: The events before which iterations begin, and the end of the last.
        before: The number of requests that were live before the first event.
    """
    if boundaries[0] == 0 and before == 0:
        return boundaries
    count = len(boundaries) - 1
    starts_inside = any(
        run.kind in (Hint.BACKWARD, Hint.OPTIMIZER) for run in runs if run.begin < boundaries[0]
    )
    if count == 1 or (count > _FEW and not starts_inside):
        return [0, *boundaries[1:]]
    return [0, *boundaries]


class _Successors:
    """The survivors of an iteration that take the place of older blocks.

    An older block makes way for the survivor of its size and stream that was born last before its
    free: state that is replaced is made anew first. If there is none, the first one born later
    takes its place.
    """

    def __init__(self, lifetimes: Lifetimes, survivors: Int64s) -> None:
        self._lifetimes = lifetimes
        self._waiting: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row in survivors.tolist():
            self._waiting[self._kind(row)].append(row)

    def take(self, older: int, event: int) -> int | None:
        """Finds the successor of a block that the event frees; it is given once."""
        rows = self._waiting[self._kind(older)]
        if not rows:
            return None
        born = self._lifetimes.born
        at = bisect_left(rows, event, key=lambda row: int(born[row]))
        return rows.pop(max(at - 1, 0))

    def rest(self) -> list[int]:
        """Finds the survivors that take nobody's place, in order of birth."""
        return sorted(row for rows in self._waiting.values() for row in rows)

    def _kind(self, row: int) -> tuple[int, int]:
        return int(self._lifetimes.size[row]), int(self._lifetimes.stream[row])


class _Repetition:
    """Events of a history, in a new order, with new addresses in each repetition."""

    def __init__(self, history: History) -> None:
        self._old = history
        self.new = History(history.device)

    def copy(self, events: Iterable[int], repetition: int) -> None:
        old = self._old
        for event in events:
            self.new.add(
                old.allocates[event],
                old.addresses[event] + (repetition << 64),
                old.sizes[event],
                old.streams[event],
                old.hints[event],
                old.sites[event],
            )

    def free(self, allocation: int, repetition: int, hint: Hint) -> None:
        """Frees the block of that event in that repetition."""
        old = self._old
        address, size = old.addresses[allocation] + (repetition << 64), old.sizes[allocation]
        self.new.add(False, address, size, old.streams[allocation], hint, -1)


def _described(lifetimes: Lifetimes, repetitions: int, matched: list[int], rest: list[int]) -> str:
    text = f"{REPETITION} {repetitions} times"
    if matched:
        total = _core.format_bytes(int(lifetimes.size[matched].sum()))
        text += (
            f"; {len(matched):,} requests of {total} that live on at its end take the place of "
            "older ones of their size, which it frees"
        )
    if rest:
        total = _core.format_bytes(int(lifetimes.size[rest].sum()))
        text += f"; {len(rest):,} of {total} are freed as the next one begins"
    return text


def _live_before(history: History) -> list[Block]:
    known = {block.address: block for block in history.live}
    seen: set[int] = set()
    for event, address in enumerate(history.addresses):
        if address in seen:
            continue
        seen.add(address)
        if history.allocates[event]:
            # Live at the end, perhaps, but not from the beginning.
            known.pop(address, None)
        elif address not in known or known[address].size != history.sizes[event]:
            size = history.sizes[event]
            if size > 0:
                known[address] = Block(address, size, history.streams[event], -1)
            else:
                known.pop(address, None)
    return sorted((b for b in known.values() if b.size > 0), key=lambda b: b.address)


def _ordinals(streams: Sequence[int]) -> Int64s:
    """The default stream, which is 0, stays so; others are numbered by first use."""
    ordinals = {0: 0}
    return np.array([ordinals.setdefault(s, len(ordinals)) for s in streams], np.int64)


def _state(history: History, count: int, what: str, one: str, many: str) -> None:
    if count:
        history.assumptions.append(what.format(f"{count:,} {one if count == 1 else many}"))
