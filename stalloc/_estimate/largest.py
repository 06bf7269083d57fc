"""The largest value of an option with which a run still fits.

The run is recorded at a few values. Its requests are the same at each, but for their sizes, which
follow laws of the value (`stalloc.laws`). So the requests at any larger value are known without a
run, and an allocator's model tells whether they fit. The value found is then recorded, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from stalloc import _core
from stalloc._estimate import answer
from stalloc._estimate.answer import FITS, Estimate
from stalloc._estimate.values import Unanswerable
from stalloc.recordings import changed
from stalloc.trace import Trace

_UNSEEN = -1
_LARGEST = 1 << 40
_TRIES = 6
"""Values that are recorded if the laws promised too much."""


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest value with which a run fits.

    Attributes:
        value: The value.
        estimate: What the run needs with it, recorded.
        recorded: The values that were recorded.
        proven: The share of requests whose sizes a law explains at more values than it has
            unknowns.
        predicted: Bytes that the laws said torch's allocator would hold, before it was recorded.
    """

    value: int
    estimate: Estimate = field(repr=False)
    recorded: tuple[int, ...]
    proven: float
    predicted: int


class Family:
    """The requests of one program at several values of an option.

    Args:
        traces: A trace for each value; at least two.

    Raises:
        Unanswerable: The program does not make the same requests at each value, or some of their
            sizes follow no law.
    """

    def __init__(self, traces: Mapping[int, Trace]) -> None:
        self._values = sorted(traces)
        self._base = traces[self._values[-1]]
        recorded = [traces[value] for value in self._values]
        self._check(recorded)
        sizes = np.stack([trace.requests.size for trace in recorded], axis=1)
        self._kinds, self._kind = np.unique(sizes, axis=0, return_inverse=True)
        fitted = _core.fit_laws([[value] for value in self._values], self._kinds.tolist())
        lawless = sum(proof < 0 for proof, _ in fitted)
        if lawless:
            raise Unanswerable(
                f"the sizes of {lawless} of {len(fitted)} kinds of requests follow no law of the "
                f"value; values that differ by equal steps, such as {_steps(self._values)}, may "
                "tell more"
            )
        proofs = np.asarray([proof == 0 for proof, _ in fitted])
        self.proven = float(proofs[self._kind].mean()) if len(self._kind) else 1.0

    def _check(self, recorded: list[Trace]) -> None:
        base = self._base.requests
        for value, trace in zip(self._values, recorded, strict=True):
            other = trace.requests
            if not (
                len(other) == len(base)
                and np.array_equal(other.lower, base.lower)
                and np.array_equal(other.upper, base.upper)
            ):
                raise Unanswerable(
                    f"with {value} the program makes {len(other):,} requests, with "
                    f"{self._values[-1]} {len(base):,}, or in another order: the value changes "
                    "more than sizes; choose values nearer to each other"
                )

    def at(self, value: int) -> Trace:
        """The requests at a value that is larger than all that were recorded."""
        rows = [[seen] for seen in (*self._values, value)]
        observed = [[*sizes, _UNSEEN] for sizes in self._kinds.tolist()]
        sizes = np.asarray([size for _, size in _core.fit_laws(rows, observed)], np.int64)
        return changed(self._base, requests={"size": sizes[self._kind]})


def find(
    run: Callable[[int], Estimate],
    values: tuple[int, ...],
    allocator: str,
) -> Largest:
    """Finds the largest value with which the run fits under an allocator.

    Args:
        run: Records the run with a value.
        values: Values to record first: at least two, ascending.
        allocator: One of those of an `Estimate`, except stalloc.

    Raises:
        Unanswerable: It does not fit with the smallest value, or the requests follow no laws.
    """
    estimates = {value: run(value) for value in values}
    card = estimates[values[-1]].card
    assert card is not None
    if estimates[values[0]].need(allocator).verdict != FITS:
        raise Unanswerable(f"it does not fit with {values[0]} already")
    family = Family({value: estimate.trace for value, estimate in estimates.items()})
    extras = estimates[values[-1]].extras

    def fits(value: int) -> bool:
        if value in estimates:
            return estimates[value].need(allocator).verdict == FITS
        if value < values[-1]:
            estimates[value] = run(value)
            return fits(value)
        return answer.fits(family.at(value), allocator, card, extras)

    value = _bisect(fits, values[0])
    predicted = 0
    if value not in estimates:
        predicted = answer.reserved(family.at(value), allocator)
    for _ in range(_TRIES):
        if value not in estimates:
            estimates[value] = run(value)
        if estimates[value].need(allocator).verdict == FITS:
            break
        value -= max(1, value // 100)
    return Largest(value, estimates[value], tuple(sorted(estimates)), family.proven, predicted)


def _bisect(fits: Callable[[int], bool], least: int) -> int:
    """The largest value that fits, if every smaller one does; `least` does."""
    low, step = least, least
    while low + step < _LARGEST and fits(low + step):
        low += step
        step *= 2
    high = low + step  # does not fit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _steps(values: list[int]) -> str:
    first = values[0]
    return ", ".join(str(first * n) for n in (2, 3, 4, 5))
