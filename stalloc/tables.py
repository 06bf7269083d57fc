"""The tables in traces and plans: a NumPy array a column, all of the same length.

The arrays are read-only views of the rows themselves. Times are ticks: every allocation and every
free takes one. Intervals are half-open. An index of -1 means none.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stalloc import _core

Int64s: TypeAlias = npt.NDArray[np.int64]
Int32s: TypeAlias = npt.NDArray[np.int32]
Kinds: TypeAlias = npt.NDArray[np.uint8]
Flags: TypeAlias = npt.NDArray[np.bool_]

NEVER: int = _core.NEVER
"""The `upper` of a request that was not freed while the profiler looked."""

PHASE_KINDS: tuple[str, ...] = _core.PHASE_KINDS
"""Names of the numbers in a column `kind`."""

LIFETIME_CLASSES: tuple[str, ...] = _core.LIFETIME_CLASSES
"""Names of the numbers in a column `lifetime`."""


@dataclass(frozen=True, slots=True)
class _Table:
    """Columns of one length, which is that of the table."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))


@dataclass(frozen=True, slots=True)
class Requests(_Table):
    """Every allocation of a trace, in order of `lower`.

    Attributes:
        size: Bytes, as asked.
        lower: Tick of the allocation.
        upper: Tick of the free, or `NEVER`.
        phase_begin: Phase of the allocation: row of the trace's phases.
        phase_end: Phase of the free.
        layer_begin: Index into the trace's layers.
        layer_end: Index into the trace's layers.
        stream: Ordinal of the stream.
        thread: Ordinal of the thread; 0 is the one that trains.
        dynamic: True if a module that is tagged as dynamic made it.
    """

    size: Int64s
    lower: Int64s
    upper: Int64s
    phase_begin: Int32s
    phase_end: Int32s
    layer_begin: Int32s
    layer_end: Int32s
    stream: Int32s
    thread: Int32s
    dynamic: Flags


@dataclass(frozen=True, slots=True)
class Phases(_Table):
    """Phases of a profile or a plan, in order.

    Attributes:
        kind: Index into `PHASE_KINDS`.
        microbatch: Its number, or -1.
        chunk: The model chunk under pipeline parallelism, else 0.
        occurrence: Counts phases alike within the iteration.
        begin: Tick.
        end: Tick.
    """

    kind: Kinds
    microbatch: Int32s
    chunk: Int32s
    occurrence: Int32s
    begin: Int64s
    end: Int64s

    def name(self, row: int) -> str:
        """The phase in a few characters, as in `forward 2`."""
        name = PHASE_KINDS[int(self.kind[row])]
        if self.microbatch[row] >= 0:
            name += f" {self.microbatch[row]}"
        if self.chunk[row] > 0:
            name += f" chunk {self.chunk[row]}"
        if self.occurrence[row] > 0:
            name += f" #{self.occurrence[row] + 1}"
        return name


@dataclass(frozen=True, slots=True)
class PhaseSpans(Phases):
    """Spans of the phases of a trace; a phase that is interrupted has several.

    Attributes:
        iteration: The one it belongs to.
    """

    iteration: Int32s


@dataclass(frozen=True, slots=True)
class Extents(_Table):
    """The sizes of the dimensions of the microbatches' inputs, one row for each forward.

    Attributes:
        phase: The forward: row of the trace's phases.
        values: A column for each of the trace's `extent_names`; -1 where an input is absent.
    """

    phase: Int32s
    values: Int64s


@dataclass(frozen=True, slots=True)
class Orders(_Table):
    """The order that a program gives its streams, in order of `tick`.

    Only profiles of GPUs have it.

    Attributes:
        tick: Work that the stream gets from this tick on
        stream: (ordinal of the stream)
        after: begins after all work that this other stream had got
        upto: before this tick.
    """

    tick: Int64s
    stream: Int32s
    after: Int32s
    upto: Int64s


