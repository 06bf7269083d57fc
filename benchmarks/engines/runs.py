"""The runs of a trainer and an engine, each for a process of its own."""

from __future__ import annotations

from typing import Any

import stalloc
from engines.grpo import Job
from stalloc.replaying import replay_torch

PROFILED = 5
Figures = dict[str, Any]


def run_torch(switches: int) -> Figures:
    """The requests of the whole run under torch's policy, and its results."""
    job = Job()
    for _ in range(PROFILED):
        job.step(job.taking_turns)
    with stalloc.profile(job.model) as prof:
        for _ in range(switches):
            job.step(job.taking_turns)
            prof.step()
    rows = []
    for name, expandable in (("torch", False), ("expandable segments", True)):
        replayed = replay_torch(prof.trace, expandable_segments=expandable)
        rows.append(
            {
                "allocator": name,
                "load": replayed.peak_load,
                "reserved": replayed.peak_reserved,
            }
        )
    return {"losses": job.losses, "rows": rows}


def run_stalloc(switches: int) -> Figures:
    """The figures of a run of which the first iterations are profiled."""
    job = Job()
    with stalloc.profile(job.model) as prof:
        for _ in range(PROFILED):
            job.step(job.taking_turns)
            prof.step()
    stalloc.enable(prof.plan(), model=job.model)
    stranded: list[int] = []

    def observe() -> None:
        stats = stalloc.memory_stats()
        stranded.append(stats["reserved"] - stats["allocated"])

    job.engine.observe = observe
    for _ in range(switches):
        job.step(lambda: stalloc.phase("rollout", engine=job.engine))
        stalloc.step()
    stats = stalloc.memory_stats()
    return {
        "losses": job.losses,
        "allocator": "stalloc",
        "load": stats["run_peak_allocated"],
        "reserved": stats["run_peak_reserved"],
        "pool": stats["pool"],
        "stranded": max(stranded),
        "hit_rate": stats["hit_rate"],
        "phases": stalloc.phase_stats()["rollout"],
    }
