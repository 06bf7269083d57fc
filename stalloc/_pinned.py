"""Pinned host memory, whose requests are profiled and planned beside those of a GPU."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from stalloc import _compat, _core
from stalloc._torch_modules import cuda_module
from stalloc.errors import PlanError, StallocError
from stalloc.trace import Trace

if TYPE_CHECKING:
    from stalloc._adapters import Adapter
    from stalloc.plans import Plan

DEVICE = "pinned"
"""The device in the info of traces and plans, and the name of the runtime."""

_OTHER_THREADS = "other_threads"
_MOST = 1 << 48  # bytes of a request


class Pinned:
    """The runtime of pinned memory, which follows the phases of a GPU's runtime.

    Raises:
        StallocError: The device is no GPU, or is in compat mode.
    """

    def __init__(self, adapter: Adapter) -> None:
        if not adapter.name.startswith("cuda"):
            raise StallocError(
                f"pinned memory is planned beside a GPU, and the device is '{adapter.name}'; leave "
                "pinned out"
            )
        if _compat.installed():
            raise StallocError(
                "compat mode does not plan pinned memory: torch has one interface for both only in "
                "native mode; leave pinned out, or do without compat mode"
            )
        self._gpu = adapter.runtime
        self._module = cuda_module()
        self._module.install_pinned(int(adapter.name.partition(":")[2]))
        self._runtime = _core.runtime(DEVICE)

    def start_recording(self) -> None:
        """Records requests from now on."""
        self._runtime.start_recording()
        self._gpu.lead(self._runtime)

    def finish_recording(self) -> Trace:
        """Ends the recording. Waits for the copies that still use blocks, whose ends it has."""
        self._gpu.lead(None)
        self._module.settle_pinned()
        return Trace(self._runtime.finish_recording())

    def enable(self, plan: Plan) -> None:
        """Serves requests from the plan's pool from now on.

        Raises:
            OutOfMemory: The system does not lock so much memory.
        """
        self._module.give_back_pinned()
        self._runtime.enable(plan._core, hand_back=False)
        self._runtime.prepare(_sizes_beside(plan))
        self._gpu.lead(self._runtime)

    def disable(self) -> None:
        """Leaves requests to torch from now on."""
        self._gpu.lead(None)
        self._runtime.disable()


def info_of(trace: Trace) -> dict[str, str]:
    """The part of a plan's info about requests that it does not plan.

    `other_threads` are the sizes of the blocks of other threads, such as a loader's, when most of
    their bytes were live.
    """
    requests = trace.requests
    others = requests.thread != 0
    sizes, lower, upper = (
        column[others] for column in (requests.size, requests.lower, requests.upper)
    )
    if len(sizes) == 0:
        return {}
    ticks = np.concatenate([lower, upper])
    order = np.argsort(ticks, kind="stable")
    loads = np.cumsum(np.concatenate([sizes, -sizes])[order])
    peak = ticks[order[int(np.argmax(loads))]]
    live = sizes[(lower <= peak) & (peak < upper)]
    return {_OTHER_THREADS: json.dumps(live.tolist())}


def _sizes_beside(plan: Plan) -> list[int]:
    text = plan.info.get(_OTHER_THREADS, "[]")
    try:
        sizes = json.loads(text)
    except ValueError:
        sizes = None
    if not isinstance(sizes, list) or not all(type(s) is int and 0 < s <= _MOST for s in sizes):
        raise PlanError(
            f"the plan's info, key {_OTHER_THREADS}: {text!r} is no JSON array of sizes; plan again"
        )
    return sizes


def check(plan: Plan) -> None:
    """Checks that the plan is one of pinned memory.

    Raises:
        PlanError: It is for another device.
    """
    device = plan.info.get("device", "")
    if device != DEVICE:
        raise PlanError(
            f"enable(pinned=...) takes a plan of pinned memory, which Profile.plan_pinned() makes; "
            f"this one is for device '{device}'"
        )
    _sizes_beside(plan)
