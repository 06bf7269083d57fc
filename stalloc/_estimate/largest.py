"""The largest value of an option with which a run still fits.

The run is recorded at a few values. Its requests are the same at each, but for their sizes, which
follow laws of the value (`stalloc.laws`). So the requests at any larger value are known without a
run, and an allocator's model tells whether they fit. A few sizes may follow no law, as scratch
memory that a kernel rounds: they are taken to grow on. The scratch memory of sums, which begins at
some size, is left out of these recordings. The value found is then recorded as it runs. If it does
not fit, smaller ones are recorded until the largest is known within 1 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from stalloc import _core, _gpu_reductions
from stalloc._estimate import answer
from stalloc._estimate.answer import FITS, Estimate
from stalloc._estimate.extras import Extra
from stalloc._estimate.values import Unanswerable
from stalloc.recordings import changed
from stalloc.trace import Trace

Extras = tuple[Extra, ...]

_UNSEEN = -1
_LARGEST = 1 << 40
_LAWLESS = 0.1
"""The largest share of the requested bytes whose sizes may follow no law."""
_TRIES = 10
"""Values that are recorded at most if the laws promised too much."""


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
        self._lawless = np.asarray([proof < 0 for proof, _ in fitted], bool)
        of_kind = self._lawless[self._kind]
        if self._base.requests.size[of_kind].sum() > _LAWLESS * self._base.requests.size.sum():
            raise Unanswerable(
                f"the sizes of {self._lawless.sum()} of {len(fitted)} kinds of requests follow no "
                "law of the value; values that differ by equal steps, such as "
                f"{_steps(self._values)}, may tell more"
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
        sizes[self._lawless] = self._extrapolated(value)
        return changed(self._base, requests={"size": sizes[self._kind]})

    def _extrapolated(self, value: int) -> npt.NDArray[np.int64]:
        """Sizes without a law, which go on to grow as fast as they did at the most."""
        sizes = self._kinds[self._lawless]
        growth = (np.diff(sizes, axis=1) / np.diff(self._values)).max(axis=1)
        more = np.ceil(np.maximum(growth, 0) * (value - self._values[-1]))
        return np.asarray(sizes[:, -1] + more, np.int64)


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

    def without_sums(value: int) -> Estimate:
        with _gpu_reductions.left_out():
            return run(value)

    estimates = {value: without_sums(value) for value in values}
    card = estimates[values[-1]].card
    assert card is not None
    if estimates[values[0]].need(allocator).verdict != FITS:
        raise Unanswerable(f"it does not fit with {values[0]} already")
    family = Family({value: estimate.trace for value, estimate in estimates.items()})
    before, last = estimates[values[-2]], estimates[values[-1]]

    def fits(value: int) -> bool:
        if value in estimates:
            return estimates[value].need(allocator).verdict == FITS
        if value < values[-1]:
            estimates[value] = without_sums(value)
            return fits(value)
        steps = (value - values[-1]) / (values[-1] - values[-2])
        extras = _grown(before.extras, last.extras, steps)
        return answer.fits(family.at(value), allocator, card, extras)

    value = _bisect(fits, values[0])
    known = estimates.get(value)
    predicted = (
        known.need(allocator).reserved
        if known is not None
        else answer.reserved(family.at(value), allocator)
    )
    recorded = _record_around(run, value, values[0], allocator)
    value = max(n for n in recorded if recorded[n].need(allocator).verdict == FITS)
    seen = tuple(sorted({*estimates, *recorded}))
    return Largest(value, recorded[value], seen, family.proven, predicted)


def _record_around(
    run: Callable[[int], Estimate], value: int, least: int, allocator: str
) -> dict[int, Estimate]:
    """Records the value that the laws tell, and smaller ones if it does not fit.

    Args:
        run: Records the run with a value.
        value: At least as large as the largest that fits.
        least: The smallest to be tried, which is tried last.
        allocator: The one whose verdict counts.

    Returns:
        The estimates that were recorded, by value. At least one of them fits.

    Raises:
        Unanswerable: None fits.
    """
    recorded: dict[int, Estimate] = {}
    low, high = 0, value + 1
    for number in range(_TRIES):
        recorded[value] = _recorded(run, value)
        if recorded[value].need(allocator).verdict == FITS:
            low = value
        else:
            high = value
        if low and high - low <= max(1, low // 100):
            return recorded
        value = (low + high) // 2 if low else max(least, high - max(1, (high << number) // 100))
    if not low:
        recorded[least] = _recorded(run, least)
        if recorded[least].need(allocator).verdict != FITS:
            raise Unanswerable(f"it does not fit with {least} already")
    return recorded


def _grown(before: Extras, last: Extras, steps: float) -> Extras:
    """Extras that go on to grow as fast as in the last step."""
    highs = {extra.name: extra.high for extra in before}

    def grown(extra: Extra) -> Extra:
        step = max(0, extra.high - highs.get(extra.name, extra.high))
        return replace(extra, high=extra.high + math.ceil(step * steps))

    return tuple(grown(extra) for extra in last)


def _recorded(run: Callable[[int], Estimate], value: int) -> Estimate:
    try:
        return run(value)
    except Unanswerable as error:
        raise Unanswerable(
            f"by the laws of the sizes it fits with up to {value}, but does not run so: {error}"
        ) from error


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
