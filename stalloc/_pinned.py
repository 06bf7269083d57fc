"""Pinned host memory, whose requests are profiled and planned beside those of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stalloc import _compat, _core
from stalloc._torch_modules import cuda_module
from stalloc.errors import PlanError, StallocError
from stalloc.trace import Trace

if TYPE_CHECKING:
    from stalloc._adapters import Adapter
    from stalloc.plans import Plan

DEVICE = "pinned"
"""The device in the info of traces and plans, and the name of the runtime."""


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
        self._gpu.lead(self._runtime)

    def disable(self) -> None:
        """Leaves requests to torch from now on."""
        self._gpu.lead(None)
        self._runtime.disable()


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
