"""The recording of iterations while a plan serves them.

The session's hooks report phases to the recorder, too, so that the plan stays in force. The
recording begins in the middle of an iteration's beginning: its first iteration is dropped.
"""

from __future__ import annotations

import json

from stalloc._adapters import Adapter
from stalloc._auto.forward import Forward
from stalloc._auto.joining import without_first_iteration
from stalloc.hooks import model_signature
from stalloc.plans import Plan
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
        self._adapter = adapter
        self._iterations = iterations
        self._plan = plan
        self._inputs: set[str] = set()
        self._model = ""
        adapter.record_exactly(False)
        adapter.runtime.start_recording(keep_layers=True)
        self._is_on = True

    def note(self, forward: Forward) -> None:
        """Notes a training forward."""
        self._inputs.add(forward.inputs)
        self._model = self._model or model_signature(forward.module)

    @property
    def complete(self) -> bool:
        """True if all iterations are recorded."""
        return self._adapter.runtime.recorded_iterations > self._iterations

    def finish(self) -> Trace:
        """Ends the recording, and returns it."""
        info = {key: self._plan.info[key] for key in _SAME if key in self._plan.info}
        info |= {"model": self._model, "inputs": json.dumps(sorted(self._inputs))}
        trace = self._end()
        return without_first_iteration(trace, trace.info | info)

    def stop(self) -> None:
        """Ends the recording. May be repeated."""
        if self._is_on:
            self._end()

    def _end(self) -> Trace:
        self._is_on = False
        return Trace(self._adapter.runtime.finish_recording())
