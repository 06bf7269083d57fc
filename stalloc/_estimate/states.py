"""Means that save weights, gradients and optimizer states: the recorded requests are changed.

A request belongs to a part by when it is made and freed (`stalloc._estimate.parts`). The sizes of
a part are multiplied, and nothing else changes. So temporaries that a means adds are missing, but
for the blocks that sharded weights are gathered into.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stalloc._estimate.parts import GRADIENTS, PARTS, STATES, TEMPORARIES, WEIGHTS, parts_of
from stalloc.recordings import changed
from stalloc.tables import PHASE_KINDS
from stalloc.trace import Trace

_BLOCK_OF_8_BITS = 256
"""Numbers of 8 bits that share a scale of 32, in bitsandbytes and torchao."""


@dataclass(frozen=True, slots=True)
class States:
    """A way to keep weights, gradients and states.

    Attributes:
        name: The means; empty for as they are.
        factors: What the bytes of a part are multiplied by, by its name.
        temporaries: What the bytes of the optimizer's temporaries are multiplied by.
        gpus: The processes that share the parts.
        by_bus: Bytes that cross between GPU and host in an iteration, for each byte of a gradient.
        by_network: Bytes that a GPU sends to others in an iteration, for each byte of a gradient.
        gathered: How often a block is whole at once; what lies outside of blocks once less.
        buckets: How often gradients are copied to be reduced.
    """

    name: str = ""
    factors: tuple[tuple[str, float], ...] = ()
    temporaries: float = 1.0
    gpus: int = 1
    by_bus: float = 0.0
    by_network: float = 0.0
    gathered: int = 0
    buckets: int = 0

    def changed(self, trace: Trace) -> Trace:
        """The requests of a run that keeps them so."""
        if not self.factors:
            return trace
        factors = dict(self.factors)
        parts = parts_of(trace)
        factor = np.asarray([factors.get(part, 1.0) for part in PARTS])[parts]
        kinds = np.append(trace.phases.kind, -1)  # -1: in no phase
        in_step = kinds[trace.requests.phase_begin] == PHASE_KINDS.index("optimizer")
        factor[in_step & (parts == PARTS.index(TEMPORARIES))] = self.temporaries
        sizes = np.ceil(trace.requests.size * factor).astype(np.int64)
        return changed(trace, requests={"size": np.maximum(sizes, 1)})


AS_THEY_ARE = States()
IN_16_BITS = States("states in bfloat16", ((STATES, 0.5),))
IN_8_BITS = States("states in 8 bits", ((STATES, 0.25 + 1 / _BLOCK_OF_8_BITS),))
# The gradients cross to the host, and the new weights come back.
ON_HOST = States("states and optimizer on the host", ((STATES, 0.0),), temporaries=0.0, by_bus=2.0)


def sharded_states(gpus: int) -> States:
    """States of 1/N each: gradients are reduced in buckets, new weights gathered."""
    return States(
        f"states sharded over {gpus} GPUs",
        ((STATES, 1 / gpus),),
        temporaries=1 / gpus,
        gpus=gpus,
        by_network=2 * (1 - 1 / gpus),
        buckets=1,
    )


def fully_sharded(gpus: int) -> States:
    """Weights, gradients and states of 1/N each: weights are gathered in both passes.

    FSDP2 has a block whole five times, on streams that share no memory: in the buffers that its
    weights and the next block's are gathered into, in the weights that are copied from them, in its
    gradients, and in the buffer that these are scattered from. The rest of the model has no next.
    """
    return States(
        f"all sharded over {gpus} GPUs",
        tuple((part, 1 / gpus) for part in (WEIGHTS, GRADIENTS, STATES)),
        temporaries=1 / gpus,
        gpus=gpus,
        by_network=3 * (1 - 1 / gpus),
        gathered=5,
    )
