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
from typing import TYPE_CHECKING, Any

from stalloc.errors import (
    NotSupportedError,
    OutOfMemory,
    PlanError,
    StallocError,
    StallocWarning,
    TraceError,
)
from stalloc.planfile import Plan
from stalloc.planner import Solution, plan
from stalloc.statistics import (
    MemoryStats,
    empty_cache,
    memory_stats,
    memory_summary,
    reset_peak_memory_stats,
)
from stalloc.trace import IterationProfile, Trace

if TYPE_CHECKING:
    from stalloc import hooks
    from stalloc._compat import install_compat
    from stalloc.monitor import StatsLogger, log_stats
    from stalloc.profiling import Profile, profile
    from stalloc.session import Session, acquire_pool, disable, enable, release_pool, step

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

# What needs torch is imported on first use: planning, importing and replaying do without, and
# importing torch takes longer than all of them.
_WITH_TORCH = {
    "StatsLogger": "monitor",
    "log_stats": "monitor",
    "Profile": "profiling",
    "profile": "profiling",
    "Session": "session",
    "acquire_pool": "session",
    "disable": "session",
    "enable": "session",
    "install_compat": "_compat",
    "release_pool": "session",
    "step": "session",
}


def __getattr__(name: str) -> Any:
    if name == "hooks":
        return importlib.import_module("stalloc.hooks")
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"stalloc.{_WITH_TORCH[name]}"), name)
    return value
