"""The planner on its own, on NumPy arrays: offsets for buffers of known lifetimes.

This module knows neither torch nor training. A buffer has a size and a lifetime, `[lower, upper)`,
in any unit of time. `plan` finds an offset for each buffer, so that no two live buffers overlap and
the highest end is as low as possible, and proves how close to optimal the result is.

    >>> solution = plan(lower=[0, 0, 4], upper=[4, 9, 9], size=[100, 50, 80])
    >>> solution.height, solution.optimal
    (150, True)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stalloc import _core
from stalloc.errors import PlanError
from stalloc.progress import Progress, shown

Int64Array = npt.NDArray[np.int64]


class Streams(str, Enum):
    """The addresses of buffers of different streams.

    Functions take the value as a string, too.
    """

    AUTO = "auto"
    """Streams share addresses where the program itself orders them, as a profile of a GPU tells.
    Nothing else waits. For traces only."""
    SEPARATE = "separate"
    """Each stream has its own addresses."""
    ORDERED = "ordered"
    """Streams share addresses. The later stream waits on the device for the earlier ones."""

    def __str__(self) -> str:
        return self.value

    @classmethod
    def _missing_(cls, value: object) -> Streams:
        raise PlanError(f'streams are "auto", "separate" or "ordered", not {value!r}')


@dataclass(frozen=True)
class Solution:
    """An offset for every buffer, and how good the layout is."""

    offsets: Int64Array
    """One offset in bytes a buffer, in the order of the input."""
    height: int
    """The highest end: how many bytes the pool needs."""
    bound: int
    """No solution is lower than this."""
    optimal: bool
    """True if no layout is lower: proven by the bound or by a complete search."""
    algorithm: str
    """The planner's name; those of several streams are joined with "+"."""
    seconds: float
    """The time that planning took."""
    waits: Int64Array
    """The waits between streams, if `streams` is "ordered". A row names a buffer and an earlier
    buffer of another stream at the same addresses. The first buffer's stream waits for all work
    that the second one's stream had been given when the second buffer was freed. With a period, the
    second buffer may belong to the period before."""

    @property
    def pool(self) -> int:
        """The same as `height`, by the name plans have for it."""
        return self.height

    @property
    def gap(self) -> float:
        """The height's distance above the bound, as a fraction of the bound."""
        return self.height / self.bound - 1.0 if self.bound > 0 else 0.0


@dataclass(frozen=True)
class Csv:
    """A planning problem as MiniMalloc's CSV files hold it."""

    ids: list[str]
    lower: Int64Array
    upper: Int64Array
    size: Int64Array
    offsets: Int64Array | None = None
    """The solution, if the file has one."""
    gaps: Int64Array | None = None
    """The argument `gaps` of `plan`, if the file has the column."""


