"""Live bytes over time: the curve, its peak, and the requests at a tick.

For a trace this is the last complete iteration, for a plan its only one. Ticks count from its
beginning.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stalloc.plans import Plan
from stalloc.tables import NEVER, Int32s, Int64s
from stalloc.trace import Trace


@dataclass(frozen=True, slots=True)
class Holder:
    """Requests of one call site (or module) and phase.

    Attributes:
        site: Its name; empty if unknown.
        phase: Phase of the allocation; `before` for requests that were live already.
        requests: Their number.
        bytes: The sum of their sizes.
        largest: The largest of these.
    """

    site: str
    phase: str
    requests: int
    bytes: int
    largest: int


class Liveness:
    """Lifetimes within one iteration."""

    def __init__(
        self,
        period: int,
        lower: Int64s,
        upper: Int64s,
        size: Int64s,
        phase: Int32s,
        site: Int32s,
        phases: list[tuple[int, str]],
        sites: list[str],
    ) -> None:
        """Takes half-open lifetimes, clipped to the iteration, a row a request.

        Args:
            period: Ticks of the iteration.
            lower: First tick.
            upper: Last tick, exclusive.
            size: Bytes.
            phase: Index into `phases`, or -1 for requests that were live before.
            site: Index into `sites`, or -1.
            phases: First tick and name of each.
            sites: Names.
        """
        self.period = period
        self._lower, self._upper, self._size = lower, upper, size
        self._phase, self._site = phase, site
        self._phases, self._sites = phases, sites
        self.named = bool(sites)
        """True if any call site is known."""
        ticks = np.concatenate((lower, upper))
        changes = np.concatenate((size, -size))
        order = np.lexsort((changes, ticks))  # at one tick, frees come first
        ticks, live = ticks[order], np.cumsum(changes[order])
        last = np.append(ticks[1:] != ticks[:-1], True) if len(ticks) else np.zeros(0, bool)
        self.ticks: Int64s = ticks[last]
        """The ticks at which the curve changes."""
        self.live: Int64s = live[last]
        """Bytes live from there on."""

    @property
    def peak(self) -> int:
        """The first tick at which most is live."""
        return int(self.ticks[np.argmax(self.live)]) if len(self.ticks) else 0

    def live_at(self, tick: int) -> int:
        """Bytes live at a tick."""
        row = int(np.searchsorted(self.ticks, tick, side="right")) - 1
        return int(self.live[row]) if row >= 0 else 0

    def phase_at(self, tick: int) -> str:
        """Name of the phase that a tick lies in."""
        name = ""
        for begin, phase in self._phases:
            if begin > tick:
                break
            name = phase
        return name

    def holders_at(self, tick: int) -> list[Holder]:
        """The live bytes at a tick by origin, the most first."""
        return self._holders((self._lower <= tick) & (tick < self._upper))

    def holders(self) -> list[Holder]:
        """The bytes allocated in the iteration by origin, the most first."""
        return self._holders(self._phase >= 0)

    def _holders(self, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[Holder]:
        rows = np.flatnonzero(chosen)
        key = (self._phase[rows].astype(np.int64) + 1) * (len(self._sites) + 1)
        key += self._site[rows] + 1
        keys, group = np.unique(key, return_inverse=True)
        size = self._size[rows]
        counts = np.bincount(group, minlength=len(keys))
        totals = np.zeros(len(keys), np.int64)
        np.add.at(totals, group, size)
        largest = np.zeros(len(keys), np.int64)
        np.maximum.at(largest, group, size)
        result = []
        for row in np.argsort(-totals, kind="stable").tolist():
            phase, site = divmod(int(keys[row]), len(self._sites) + 1)
            result.append(
                Holder(
                    site=self._sites[site - 1] if site else "",
                    phase=self._phases[phase - 1][1] if phase else "before",
                    requests=int(counts[row]),
                    bytes=int(totals[row]),
                    largest=int(largest[row]),
                )
            )
        return result

    def sampled(self, columns: int) -> list[int]:
        """The curve in so many columns: the most that is live in each."""
        result = []
        for column in range(columns):
            begin = column * self.period // columns
            end = max((column + 1) * self.period // columns, begin + 1)
            first = int(np.searchsorted(self.ticks, begin, side="right")) - 1
            last = int(np.searchsorted(self.ticks, end, side="left"))
            part = self.live[max(first, 0) : last]
            result.append(int(part.max()) if len(part) and last > 0 else 0)
        return result


def of_trace(trace: Trace, *, whole: bool = False) -> Liveness:
    """Lifetimes in the last complete iteration of a trace; in all of it without one or `whole`."""
    bounds = trace.iterations
    begin, end = (bounds[-2], bounds[-1]) if len(bounds) >= 2 and not whole else (0, trace.end)
    requests, spans = trace.requests, trace.phases
    upper = np.where(requests.upper == NEVER, trace.end, requests.upper)
    rows = np.flatnonzero((requests.lower < end) & (upper > begin))
    inside = requests.lower[rows] >= begin
    chosen = np.flatnonzero((spans.begin < end) & (spans.end > begin))
    names = [(int(spans.begin[row]) - begin, spans.name(row)) for row in chosen.tolist()]
    index = np.full(len(spans) + 1, -1, np.int32)
    index[chosen] = np.arange(len(chosen), dtype=np.int32)
    return Liveness(
        period=end - begin,
        lower=np.maximum(requests.lower[rows], begin) - begin,
        upper=np.minimum(upper[rows], end) - begin,
        size=requests.size[rows],
        phase=np.where(inside, index[requests.phase_begin[rows]], -1).astype(np.int32),
        site=requests.layer_begin[rows],
        phases=names,
        sites=trace.layers,
    )


def of_plan(plan: Plan) -> Liveness:
    """Lifetimes of a plan's decisions; those that wrap round live at both ends."""
    decisions, phases, period = plan.decisions, plan.phases, plan.period
    wraps = np.flatnonzero(decisions.upper > period)
    rows = np.concatenate((np.arange(len(decisions)), wraps))
    first = len(decisions)
    lower = decisions.lower[rows].copy()
    lower[first:] = 0
    upper = np.minimum(decisions.upper[rows], period)
    upper[first:] = decisions.upper[wraps] - period
    phase = decisions.phase[rows].astype(np.int32)
    phase[first:] = -1  # of the iteration before
    return Liveness(
        period=period,
        lower=lower,
        upper=upper,
        size=decisions.size[rows],
        phase=phase,
        site=np.full(len(rows), -1, np.int32),
        phases=[(int(phases.begin[row]), phases.name(row)) for row in range(len(phases))],
        sites=[],
    )
