"""Corrects a plan that was made on the meta device by the requests of the device that trains.

The plan serves the run from its first request. What only the device makes, such as workspaces and
temporaries of other kernels, departs from it. So the first iterations are recorded while it serves,
and planned again. The new plan goes into force between two iterations if it serves more.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from stalloc import _core
from stalloc._adapters import Adapter
from stalloc.comparison import Change, compare, run_of
from stalloc.errors import StallocError, StallocWarning
from stalloc.plans import Plan
from stalloc.replaying import Served, serve
from stalloc.served import ServedRecording
from stalloc.trace import Trace

RECORDED = 4
"""Iterations: one that warms up, and three, which prove a law of their sizes."""

_SEARCH = 0.5  # seconds to look for a better plan than the first one, while training waits
_LEAST = 0.01  # share of the planned requests, or of the memory, that is worth an exchange
_SAME = ("dynamic", "early_ends", "ends", "other_models", "shared", "framework")
"""The entries of info that are facts about the program, not about the device."""


class Correction:
    """The result of correcting a plan.

    Attributes:
        before: The plan that served the first iterations.
        plan: The plan of what they requested.
        changes: The differences of its requests to those of `before`, by phase and size, the
            largest first. `more` are requests that only the device makes, `fewer` such that it does
            not make.
        served_before: How `before` serves the recorded iterations.
        served: How `plan` does.
        exchanged: True if `plan` went into force.
    """

    def __init__(self, before: Plan, trace: Trace, startup: bool) -> None:
        self.before = before
        self.plan = _planned(trace, before)
        self.changes: Sequence[Change] = compare(run_of(before), run_of(self.plan)).changes
        self.served_before: Served = serve(trace, before, startup=startup)
        self.served: Served = serve(trace, self.plan, startup=startup)
        self.exchanged = False

    @property
    def saves(self) -> bool:
        """True if the new plan is worth an exchange: it serves more, or needs less memory."""
        before, now = self.served_before, self.served
        if now.bytes <= (1 - _LEAST) * before.bytes:
            return True
        return now.hits >= before.hits + _LEAST and now.bytes <= (1 + _LEAST) * before.bytes

    def to_json(self) -> dict[str, object]:
        """Figures and differences for `stalloc run --json`."""
        return {
            "exchanged": self.exchanged,
            "pool_before": self.before.pool,
            "pool": self.plan.pool,
            "hits_before": self.served_before.hits,
            "hits": self.served.hits,
            "changes": [asdict(change) for change in self.changes],
        }

    def __str__(self) -> str:
        told = [
            f"{sum(change.requests for change in changes):,} {words} ({_bytes(changes)})"
            for what, words in (
                ("more", "that only this device makes"),
                ("fewer", "that it does not make"),
                ("resized", "of another size"),
            )
            if (changes := [change for change in self.changes if change.what == what])
        ]
        pools = " instead of ".join(
            _core.format_bytes(plan.pool) for plan in (self.plan, self.before)
        )
        return (
            f"requests of an iteration: {', '.join(told) or 'the same'}; "
            f"{self.served.hits:.2%} as planned instead of {self.served_before.hits:.2%}, "
            f"pool {pools}"
        )


class Corrector:
    """Records from now on, and corrects the plan once enough iterations have passed.

    Nothing here ends a training: what fails is a warning.

    Args:
        adapter: The device.
        plan: The plan that serves them.
        startup: It serves them from the start of the run.
        exchange: Puts another plan in force instead. Returns False if that is not possible now. If
            it raises, no plan is in force.

    Attributes:
        correction: The result; None before.
    """

    def __init__(
        self, adapter: Adapter, plan: Plan, startup: bool, exchange: Callable[[Plan], bool]
    ) -> None:
        self.correction: Correction | None = None
        self._adapter = adapter
        self._startup = startup
        self._exchange = exchange
        self._recording = ServedRecording(adapter, plan)

    def forward_begins(self, module: torch.nn.Module, args: Any, kwargs: Any) -> bool:
        """Notes a training forward. Returns True if it is the first one under another plan."""
        if not self._recording.is_on:
            return False
        if self._is_complete():
            return self._correct()
        self._recording.note(module, args, kwargs)
        return False

    def iteration_ends(self) -> None:
        """An iteration has ended."""
        if self._is_complete():
            self._correct()

    def stop(self) -> None:
        """Ends the recording. May be repeated."""
        self._recording.stop()

    def _is_complete(self) -> bool:
        """True once all is recorded, but not in a capture, which nothing may disturb."""
        if self._recording.iterations < RECORDED:
            return False
        return not (self._adapter.is_native and torch.cuda.is_current_stream_capturing())

    def _correct(self) -> bool:
        """Plans the recorded iterations. True if their plan went into force."""
        try:
            found = self.correction = self._planned()
        except Exception as error:  # such as a thread that cannot be started
            _warn("the first iterations cannot be planned, and it stays in force", error)
            return False
        try:
            found.exchanged = found.saves and self._exchange(found.plan)
        except Exception as error:
            _warn("its correction cannot be put in force, and training goes on unplanned", error)
        return found.exchanged

    def _planned(self) -> Correction:
        trace = self._recording.finish(_SAME)
        if len(trace.requests) == 0:
            raise StallocError("nothing was recorded")
        trace.info = trace.info | {
            "device": self._adapter.name.split(":")[0],
            "torch": torch.__version__,
            "python": ".".join(map(str, sys.version_info[:3])),
        }
        return Correction(self._recording.plan, trace, self._startup)


def _warn(problem: str, error: Exception) -> None:
    warnings.warn(
        f"stalloc: the plan is not corrected: {problem}: {error}",
        StallocWarning,
        stacklevel=2,
    )


def _planned(trace: Trace, before: Plan) -> Plan:
    """Plans the recording for at least the extents that the plan before is for."""
    plan = trace.plan(time_limit=_SEARCH)
    largest = plan.extents
    wider = {
        name: value
        for name, value in before.extents.items()
        if name in largest and value > largest[name]
    }
    return plan.resized(wider, time_limit=_SEARCH) if wider else plan


def _bytes(changes: Sequence[Change]) -> str:
    return _core.format_bytes(sum(abs(change.bytes) for change in changes))
