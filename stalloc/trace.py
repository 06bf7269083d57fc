"""Traces: every allocation of a profiled run, and the profile of its iterations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stalloc import _core
from stalloc.document import Document, remedied
from stalloc.planner import Streams
from stalloc.plans import DEFAULT_ALIGNMENT, Plan, check_seconds
from stalloc.progress import Progress, shown
from stalloc.tables import (
    LIFETIME_CLASSES,
    PHASE_KINDS,
    Extents,
    Flags,
    LayerSpans,
    Orders,
    Phases,
    PhaseSpans,
    ProfiledRequests,
    Requests,
    Sites,
)


@dataclass(frozen=True, slots=True)
class Tally:
    """Requests of one kind.

    Attributes:
        requests: Their number.
        bytes: The sum of their sizes.
    """

    requests: int
    bytes: int


class IterationProfile:
    """The reference iteration: its requests with their classes and longest lifetimes."""

    def __init__(self, core: _core.IterationProfile) -> None:
        self._core = core

    @property
    def iteration(self) -> int:
        """The reference: the last complete iteration of the trace."""
        return self._core.iteration

    @property
    def compared(self) -> int:
        """The number of iterations it was compared with."""
        return self._core.compared

    @property
    def period(self) -> int:
        """Ticks of one iteration."""
        return self._core.period

    @property
    def load_bytes(self) -> int:
        """The most bytes alive at once, all requests, as asked."""
        return self._core.load

    @cached_property
    def phases(self) -> Phases:
        """Its phases, in order."""
        return Phases(**self._core.phases())

    @cached_property
    def requests(self) -> ProfiledRequests:
        """Its requests, in order."""
        return ProfiledRequests(**self._core.requests())

    @cached_property
    def sites(self) -> Sites:
        """The sites of its dynamic requests."""
        return Sites(**self._core.groups())

    def tallies(self) -> dict[str, Tally]:
        """Requests by kind.

        Returns:
            `static` and `dynamic` requests of the planned phases, and those of `unplanned` ones,
            which add up to all; of the static ones each lifetime class; and the `plannable`.
        """
        requests = self.requests
        kinds = self.phases.kind[requests.phase_begin]
        planned: Flags = kinds != PHASE_KINDS.index("unplanned")
        static: Flags = planned & ~requests.dynamic

        def tally(chosen: Flags) -> Tally:
            return Tally(int(np.count_nonzero(chosen)), int(requests.size[chosen].sum()))

        result = {
            "static": tally(static),
            "dynamic": tally(planned & requests.dynamic),
            "unplanned": tally(~planned),
            "plannable": tally(requests.plannable),
        }
        for number, name in enumerate(LIFETIME_CLASSES):
            result[name] = tally(static & (requests.lifetime == number))
        return result


class Trace(Document[_core.Trace]):
    """Every allocation of a profiled run, with its lifetime, phase and layer."""

    @classmethod
    def from_json(cls, text: bytes, source: str) -> Trace:
        """Reads the content of a file that `save` wrote.

        Raises:
            TraceError: It is damaged, of another format or a newer version; the message says where.
        """
        with remedied():
            return cls(_core.Trace.from_json(text, source))

    @property
    def end(self) -> int:
        """One past the last tick."""
        return self._core.end

    @property
    def iterations(self) -> list[int]:
        """The ticks between complete iterations: one more than there are iterations."""
        return self._core.iterations

    @cached_property
    def layers(self) -> list[str]:
        """Names of the modules."""
        return self._core.layers

    @cached_property
    def requests(self) -> Requests:
        """Every allocation."""
        return Requests(**self._core.requests())

    @cached_property
    def phases(self) -> PhaseSpans:
        """Every stretch of a phase."""
        return PhaseSpans(**self._core.phases())

    @cached_property
    def layer_spans(self) -> LayerSpans:
        """Every stay in a module."""
        return LayerSpans(**self._core.layer_spans())

    @cached_property
    def orders(self) -> Orders:
        """The order that the program gave its streams by events and synchronisations."""
        return Orders(**self._core.orders())

    @cached_property
    def extent_names(self) -> list[str]:
        """Names of the extents: an input of the model and its dimension, as in `ids.1`."""
        return self._core.extent_names

    @cached_property
    def extents(self) -> Extents:
        """The sizes of the dimensions of the model's inputs, for each forward that has inputs."""
        return Extents(**self._core.extents())

    @cached_property
    def fingerprint(self) -> str:
        """A name by content: 32 hexadecimal digits."""
        return self._core.fingerprint()

    def profile(self) -> IterationProfile:
        """Compares the iterations.

        Raises:
            TraceError: The trace is inconsistent, or holds no complete iteration.
        """
        return IterationProfile(self._core.profile())

    def plan(
        self,
        algorithm: str | None = None,
        alignment: int = DEFAULT_ALIGNMENT,
        time_limit: float | None = None,
        progress: bool | Progress = False,
        *,
        regions: bool = True,
        dynamic: bool = True,
        streams: Streams | str = Streams.AUTO,
        extents: Mapping[str, int] | None = None,
    ) -> Plan:
        """Finds an address for every static request and regions for the dynamic ones.

        Releases the GIL. Ctrl-C ends it.

        Args:
            algorithm: The planner to use. By default several are run and the best plan wins.
            alignment: Bytes; every address is a multiple of it.
            time_limit: Seconds after which the best plan so far is taken. With None, the search for
                each layout ends after a fixed number of steps, a few seconds: the plan depends
                neither on the machine nor on its load.
            progress: True shows a bar on stderr once planning takes longer than a second. A
                function is called with the fraction done, from any thread; when it returns False,
                the best plan so far is taken.
            regions: Reserve regions for dynamic requests. Otherwise they only get addresses that
                the static requests leave idle.
            dynamic: Plan for dynamic requests at all.
            streams: "ordered": requests of different streams may share addresses. The pool is
                smaller then. A stream that gets an address waits on the device for all work that
                any stream had been given when the address was freed. "auto": only where the
                program orders the streams itself, as the trace tells, and if the pool becomes
                smaller. "separate": never.
            extents: The envelope to plan for, as in `{"ids.1": 8192}`; it may exceed what was
                profiled. By default the largest extents seen. See `Plan.resized` for the names.

        Raises:
            TraceError: The trace is inconsistent, or holds no complete iteration.
            PlanError: There is no such planner, or the options make no sense.
        """
        check_seconds(time_limit)
        shares = Streams(streams) is Streams.AUTO
        with shown(progress) as report:
            plan = Plan(
                self._core.plan(
                    *(algorithm or "", alignment, time_limit, regions, dynamic),
                    streams=Streams.SEPARATE if shares else Streams(streams),
                    share=shares,
                    progress=report,
                )
            )
        return plan.resized(extents, time_limit=time_limit) if extents else plan

    def __repr__(self) -> str:
        iterations = max(0, len(self.iterations) - 1)
        return f"<Trace of {len(self.requests):,} requests in {iterations} iterations>"
