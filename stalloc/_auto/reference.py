"""Chooses the iterations that a plan shows: the last one of a recording, if it is a usual one.

The last recorded iteration may end an epoch. The batch that the loop makes in it, for the next
iteration, is smaller, and no later iteration of the epoch makes its like. A plan that shows it
lacks requests of every other iteration:

    iteration   2        3        4        5          the batch that is made for
    batch for   3: 1500  4: 1500  5: 1500  6: 500     the next iteration, with its samples

So such an iteration is left out if the two before it make the same requests, and it makes hardly
any other. If those differ, too, sizes change in every iteration, and the last one is as usual as
any other. One that makes more stays: it may be the only one that trains a second model, or that
computes a penalty, and needs the most memory.

Where a step of the optimizer is skipped, as a gradient scaler does after an overflow, an iteration
makes the requests of two. Its gradients go in the middle, so none of the recorded lifetimes of
gradients would be the usual one:

    iteration   1                 2                                   3
    makes       | batch | step |  | batch | no step | batch | step |  | batch | step |

Such an iteration is left out, too, unless it is the last one: the loop may accumulate more
microbatches from then on.
"""

from __future__ import annotations

from collections import Counter

from stalloc import _core
from stalloc._auto.drift import MOST_MISSED
from stalloc._auto.joining import columns_of, without_first_iterations
from stalloc.plans import DEFAULT_ALIGNMENT
from stalloc.trace import Trace

_LEAST = 4
"""Iterations: a warm-up, two that are alike, and the last one."""

_DIFFERENT = 0.01
"""Share of requests, and of bytes, that iterations that are alike do not have in common."""


def with_usual_end(trace: Trace) -> Trace:
    """The trace, without its last complete iteration if that is unlike the ones before it.

    What the iteration left out has requested stays, as the incomplete rest of the trace.
    """
    if len(trace.iterations) <= _LEAST:
        return trace
    before, usual, last = (_sizes(trace, number) for number in (-4, -3, -2))
    are_alike = max(_lacking(usual, before), _lacking(before, usual)) <= _DIFFERENT
    is_less = _lacking(last, usual) > MOST_MISSED >= _lacking(usual, last)
    if not are_alike or not is_less:
        return trace
    return _without_last(trace, 1)


def without_repeated(trace: Trace) -> Trace:
    """The trace, without the iterations up to one that makes what others make several times.

    If only one comes after that, those before it are left.
    """
    count = len(trace.iterations) - 1
    if count < _LEAST:
        return trace
    made = [_sizes(trace, number) for number in range(1, count)]  # the first one is a warm-up
    usual = min(made, key=Counter.total)
    repeated = [number for number, sizes in enumerate(made, 1) if _repeats(sizes, usual)]
    if not repeated or repeated[-1] == count - 1:
        return trace
    if repeated[-1] < count - 2:
        return without_first_iterations(trace, repeated[-1] + 1, trace.info)
    return _without_last(trace, count - repeated[0]) if repeated[0] > 2 else trace


def _without_last(trace: Trace, number: int) -> Trace:
    """The trace, with the requests of so many iterations as its incomplete rest."""
    return Trace(
        _core.make_trace(
            info=dict(trace.info),
            end=trace.end,
            iterations=list(trace.iterations[:-number]),
            layers=trace.layers,
            phases=columns_of(trace.phases),
            requests=columns_of(trace.requests),
            extent_names=trace.extent_names,
            extent_phases=trace.extents.phase.tolist(),
            extents=trace.extents.values.tolist(),
        )
    )


def _repeats(sizes: Counter[int], usual: Counter[int]) -> bool:
    """True if these are the usual ones several times; the optimizer makes its own only once."""
    times = round(sizes.total() / max(1, usual.total()))
    if times < 2:
        return False
    several = Counter({size: times * count for size, count in usual.items()})
    return _lacking(several, sizes) <= _DIFFERENT and _lacking(sizes, several) <= MOST_MISSED


def _sizes(trace: Trace, number: int) -> Counter[int]:
    """The sizes of the requests that an iteration makes, and how often it makes each."""
    lower = trace.requests.lower
    made = (lower >= trace.iterations[number]) & (lower < trace.iterations[number + 1])
    return Counter((-(-trace.requests.size[made] // DEFAULT_ALIGNMENT)).tolist())


def _lacking(sizes: Counter[int], others: Counter[int]) -> float:
    """The share of the others' requests, or of their bytes if it is more, without their like."""
    lacking = others - sizes
    total = others.total()
    of_requests = lacking.total() / total if total else 0.0
    of_bytes = _bytes(lacking) / _bytes(others) if _bytes(others) else 0.0
    return max(of_requests, of_bytes)


def _bytes(sizes: Counter[int]) -> int:
    return sum(size * count for size, count in sizes.items())
