"""Means that save weights, gradients and optimizer states: the recorded requests are changed.

A request belongs to a part by when it is made and freed (`stalloc._estimate.parts`). The sizes of
a part are multiplied, and nothing else changes. So temporaries that a means adds are missing, but
for the blocks that sharded weights are gathered into.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stalloc._estimate.parts import GRADIENTS, PARTS, STATES, WEIGHTS, parts_of
from stalloc.recordings import changed
from stalloc.trace import Trace

_BLOCK_OF_8_BITS = 256
"""Numbers of 8 bits that share a scale of 32, in bitsandbytes and torchao."""


@dataclass(frozen=True, slots=True)
class States:
    """How weights, gradients and states are kept.

    Attributes:
        name: The means; empty for as they are.
        factors: What the bytes of a part are multiplied by, by its name.
        gpus: The processes that share the parts.
        by_bus: Bytes that cross between GPU and host in an iteration, for each byte of a weight.
        by_network: Bytes that a GPU sends to others in an iteration, for each byte of a weight.
        gathered: Blocks whose weights are whole at once.
    """

    name: str = ""
    factors: tuple[tuple[str, float], ...] = ()
    gpus: int = 1
    by_bus: float = 0.0
    by_network: float = 0.0
    gathered: int = 0

    def changed(self, trace: Trace) -> Trace:
        """The requests of a run that keeps them so."""
        if not self.factors:
            return trace
        factors = dict(self.factors)
        column = np.asarray([factors.get(part, 1.0) for part in PARTS])
        sizes = np.ceil(trace.requests.size * column[parts_of(trace)]).astype(np.int64)
        return changed(
            trace,
            info=trace.info,
            end=trace.end,
            iterations=trace.iterations,
            phases={},
            requests={"size": np.maximum(sizes, 1)},
        )


AS_THEY_ARE = States()
IN_16_BITS = States("states in bfloat16", ((STATES, 0.5),))
IN_8_BITS = States("states in 8 bits", ((STATES, 0.25 + 1 / _BLOCK_OF_8_BITS),))
# The gradients cross to the host, and the new weights come back.
ON_HOST = States("states and optimizer on the host", ((STATES, 0.0),), by_bus=2.0)


def sharded_states(gpus: int) -> States:
    """States of 1/N each: gradients are scattered, new weights gathered."""
    sent = 2 * (1 - 1 / gpus)
    return States(f"states sharded over {gpus} GPUs", ((STATES, 1 / gpus),), gpus, by_network=sent)


def fully_sharded(gpus: int) -> States:
    """Weights, gradients and states of 1/N each: weights are gathered in both passes."""
    factors = tuple((part, 1 / gpus) for part in (WEIGHTS, GRADIENTS, STATES))
    sent = 3 * (1 - 1 / gpus)
    return States(f"all sharded over {gpus} GPUs", factors, gpus, by_network=sent, gathered=2)
