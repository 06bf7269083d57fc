"""The recording of iterations while a plan serves them.

The session's hooks report phases to the recorder, too, so that the plan stays in force.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from stalloc._adapters import Adapter
from stalloc._hooks.signatures import input_signature, model_signature
from stalloc.plans import Plan
from stalloc.trace import Trace


class ServedRecording:
    """Records from now on.

    Args:
        adapter: The device.
        plan: The plan in force.

    Attributes:
        is_on: It has not ended.
    """

    def __init__(self, adapter: Adapter, plan: Plan) -> None:
        self.adapter = adapter
        self.plan = plan
        self._inputs: set[str] = set()
        self._model = ""
        adapter.record_exactly(False)
        adapter.runtime.start_recording(keep_layers=True)
        self.is_on = True

    def note(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Notes a training forward."""
        self._inputs.add(input_signature(args, kwargs))
        self._model = self._model or model_signature(module)

    @property
    def iterations(self) -> int:
        """The number of recorded ones that have ended."""
        return self.adapter.runtime.recorded_iterations if self.is_on else 0

    def finish(self, same: Sequence[str]) -> Trace:
        """Ends the recording.

        Args:
            same: The entries of info that the trace takes over from the plan.
        """
        trace = self._end()
        info = {key: self.plan.info[key] for key in same if key in self.plan.info}
        model = self._model or self.plan.info.get("model", "")
        inputs = json.dumps(sorted(self._inputs))
        trace.info = trace.info | info | {"model": model, "inputs": inputs}
        return trace

    def stop(self) -> None:
        """Ends the recording. May be repeated."""
        if self.is_on:
            self._end()

    def _end(self) -> Trace:
        self.is_on = False
        return Trace(self.adapter.runtime.finish_recording())
