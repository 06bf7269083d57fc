"""Traces as plain sequences of events, for programs that read neither JSON nor tables.

Three integers an event: the request's number, its size or FREED, its stream. Negative numbers are
no requests but what the training loop does; events.h lists them, too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import stalloc
from stalloc.tables import NEVER, PHASE_KINDS

FREED = -1
ITERATION_ENDS = -1
PHASE_BEGINS = -2
DYNAMIC_BEGINS = -3
DYNAMIC_ENDS = -4

Events = npt.NDArray[np.int64]

_KINDS = 256  # a chunk is above the kind of a phase


def events_of(trace: stalloc.Trace) -> Events:
    """Allocations and frees in their order with what the loop does between, [events, 3].

    A request that is never freed in the trace is not freed here either.

    Raises:
        ValueError: The trace has evaluation or another phase that repeats with no iteration.
    """
    requests = trace.requests
    number = np.arange(len(requests), dtype=np.int64)
    stream = requests.stream.astype(np.int64)
    freed = requests.upper != NEVER
    allocations = np.stack([number, requests.size, stream], axis=1)
    frees = np.stack([number[freed], np.full(int(freed.sum()), FREED), stream[freed]], axis=1)
    loop, ticks = _loop(trace)
    enters, leaves = _dynamic(requests.dynamic, requests.phase_begin)
    parts = (
        (loop, ticks),
        (frees, requests.upper[freed]),  # before an allocation: lifetimes are half-open
        (_markers(DYNAMIC_BEGINS, len(enters)), requests.lower[enters]),
        (allocations, requests.lower),
        (_markers(DYNAMIC_ENDS, len(leaves)), requests.lower[leaves]),
    )
    rank = np.concatenate([np.full(len(part), i) for i, (part, _) in enumerate(parts)])
    order = np.lexsort((rank, np.concatenate([at for _, at in parts])))  # stable
    return np.ascontiguousarray(np.concatenate([part for part, _ in parts])[order])


def _markers(kind: int, count: int) -> Events:
    return np.tile(np.array([kind, 0, 0], np.int64), (count, 1))


def _loop(trace: stalloc.Trace) -> tuple[Events, npt.NDArray[np.int64]]:
    """Ends of iterations and beginnings of phases, and their ticks, in order."""
    spans = trace.phases
    if np.any(spans.kind[spans.iteration > 0] == PHASE_KINDS.index("unplanned")):
        raise ValueError("replay of traces with evaluation is up to `stalloc replay`")
    rows = [
        # At the same tick, the phase of the ending iteration comes first.
        (int(tick), 2 * iteration + 1, (ITERATION_ENDS, 0, 0))
        for iteration, tick in enumerate(trace.iterations[1:])
    ] + [
        (
            int(spans.begin[row]),
            2 * int(spans.iteration[row]),
            (
                PHASE_BEGINS,
                int(spans.kind[row]) + _KINDS * int(spans.chunk[row]),
                int(spans.microbatch[row]),
            ),
        )
        for row in range(len(spans))
        if spans.kind[row] != PHASE_KINDS.index("unplanned")
    ]
    rows.sort(key=lambda row: row[:2])
    return (
        np.array([event for _, _, event in rows], np.int64).reshape(-1, 3),
        np.array([tick for tick, _, _ in rows], np.int64),
    )


def _dynamic(
    dynamic: npt.NDArray[np.bool_], phase: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The first and the last of each run of dynamic requests of a phase, as rows."""
    if not len(dynamic):
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    changes = np.flatnonzero((dynamic[1:] != dynamic[:-1]) | (phase[1:] != phase[:-1])) + 1
    first = np.concatenate([[0], changes])
    last = np.concatenate([changes, [len(dynamic)]]) - 1
    return first[dynamic[first]], last[dynamic[first]]
