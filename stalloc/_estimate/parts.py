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
    requests, spans = trace.requests, trace.phases
    rows = np.flatnonzero((requests.lower <= tick) & (requests.upper > tick))
    kinds = [PHASE_KINDS[number] for number in spans.kind.tolist()]
    result = dict.fromkeys(PARTS, 0)
    for row in rows.tolist():
        size = int(requests.size[row])
        begin, end = int(requests.phase_begin[row]), int(requests.phase_end[row])
        kept = int(requests.upper[row]) == NEVER
        if not kept and begin >= 0 and end >= 0:
            kept = int(spans.iteration[end]) > int(spans.iteration[begin]) + 1
        kind = kinds[begin] if begin >= 0 else "other"
        layer = int(requests.layer_begin[row])
        workspace = layer >= 0 and trace.layers[layer] == WORKSPACE_LAYER
        result[WORKSPACES if workspace else _part(kind, kept, begin == end)] += size
    return {name: size for name, size in result.items() if size}


def _part(kind: str, kept: bool, transient: bool) -> str:
    if transient and not kept:
        return TEMPORARIES
    if kind == "optimizer":
        return STATES
    if kind == "backward":
        return GRADIENTS
    if kept:
        return WEIGHTS
    return ACTIVATIONS if kind == "forward" else INPUTS