@dataclass(frozen=True, slots=True)
class LayerSpans(_Table):
    """Calls of modules, in order of `begin`; they nest.

    Attributes:
        layer: Index into the trace's layers.
        phase: Row of the trace's phases.
        begin: Tick.
        end: Tick.
        recompute: True for a forward inside a backward pass.
    """

    layer: Int32s
    phase: Int32s
    begin: Int64s
    end: Int64s
    recompute: Flags


@dataclass(frozen=True, slots=True)
class ProfiledRequests(_Table):
    """The requests of the reference iteration, in order of `lower`.

    Attributes:
        request: Row of the trace's requests.
        size: Bytes, as asked.
        lower: Tick of the allocation, since the iteration began.
        upper: Tick of the free; past the period it lies in the next iteration.
        phase_begin: Row of the profile's phases.
        phase_end: Row of the profile's phases.
        layer_begin: Index into the trace's layers.
        layer_end: Index into the trace's layers.
        stream: Ordinal of the stream.
        thread: Ordinal of the thread; 0 is the one that trains.
        lifetime: Index into `LIFETIME_CLASSES`.
        dynamic: True if its size or presence differs between iterations, or it is tagged.
        plannable: True if it gets an address in a plan.
    """

    request: Int32s
    size: Int64s
    lower: Int64s
    upper: Int64s
    phase_begin: Int32s
    phase_end: Int32s
    layer_begin: Int32s
    layer_end: Int32s
    stream: Int32s
    thread: Int32s
    lifetime: Kinds
    dynamic: Flags
    plannable: Flags


@dataclass(frozen=True, slots=True)
class Decisions(_Table):
    """A plan's addresses, by phase, then by `lower`.

    Attributes:
        size: Bytes, as asked.
        offset: Bytes from the start of the pool.
        lower: Tick of the allocation, since the iteration began.
        upper: Tick of the free; past the period it lies in the next iteration.
        phase: Phase of the allocation: row of the plan's phases.
        phase_end: Phase of the free; -1 in an unplanned phase.
        stream: Ordinal of the stream.
        law: Size law: row of the plan's laws; -1 for a size that never changes.
    """

    size: Int64s
    offset: Int64s
    lower: Int64s
    upper: Int64s
    phase: Int32s
    phase_end: Int32s
    stream: Int32s
    law: Int32s


@dataclass(frozen=True, slots=True)
class Sites(_Table):
    """Sites of dynamic requests that live equally long, in order.

    Attributes:
        phase: Row of the profile's phases.
        phase_end: Phase of the last free: the same.
        stream: Ordinal of the stream.
        lower: First tick of the window.
        upper: Its end; past the period it lies in the next iteration.
        requests: The most requests of an iteration.
        bytes: The most bytes of an iteration, not all live at once.
    """

    phase: Int32s
    phase_end: Int32s
    stream: Int32s
    lower: Int64s
    upper: Int64s
    requests: Int64s
    bytes: Int64s


@dataclass(frozen=True, slots=True)
class Groups(_Table):
    """A plan's groups of dynamic requests: by phase, `after` and `stream`.

    The first group of a site takes the requests that fit no context.

    Attributes:
        phase: Phase of the allocations: row of the plan's phases.
        after: Row of the decision before the site; -1 at the phase's beginning.
        size: Bytes of the region; 0 for none.
        offset: Bytes from the start of the pool to the region.
        lower: First tick of the window.
        upper: Its end; past the period it lies in the next iteration.
        phase_end: Phase of the last free; -1 in an unplanned phase.
        stream: Ordinal of the stream.
        law: Size law: row of the plan's laws; -1 for a size that never changes.
        host: Row of the group whose region it uses; -1 for its own region.
    """

    phase: Int32s
    after: Int32s
    size: Int64s
    offset: Int64s
    lower: Int64s
    upper: Int64s
    phase_end: Int32s
    stream: Int32s
    law: Int32s
    host: Int32s


