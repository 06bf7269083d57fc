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

from stalloc import hooks
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
from stalloc.session import Session, disable, enable, step
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
    "disable",
    "empty_cache",
    "enable",
    "hooks",
    "log_stats",
    "memory_stats",
    "memory_summary",
    "plan",
    "profile",
    "reset_peak_memory_stats",
    "step",
]