def plan(
    lower: npt.ArrayLike,
    upper: npt.ArrayLike,
    size: npt.ArrayLike,
    *,
    alignment: int = 1,
    period: int = 0,
    stream: npt.ArrayLike | None = None,
    streams: Streams | str = Streams.SEPARATE,
    fixed: npt.ArrayLike | None = None,
    gaps: npt.ArrayLike | None = None,
    phase_begin: npt.ArrayLike | None = None,
    phase_end: npt.ArrayLike | None = None,
    capacity: int | None = None,
    algorithm: str | None = None,
    time_limit: float = 10.0,
    threads: int | None = None,
    warm_start: npt.ArrayLike | None = None,
    progress: bool | Progress = False,
) -> Solution:
    """Finds an offset for every buffer. The result has been validated. Releases the GIL.

    The same input gives the same result, unless the time limit cuts the search short.

    Args:
        lower: The tick at which each buffer begins to live; not negative.
        upper: One past the last tick; a buffer with `upper == lower` conflicts with nothing.
        size: Bytes of each; rounded up to the alignment.
        alignment: Bytes; every offset is a multiple of it.
        period: Ticks after which everything repeats, or 0. With a period, a buffer with
            `upper > period` lives on at the start of the next period.
        stream: The number of each buffer's stream.
        streams: "separate": buffers of different streams never share an address. "ordered": they
            may, and the solution's `waits` say which stream waits for which buffer.
        fixed: The required offset of each buffer, -1 for none.
        gaps: Idle intervals of buffers, in which others may use their addresses (MiniMalloc's
            gaps). A row has the buffer, the first tick, and one past the last tick. Not with
            ordered streams; a single `algorithm` ignores them.
        phase_begin: The phase of each allocation, for the paper's planner, -1 for none.
        phase_end: The phase of each free.
        capacity: The height that must not be exceeded.
        algorithm: The only planner to run, see `algorithms()`; None runs all.
        time_limit: Seconds until the best solution so far is returned. The first solution always
            completes.
        threads: Number of threads; None means all cores.
        warm_start: Offsets of an older solution to begin with, -1 for none. If it
            is valid, the result is no higher.
        progress: True shows a bar on stderr once planning takes longer than a second. A function
            is called with the fraction done, several times a second; when it returns False, the
            best solution found so far is returned.

    Raises:
        PlanError: The problem is malformed, fixed offsets clash, or no solution within the
            capacity was found; the message names the buffer and the error.
    """
    if not time_limit >= 0:
        raise PlanError(f"the time limit must be a number of seconds, not {time_limit}")
    if threads is not None and threads < 1:
        raise PlanError(f"at least one thread is needed, not {threads}")
    if capacity is not None and capacity < 0:
        raise PlanError(f"the capacity must not be negative: {capacity}")
    problem = _problem(
        lower,
        upper,
        size,
        alignment,
        period,
        capacity,
        stream,
        fixed,
        phase_begin,
        phase_end,
        streams,
        gaps,
    )
    if capacity == 0 and problem.bound() > 0:
        raise PlanError(f"no solution fits a capacity of 0: it takes {problem.bound()} bytes")
    warm = None if warm_start is None else _numbers(warm_start, "warm_start")
    with shown(progress) as report:
        result = problem.solve(algorithm or "", float(time_limit), threads or 0, warm, report)
    return Solution(**result)


def load_bound(
    lower: npt.ArrayLike,
    upper: npt.ArrayLike,
    size: npt.ArrayLike,
    *,
    alignment: int = 1,
    period: int = 0,
    stream: npt.ArrayLike | None = None,
    streams: Streams | str = Streams.SEPARATE,
    gaps: npt.ArrayLike | None = None,
) -> int:
    """The most bytes that are live at once: no solution is lower. Arguments as for `plan`."""
    return _problem(
        lower, upper, size, alignment, period, None, stream, streams=streams, gaps=gaps
    ).bound()


def validate(
    offsets: npt.ArrayLike,
    lower: npt.ArrayLike,
    upper: npt.ArrayLike,
    size: npt.ArrayLike,
    *,
    height: int | None = None,
    alignment: int = 1,
    period: int = 0,
    stream: npt.ArrayLike | None = None,
    streams: Streams | str = Streams.SEPARATE,
    fixed: npt.ArrayLike | None = None,
    gaps: npt.ArrayLike | None = None,
    waits: npt.ArrayLike | None = None,
) -> None:
    """Checks any solution, with code that no planner shares.

    Arguments as for `plan`, and the offsets to check; `height` is the end they must stay below.
    Where `streams` is "ordered", `waits` are checked too: there has to be one for every reuse
    across streams, and no other.

    Raises:
        PlanError: Two buffers overlap, one is not where it may be, or a wait is missing; the
            message names them.
    """
    problem = _problem(
        lower, upper, size, alignment, period, None, stream, fixed, streams=streams, gaps=gaps
    )
    unlimited = int(np.iinfo(np.int64).max)
    places = _numbers(offsets, "offsets")
    problem.validate(places, unlimited if height is None else height)
    if Streams(streams) is Streams.ORDERED:
        rows = np.zeros((0, 2), np.int64) if waits is None else _numbers(waits, "waits")
        problem.validate_waits(places, rows if rows.size > 0 else np.zeros((0, 2), np.int64))