@dataclass(frozen=True, slots=True)
class Startup(_Table):
    """Requests that only start-up makes: by phase, `after` and `lower`.

    Attributes:
        phase: Row of the plan's phases; start-up is the first of the iteration.
        after: Row of the decision before it; -1 at the phase's beginning.
        size: Bytes, as asked.
        offset: Bytes from the start of the pool, past its end in the resident region; -1 for
            no address.
        lower: Tick of the allocation, since the run began.
        upper: Tick of the free; `NEVER` for permanent requests.
        stream: Ordinal of the stream.
        law: Size law: row of the plan's laws; -1 for a size that never changes.
    """

    phase: Int32s
    after: Int32s
    size: Int64s
    offset: Int64s
    lower: Int64s
    upper: Int64s
    stream: Int32s
    law: Int32s


@dataclass(frozen=True, slots=True)
class Slots(_Table):
    """Classes of interchangeable slots; those of a class lie side by side.

    Attributes:
        size: Bytes of each slot.
        offset: Bytes from the start of the pool to the first.
        count: Number of slots.
        stream: Ordinal of the stream.
    """

    size: Int64s
    offset: Int64s
    count: Int32s
    stream: Int32s


@dataclass(frozen=True, slots=True)
class SlotDecisions(_Table):
    """Decisions that take any free slot of a class, alone or together with others of a box.

    The offset of such a decision is the one that it has if the slot is the first.

    Attributes:
        row: Row of the plan's decisions.
        slots: Row of the plan's slots.
        over: Ticks that the request lives beyond its `upper`; 0 in a box.
        box: Number of the box, or -1. The requests of a box share a slot while any of them is live.
    """

    row: Int32s
    slots: Int32s
    over: Int64s
    box: Int32s


@dataclass(frozen=True, slots=True)
class Turns(_Table):
    """Decisions that take turns between two places, since each outlives the next iteration's.

    In a layout such a decision has its own offset from its allocation to the end of the iteration.
    The block of the iteration before has the other offset until it is freed. The next layout has
    them the other way round.

    Attributes:
        row: Row of the plan's decisions.
        over: Ticks that the request lives beyond its `upper`.
        offset: Bytes from the start of the pool to the block of the iteration before.
        size: Bytes of that block. A larger one needs another layout.
        first: Bytes from the start of the pool to the first place.
        second: The same of the second place.
    """

    row: Int32s
    over: Int64s
    offset: Int64s
    size: Int64s
    first: Int64s
    second: Int64s


@dataclass(frozen=True, slots=True)
class Reusable(_Table):
    """Addresses that a plan leaves idle through the window of a group, by group and ascending.

    Attributes:
        group: Row of the plan's groups.
        begin: Bytes from the start of the pool.
        end: One past the last byte.
    """

    group: Int32s
    begin: Int64s
    end: Int64s


LAW_PROOFS: tuple[str, ...] = ("proven", "unproven", "unexplained")
"""Names of the numbers in a column `proof`."""

LAW_SOURCES: tuple[str, ...] = ("own", "upcoming", "returning")
"""Names of the numbers in a column `source`."""


@dataclass(frozen=True, slots=True)
class Laws(_Table):
    """The size laws of a plan: (constant + terms) / divisor, rounded up to a multiple of step.

    Attributes:
        constant: Bytes; the largest size seen where the law is unexplained.
        divisor: Divisor of the sum.
        step: Bytes that the size is rounded up to.
        proof: Index into `LAW_PROOFS`.
        source: Index into `LAW_SOURCES`: the microbatch whose extents the law takes.
    """

    constant: Int64s
    divisor: Int64s
    step: Int64s
    proof: Kinds
    source: Kinds


@dataclass(frozen=True, slots=True)
class LawTerms(_Table):
    """The terms of size laws, by law: a coefficient times up to three extents.

    Attributes:
        law: Row of the plan's laws.
        coefficient: Bytes, before the division.
        first: Index into the plan's extent names.
        second: The same; -1 for none.
        third: The same; -1 for none.
    """

    law: Int32s
    coefficient: Int64s
    first: Int32s
    second: Int32s
    third: Int32s
