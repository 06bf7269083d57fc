"""The recording of iterations for the plan that follows the one in force.

It begins in the middle of an iteration's beginning: its first iteration is dropped.
"""

from __future__ import annotations

from stalloc._adapters import Adapter
from stalloc._auto.forward import Forward
from stalloc._auto.joining import without_first_iterations
from stalloc.plans import Plan
from stalloc.served import ServedRecording
from stalloc.trace import Trace

_SAME = ("device", "torch", "python", "dynamic", "early_ends", "ends", "other_models", "shared")
"""The entries of info that the new trace takes over from the plan."""


class Renewal:
    """Records from now on.

    Args:
        adapter: The device.
        iterations: The number of iterations to record.
        plan: The plan in force.
        reason: Why.
    """

    def __init__(self, adapter: Adapter, iterations: int, plan: Plan, reason: str) -> None:
        self.reason = reason
        self._iterations = iterations
        self._recording = ServedRecording(adapter, plan)

    def note(self, forward: Forward) -> None:
        """Notes a training forward."""
        self._recording.note(forward.module, forward.args, forward.kwargs)

    @property
    def complete(self) -> bool:
        """True if all iterations are recorded."""
        return self._recording.iterations > self._iterations

    def finish(self) -> Trace:
        """Ends the recording, and returns it."""
        trace = self._recording.finish(_SAME)
        return without_first_iterations(trace, 1, trace.info)

    def stop(self) -> None:
        """Ends the recording. May be repeated."""
        self._recording.stop()
