"""Plans: an address for every static request of an iteration.

`stalloc.plan` is a function, so the module has another name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from stalloc import _core
from stalloc.document import Document, remedied
from stalloc.errors import PlanError
from stalloc.planner import Streams
from stalloc.tables import (
    Decisions,
    Groups,
    Laws,
    LawTerms,
    Phases,
    Reusable,
    SlotDecisions,
    Slots,
    Startup,
    Turns,
)

DEFAULT_ALIGNMENT = 512
"""Bytes; the alignment of CUDA's allocators."""


def check_seconds(time_limit: object) -> None:
    """Refuses what is neither a number of seconds from 0 up nor None.

    Raises:
        PlanError: It is not.
    """
    if time_limit is None or (isinstance(time_limit, int | float) and time_limit >= 0):
        return
    raise PlanError(f"time_limit: give a number of seconds from 0 up, or None, not {time_limit!r}")


class Plan(Document[_core.Plan]):
    """The addresses of all static requests in the pool. `Trace.plan` makes a plan."""

    @classmethod
    def from_json(cls, text: bytes, source: str) -> Plan:
        """Reads the content of a file that `save` wrote, and validates it.

        Raises:
            PlanError: It is damaged, invalid, or of another format or a newer version; the message
                says where.
        """
        with remedied():
            return cls(_core.Plan.from_json(text, source))

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its trace."""
        return self._core.fingerprint

    @property
    def algorithm(self) -> str:
        """The planner that found it; one for each stream, joined by `+`."""
        return self._core.algorithm

    @property
    def pool(self) -> int:
        """Bytes to reserve."""
        return self._core.pool

    @property
    def resident(self) -> int:
        """Bytes of the resident region: weights, gradients, optimizer states.

        Only a run that is served from its start needs them: `enable(plan, startup=True)`.
        """
        return self._core.resident

    @property
    def bound(self) -> int:
        """Bytes; no plan has a smaller pool."""
        return self._core.bound

    @property
    def gap(self) -> float:
        """The pool's distance above the bound: `pool / bound - 1`."""
        return self._core.gap

    @property
    def optimal(self) -> bool:
        """True if it is proven that no pool is smaller; with slots, none with these slots."""
        return self._core.optimal

    @property
    def load_bytes(self) -> int:
        """The most bytes alive at once in the profiled iteration, all requests, as asked."""
        return self._core.load

    @property
    def streams(self) -> Streams:
        """ORDERED if requests of different streams share addresses."""
        return Streams(self._core.streams)

    @property
    def alignment(self) -> int:
        """Bytes; every address is a multiple of it."""
        return self._core.alignment

    @property
    def period(self) -> int:
        """Ticks of one iteration."""
        return self._core.period

    @cached_property
    def phases(self) -> Phases:
        """The planned phases, in order."""
        return Phases(**self._core.phases())

    @cached_property
    def decisions(self) -> Decisions:
        """All decisions, by phase, then in order."""
        return Decisions(**self._core.decisions())

    @cached_property
    def groups(self) -> Groups:
        """The groups of dynamic requests and their regions."""
        return Groups(**self._core.groups())

    @cached_property
    def slots(self) -> Slots:
        """The classes of slots, for state that each iteration replaces."""
        return Slots(**self._core.slots())

    @cached_property
    def slot_decisions(self) -> SlotDecisions:
        """The decisions that have no fixed address, but a slot."""
        return SlotDecisions(**self._core.slot_decisions())

    @cached_property
    def turns(self) -> Turns:
        """The decisions that take turns between two places."""
        return Turns(**self._core.turns())

    @cached_property
    def startup(self) -> Startup:
        """The requests that only start-up makes."""
        return Startup(**self._core.startup())

    @property
    def absent(self) -> list[int]:
        """Rows of the decisions that do not come in the first iteration."""
        return self._core.absent

    @cached_property
    def reusable(self) -> Reusable:
        """The addresses that are idle through the window of each group."""
        return Reusable(**self._core.reusable())

    @property
    def extents(self) -> dict[str, int]:
        """The envelope: the largest extents that the sizes are planned for, by name.

        A name is an input of the model and one of its dimensions, as in `ids.1`. Dimensions that
        never changed while the program was profiled have no name.
        """
        return dict(zip(self._core.extent_names, self._core.extents, strict=True))

    @property
    def seen(self) -> list[dict[str, int]]:
        """The distinct extents that were profiled."""
        names = self._core.extent_names
        return [dict(zip(names, row, strict=True)) for row in self._core.seen]

    @cached_property
    def laws(self) -> Laws:
        """The laws that sizes follow as the extents change."""
        return Laws(**self._core.laws())

    @cached_property
    def law_terms(self) -> LawTerms:
        """The terms of all laws."""
        return LawTerms(**self._core.law_terms())

    @property
    def law_kinds(self) -> list[str]:
        """By law: "constant", "affine", "quadratic", "cubic", "stepped" or "unexplained"."""
        return self._core.kinds_of_laws()

    def resized(self, extents: Mapping[str, int], *, time_limit: float | None = None) -> Plan:
        """Plans the same requests for other extents, without the trace. Releases the GIL.

        The extents may lie beyond those that were profiled: the laws extrapolate.

        Args:
            extents: The new envelope. A missing extent stays as it is. A name may be shortened to
                its input where only one dimension of it changes; where only one extent changes at
                all, `tokens` and `length` name it, too.
            time_limit: Seconds after which the best layout so far is taken. With None, the search
                ends after a fixed number of steps, a few seconds: the layout depends neither on the
                machine nor on its load.

        Raises:
            PlanError: An extent is unknown or not positive, or a size does not fit.
        """
        check_seconds(time_limit)
        names = self._core.extent_names
        values = list(self._core.extents)
        bases = [_core.derive_extent(name, 1)[0] for name in names]
        inputs = list(dict.fromkeys(bases))
        for name, value in extents.items():
            if value < 1:
                raise PlanError(f"extent {name} must be at least 1, and is {value}")
            full = name if name in names else full_extent_name(name, inputs)
            for i, base in enumerate(bases):
                if full not in (base, names[i]):
                    continue
                # A name of a stage means its own value. A multiple stays one.
                given = full == names[i] and full.startswith("floor(")
                values[i] = value if given else _core.derive_extent(names[i], value)[1]
        return Plan(self._core.resize(values, time_limit))

    def serves(self) -> dict[str, int | float | dict[str, int]]:
        """The batches that the plan can serve.

        Returns:
            `extents`, the envelope; `pool` and `bound` there; and `worst_efficiency`, the smallest
            load of the profiled extents in relation to the pool.
        """
        loads = [self._core.bound_at(row) for row in self._core.seen] or [self.bound]
        return {
            "extents": self.extents,
            "pool": self.pool,
            "bound": self.bound,
            "worst_efficiency": min(loads) / self.pool if self.pool else 1.0,
        }

    @property
    def dynamic(self) -> list[str]:
        """Names of the modules that the profile found to be dynamic, besides the tagged ones."""
        return self._core.dynamic

    @dynamic.setter
    def dynamic(self, value: Iterable[str]) -> None:
        self._core.dynamic = list(value)

    @property
    def headroom(self) -> int:
        """Head room of the regions: per cent of the distance from median to largest need."""
        return self._core.headroom

    @property
    def headroom_cost(self) -> int:
        """Bytes that the head room adds to the bound."""
        return self._core.headroom_cost

    @property
    def headroom_saves(self) -> int:
        """Bytes that the head room keeps from the fallback at the peak of replayed iterations."""
        return self._core.headroom_saves

    def check(self) -> None:
        """Validates the plan. A plan that was made or loaded here is valid already.

        Raises:
            PlanError: Two decisions overlap, or one cannot be followed; the message names it.
        """
        self._core.check()

    def summary(self) -> dict[str, str | int | float | bool]:
        """All figures by name."""
        return {
            "decisions": len(self.decisions),
            "phases": len(self.phases),
            "groups": len(self.groups),
            "region_bytes": int(self.groups.size.sum()),
            "headroom": self.headroom,
            "headroom_cost": self.headroom_cost,
            "headroom_saves": self.headroom_saves,
            "pool": self.pool,
            "resident": self.resident,
            "bound": self.bound,
            "gap": self.gap,
            "optimal": self.optimal,
            "ordered": self.streams is Streams.ORDERED,
            "load": self.load_bytes,
            "algorithm": self.algorithm,
            "alignment": self.alignment,
            "period": self.period,
            "fingerprint": self.fingerprint,
        }

    def __repr__(self) -> str:
        return (
            f"<Plan of {len(self.decisions):,} decisions, pool {self.pool:,} bytes, "
            f"gap {self.gap:.2%}{', optimal' if self.optimal else ''}>"
        )


def full_extent_name(name: str, names: list[str]) -> str:
    """Returns the extent that `name` means.

    Raises:
        PlanError: None or several may be meant.
    """
    if name in names:
        return name
    if name in ("tokens", "length") and len(names) == 1:
        return names[0]
    meant = [full for full in names if full.rpartition(".")[0] == name]
    if len(meant) == 1:
        return meant[0]
    known = ", ".join(meant or names)
    if not known:
        raise PlanError(
            f"extent {name}: no extent changed while this was profiled, so no size law is known; "
            "profile at least two batches of different sizes"
        )
    raise PlanError(
        f"extent {name} is {'ambiguous' if meant else 'unknown'}: choose one of {known}"
    )
