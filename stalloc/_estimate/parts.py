"""The parts of the load at its peak, told by when each request is made and freed.

    made in             freed in                   part
    before training     never                      weights
    forward             the backward               activations
    backward            the optimizer's step, ...  gradients
    optimizer           never                      optimizer states
    anywhere            the same phase             temporaries
    between iterations  the same iteration         inputs

The names are those of ordinary training; state that a loop keeps otherwise counts where it is made.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stalloc._estimate.gpu import WORKSPACE_LAYER
from stalloc.tables import NEVER, PHASE_KINDS
from stalloc.trace import Trace

WEIGHTS = "weights and buffers"
GRADIENTS = "gradients"
STATES = "optimizer states"
ACTIVATIONS = "activations"
TEMPORARIES = "temporaries"
INPUTS = "inputs"
WORKSPACES = "cuBLAS workspaces"

PARTS = (WEIGHTS, GRADIENTS, STATES, ACTIVATIONS, TEMPORARIES, INPUTS, WORKSPACES)
"""In the order of the output."""


def parts_at(trace: Trace, tick: int) -> dict[str, int]:
    """Bytes that are live at a tick, by part.

    Args:
        trace: The requests, from the start of the program on.
        tick: The tick.
    """
    requests = trace.requests
    live = (requests.lower <= tick) & (requests.upper > tick)
    sizes = np.bincount(parts_of(trace)[live], requests.size[live], len(PARTS))
    return {name: int(size) for name, size in zip(PARTS, sizes, strict=True) if size}


def parts_of(trace: Trace) -> npt.NDArray[np.int64]:
    """The part of each request, as an index into `PARTS`."""
    requests, spans = trace.requests, trace.phases
    begin, end = requests.phase_begin, requests.phase_end
    kinds, iterations = np.append(spans.kind, -1), np.append(spans.iteration, -1)  # -1: none
    kept = requests.upper == NEVER
    kept |= (begin >= 0) & (end >= 0) & (iterations[end] > iterations[begin] + 1)

    def made_in(kind: str) -> npt.NDArray[np.bool_]:
        made: npt.NDArray[np.bool_] = kinds[begin] == PHASE_KINDS.index(kind)
        return made

    workspaces = [i for i, name in enumerate(trace.layers) if name == WORKSPACE_LAYER]
    # The first that holds; a later one only where none before does.
    rules = (
        (WORKSPACES, np.isin(requests.layer_begin, workspaces)),
        (TEMPORARIES, (begin == end) & ~kept),
        (STATES, made_in("optimizer")),
        (GRADIENTS, made_in("backward")),
        (WEIGHTS, kept),
        (ACTIVATIONS, made_in("forward")),
    )
    return np.select(
        [rule for _, rule in rules],
        [np.int64(PARTS.index(part)) for part, _ in rules],
        np.int64(PARTS.index(INPUTS)),
    )
