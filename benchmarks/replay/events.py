"""Traces as plain sequences of events, for allocators that know nothing of phases."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import stalloc
from stalloc.tables import NEVER

FREED = -1


def events_of(trace: stalloc.Trace) -> npt.NDArray[np.int64]:
    """Allocations and frees in their order, [events, 3]: request, size or FREED, stream.

    What is never freed in the trace is not freed here either.
    """
    requests = trace.requests
    number = np.arange(len(requests), dtype=np.int64)
    freed = requests.upper != NEVER
    ticks = np.concatenate([requests.lower, requests.upper[freed]])
    allocations = np.stack([number, requests.size, requests.stream.astype(np.int64)], axis=1)
    frees = np.stack(
        [number[freed], np.full(int(freed.sum()), FREED), requests.stream[freed]], axis=1
    )
    # Frees come before an allocation at the same tick: lifetimes are half-open.
    order = np.lexsort((np.r_[np.ones(len(number)), np.zeros(int(freed.sum()))], ticks))
    return np.ascontiguousarray(np.concatenate([allocations, frees])[order], dtype=np.int64)
