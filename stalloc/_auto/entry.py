"""`stalloc.auto` and `stalloc.status`."""

from __future__ import annotations

import torch

from stalloc import _adapters, _automatic, session
from stalloc._auto.automatic import Auto
from stalloc._auto.settings import AutoOptions, switched_off
from stalloc._auto.status import AutoStatus, nothing
from stalloc.errors import StallocError
from stalloc.profiling import active_profile

_last: Auto | None = None


def auto(
    model: torch.nn.Module | None = None,
    *,
    device: torch.device | str | None = None,
    iterations: int = 5,
    threads: int = 1,
    time_limit: float = 5.0,
    exchanges: int = 6,
    tolerance: float = 0.05,
) -> Auto:
    """Plans the run by itself: one call, before training, and no other.

    Records iterations while torch serves, solves a plan in the background, and puts it into force
    at the end of an iteration if it saves memory. If the program changes so that requests
    persistently need memory beside the pool, it records and plans again. Each change is one line on
    stderr.

    Results do not change. A plan goes into force only if it should need less memory than torch's
    allocator; docs/auto.md, Limits, says where a run may need more all the same. An explicit
    `stalloc.enable`, `profile` or `disable` takes over: the automatic ends. A second call returns
    the automatic that is on. `STALLOC_AUTO=0` in the environment turns it off.

    Args:
        model: The module whose training forward begins a microbatch. None takes the outermost
            module that is called first.
        device: The device to plan. None is the model's; without a model the GPU if torch finds one,
            else the CPU.
        iterations: Iterations to record, at least 3.
        threads: The most cores that planning may keep busy. After the first plan it gets only the
            time that nothing else needs.
        time_limit: The most seconds to look for a better plan than the first one. It is no longer
            than the recording took.
        exchanges: The most exchanges of plans in an hour, beside one after the first, short search.
        tolerance: The share of the plan's memory that requests may need beside the pool before the
            plan counts as outgrown.

    Returns:
        An object with `stop()` and `status()`, and a context manager that stops at its end.

    Raises:
        TypeError: The model is no module.
        ValueError: An option is out of range.
        StallocError: A profile is being recorded, a plan is in force, or stalloc does not serve the
            device.
    """
    global _last
    options = AutoOptions(
        iterations=iterations,
        threads=threads,
        time_limit=time_limit,
        exchanges=exchanges,
        tolerance=tolerance,
    )
    _adapters.check_model(model)
    if isinstance(_automatic.current, Auto) and _automatic.current.enabled:
        return _automatic.current
    if active_profile() is not None:
        raise StallocError("a profile is being recorded; leave its `with` block before auto()")
    if session.current_session() is not None:
        raise StallocError("a plan is in force; call stalloc.disable() before auto()")
    if device is None and model is None and torch.cuda.is_available():
        device = "cuda"
    on = not switched_off()
    _last = Auto(model, _adapters.device_of(model, device), options, on)
    return _last


def status() -> AutoStatus:
    """The state of `stalloc.auto`: its stage, why, and every change of plan."""
    return _last.status() if _last is not None else nothing()
