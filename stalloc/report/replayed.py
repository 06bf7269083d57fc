"""Drawings of real allocators, from a replay that records every address.

The extract is one iteration. Several pieces of an allocator's memory are stacked by
address, so that nothing is drawn of the address space between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stalloc import _core
from stalloc.plans import Plan
from stalloc.replaying import TORCH_EXPANDABLE, recorded_expandable, recorded_settings
from stalloc.report.drawing import Drawing, Rectangles, Segments
from stalloc.tables import Int64s
from stalloc.trace import Trace

TORCH = "torch's caching allocator"
STALLOC = "stalloc"


@dataclass(frozen=True, slots=True)
class Extract:
    """The part of a trace that is drawn.

    Attributes:
        begin: First tick.
        period: Its ticks.
        rows: The trace's requests that are live in it.
        owner: The row of the scene's requests that each of them is.
    """

    begin: int
    period: int
    rows: Int64s
    owner: Int64s


def live_rows(trace: Trace, begin: int, period: int) -> Int64s:
    """Rows of the requests that are live at some moment of the extract."""
    requests = trace.requests
    return np.flatnonzero((requests.lower < begin + period) & (requests.upper > begin))


def torch_drawing(trace: Trace, extract: Extract) -> Drawing:
    """Runs the trace up to the extract through torch's caching allocator, and draws the extract.

    The settings are the recorded ones.
    """
    placements = _core.placements_caching(trace._core, recorded_settings(trace))
    name, title = "torch", TORCH
    if recorded_expandable(trace):
        name, title = TORCH_EXPANDABLE, f"{TORCH}, expandable segments"
    return _drawing(name, title, trace, extract, placements, Segments.none())


def stalloc_drawing(trace: Trace, plan: Plan, extract: Extract) -> Drawing:
    """Draws the extract as stalloc's runtime serves it: the pool, and the fallback above."""
    placements = _core.placements_planned(trace._core, plan._core)
    return _drawing("stalloc", STALLOC, trace, extract, placements, regions(plan))


def regions(plan: Plan) -> Segments:
    """The plan's regions. Their addresses count from the pool, which lies at 0."""
    groups = plan.groups
    kept = np.flatnonzero(groups.size > 0)
    wraps = kept[groups.upper[kept] > plan.period]
    return Segments(
        address=np.concatenate([groups.offset[kept], groups.offset[wraps]]),
        size=np.concatenate([groups.size[kept], groups.size[wraps]]),
        start=np.concatenate([groups.lower[kept], np.zeros(len(wraps), np.int64)]),
        end=np.concatenate(
            [np.minimum(groups.upper[kept], plan.period), groups.upper[wraps] - plan.period]
        ),
    )


def _drawing(
    allocator: str,
    title: str,
    trace: Trace,
    extract: Extract,
    placements: _core._Columns,
    kept: Segments,
) -> Drawing:
    begin, end = extract.begin, extract.begin + extract.period
    lower, upper = placements["piece_lower"], placements["piece_upper"]
    held = np.flatnonzero((lower < end) & (upper > begin))
    address, size = placements["piece_address"][held], placements["piece_size"][held]
    stack = _Stack(address, size)
    segments = Segments(
        address=stack.place(address),
        size=size,
        start=np.maximum(lower[held], begin) - begin,
        end=np.minimum(upper[held], end) - begin,
    )
    where = placements["address"][extract.rows]
    placed = where >= 0
    rows = extract.rows[placed]
    rectangles = Rectangles(
        request=extract.owner[placed],
        address=stack.place(where[placed]),
        start=np.maximum(trace.requests.lower[rows], begin) - begin,
        end=np.minimum(trace.requests.upper[rows], end) - begin,
    )
    return Drawing(allocator, title, rectangles, segments, kept)


class _Stack:
    """Addresses with nothing between the stretches that are in use."""

    def __init__(self, address: Int64s, size: Int64s) -> None:
        order = np.argsort(address, kind="stable")
        begins = address[order]
        ends = np.maximum.accumulate(begins + size[order]) if len(order) else begins
        first = np.ones(len(order), np.bool_)
        first[1:] = begins[1:] > ends[:-1]
        last = np.append(first[1:], True)[: len(order)]
        self._begin: Int64s = begins[first]
        lengths = ends[last] - self._begin
        self._base: Int64s = np.cumsum(lengths) - lengths

    def place(self, address: Int64s) -> Int64s:
        stretch = np.searchsorted(self._begin, address, side="right") - 1
        placed: Int64s = address - self._begin[stretch] + self._base[stretch]
        return placed
