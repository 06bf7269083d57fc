"""Plans the address of every tensor of a training iteration ahead of time.

Example:
    with stalloc.profile(model) as prof:
        for _ in range(3):
            train_step(next(batches))
            prof.step()
    plan = prof.plan()
    stalloc.enable(plan)
    for batch in batches:
        train_step(batch)
        stalloc.step()
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stalloc import hooks
    from stalloc._compat import install_compat
    from stalloc.errors import (
        NotSupportedError,
        OutOfMemory,
        PlanError,
        StallocError,
        StallocWarning,
        TraceError,
    )
    from stalloc.monitor import StatsLogger, log_stats
    from stalloc.planfile import Plan
    from stalloc.planner import Solution, plan
    from stalloc.profiling import Profile, profile
    from stalloc.session import Session, acquire_pool, disable, enable, release_pool, step
    from stalloc.statistics import (
        MemoryStats,
        empty_cache,
        memory_stats,
        memory_summary,
        reset_peak_memory_stats,
    )
    from stalloc.trace import IterationProfile, Trace

__version__ = "0.1.0"

__all__ = [
    "IterationProfile",
    "MemoryStats",
    "NotSupportedError",
    "OutOfMemory",
    "Plan",
    "PlanError",
    "Profile",
    "Session",
    "Solution",
    "StallocError",
    "StallocWarning",
    "StatsLogger",
    "Trace",
    "TraceError",
    "acquire_pool",
    "disable",
    "empty_cache",
    "enable",
    "hooks",
    "install_compat",
    "log_stats",
    "memory_stats",
    "memory_summary",
    "plan",
    "profile",
    "release_pool",
    "reset_peak_memory_stats",
    "step",
]

# Everything is imported on first use. Importing torch takes longer than planning does, and while
# NumPy and the core are imported a Ctrl-C would end in a traceback: `__main__` is there by then.
_MODULE_OF = {
    "NotSupportedError": "errors",
    "OutOfMemory": "errors",
    "PlanError": "errors",
    "StallocError": "errors",
    "StallocWarning": "errors",
    "TraceError": "errors",
    "StatsLogger": "monitor",
    "log_stats": "monitor",
    "Plan": "planfile",
    "Solution": "planner",
    "plan": "planner",
    "Profile": "profiling",
    "profile": "profiling",
    "Session": "session",
    "acquire_pool": "session",
    "disable": "session",
    "enable": "session",
    "release_pool": "session",
    "step": "session",
    "MemoryStats": "statistics",
    "empty_cache": "statistics",
    "memory_stats": "statistics",
    "memory_summary": "statistics",
    "reset_peak_memory_stats": "statistics",
    "IterationProfile": "trace",
    "Trace": "trace",
    "install_compat": "_compat",
}

_MODULES = {"errors", "hooks", "planfile", "planner", "statistics", "tables", "trace"}


def __getattr__(name: str) -> Any:
    if name == "_core":
        return _compiled_part()
    if name in _MODULES:
        return importlib.import_module(f"stalloc.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"stalloc.{_MODULE_OF[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def _compiled_part() -> Any:
    """What `from stalloc import _core` comes for, in whichever module is first."""
    name = f"{__name__}._core"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
    here = Path(__file__).parents[1]
    raise ImportError(
        f"stalloc was found as source code in {here}, and its C++ extension is not built there. "
        "Build and install it with `pip install .` in that folder; if it is installed already, "
        "start Python in another one",
        name=name,
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