def algorithms() -> list[str]:
    """The names of all planners."""
    return _core.algorithms()


def load_csv(path: Path | str) -> Csv:
    """Reads a MiniMalloc CSV: `id,lower,upper,size[,gaps][,offset]`, one buffer a line.

    Raises:
        PlanError: The file is malformed; the message has its name and the number of the line.
    """
    return parse_csv(Path(path).read_bytes(), str(path))


def parse_csv(content: bytes, source: str) -> Csv:
    """Reads the content of a MiniMalloc CSV file; `source` is its name in messages.

    Raises:
        PlanError: It is malformed; the message has the number of the line.
    """
    try:
        return Csv(**_core.read_csv(content.decode()))
    except (PlanError, UnicodeDecodeError) as error:
        raise PlanError(f"{source}: {error}") from None


def save_csv(path: Path | str, csv: Csv, offsets: npt.ArrayLike) -> None:
    """Writes a MiniMalloc CSV with a column of offsets."""
    Path(path).write_text(format_csv(csv, offsets), encoding="utf-8")


def format_csv(csv: Csv, offsets: npt.ArrayLike) -> str:
    """The text of a MiniMalloc CSV with a column of offsets."""
    problem = _problem(csv.lower, csv.upper, csv.size, gaps=csv.gaps)
    return _core.write_csv(csv.ids, problem, _numbers(offsets, "offsets"))


def _of_arrays(streams: Streams | str) -> Streams:
    if Streams(streams) is Streams.AUTO:
        raise PlanError(
            'streams="auto" needs the order of a trace; for arrays choose "separate" or "ordered"'
        )
    return Streams(streams)


def _problem(
    lower: npt.ArrayLike,
    upper: npt.ArrayLike,
    size: npt.ArrayLike,
    alignment: int = 1,
    period: int = 0,
    capacity: int | None = None,
    stream: npt.ArrayLike | None = None,
    fixed: npt.ArrayLike | None = None,
    phase_begin: npt.ArrayLike | None = None,
    phase_end: npt.ArrayLike | None = None,
    streams: Streams | str = Streams.SEPARATE,
    gaps: npt.ArrayLike | None = None,
) -> _core.Problem:
    def optional(values: npt.ArrayLike | None, name: str) -> Int64Array | None:
        return None if values is None else _numbers(values, name)

    try:
        return _core.Problem(
            lower=_numbers(lower, "lower"),
            upper=_numbers(upper, "upper"),
            size=_numbers(size, "size"),
            alignment=alignment,
            period=period,
            capacity=capacity or 0,
            stream=optional(stream, "stream"),
            fixed=optional(fixed, "fixed"),
            phase_begin=optional(phase_begin, "phase_begin"),
            phase_end=optional(phase_end, "phase_end"),
            streams=_of_arrays(streams),
            gaps=None if gaps is None or np.size(gaps) == 0 else _numbers(gaps, "gaps"),
        )
    except TypeError:
        raise PlanError(
            "alignment, period and capacity must be whole numbers of at most 63 bits: "
            f"{alignment!r}, {period!r}, {capacity!r}"
        ) from None


def _numbers(values: npt.ArrayLike, name: str) -> Int64Array:
    """Converts to 64-bit integers. Refuses values that would change."""
    try:
        array = np.asarray(values)
    except (OverflowError, ValueError) as error:
        raise PlanError(f"{name} is no array of numbers: {error}") from None
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.dtype.kind not in "iu":
        raise PlanError(f"{name} must be whole numbers of at most 63 bits, not {array.dtype}")
    if array.dtype.kind == "u" and int(array.max()) > np.iinfo(np.int64).max:
        raise PlanError(f"{name} has a number that does not fit in 63 bits: {array.max()}")
    return np.ascontiguousarray(array, dtype=np.int64)
