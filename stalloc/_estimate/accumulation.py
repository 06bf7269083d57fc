"""The trace of a run that adds gradients up over microbatches, told from one that does not.

The last two iterations become microbatches of one. Gradients of the first one live on, and those of
the second are added to them, and freed at once:

    recorded    | forward | backward | step | forward | backward | step |
    gradients                 [---------)                 [---------)
    here                      [-------------------------------------)
                                                          [)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stalloc._estimate.parts import GRADIENTS, PARTS, parts_of
from stalloc.recordings import changed
from stalloc.tables import NEVER
from stalloc.trace import Trace

Ticks = npt.NDArray[np.float64]

_SOON = 0.5  # ticks


def accumulated(trace: Trace) -> Trace | None:
    """The requests with the gradients of two microbatches; None if the iterations' differ.

    Args:
        trace: The requests of smaller batches, with an optimizer's step after each.
    """
    requests = trace.requests
    begins = np.asarray(trace.iterations)
    gradients = np.flatnonzero(parts_of(trace) == PARTS.index(GRADIENTS))
    iteration = np.searchsorted(begins, requests.lower[gradients], side="right") - 1
    first, second = (gradients[iteration == len(begins) - n] for n in (3, 2))
    if not np.array_equal(requests.size[first], requests.size[second]):
        return None
    upper = np.where(requests.upper == NEVER, np.inf, requests.upper)
    upper[first] = upper[second]
    upper[second] = requests.lower[second] + _SOON
    return _numbered_anew(trace, upper)


def _numbered_anew(trace: Trace, upper: Ticks) -> Trace:
    """The trace with other frees, between whole ticks or at none."""
    requests, phases = trace.requests, trace.phases
    told = (requests.lower, upper[np.isfinite(upper)], phases.begin, phases.end, trace.iterations)
    ticks = np.unique(np.concatenate([*told, [trace.end]]))

    def number(tick: npt.ArrayLike) -> npt.NDArray[np.int64]:
        return np.searchsorted(ticks, tick).astype(np.int64)

    return changed(
        trace,
        end=int(number(trace.end)),
        iterations=number(trace.iterations).tolist(),
        phases={"begin": number(phases.begin), "end": number(phases.end)},
        requests={
            "lower": number(requests.lower),
            "upper": np.where(np.isfinite(upper), number(upper), NEVER),
        },
    )
