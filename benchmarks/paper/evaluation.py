"""Replays one workload under every allocator.

torch's rows come from its own allocator if there is a CUDA build of torch, and GMLake's if there is
its source; else from the model of its policy. The allocators run alternately, so other load of the
machine affects all of them.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import real
from configs import Config
from events import events_of

import stalloc
from paper import authors, figures
from paper.recording import Recorded
from paper.rows import (
    AUTHORS,
    EXPANDABLE,
    GMLAKE,
    NO_REUSE,
    SETTINGS,
    STALLOC,
    TORCH,
    Row,
    with_setting,
)
from stalloc.replaying import Replay, replay_gmlake, replay_stalloc, replay_torch

ROUNDS = 3
"""Default number of times that each allocator is timed."""
STEP = 64 << 20
"""Bytes; how exactly the smallest capacity is found."""
_POLICIES = {TORCH: "", EXPANDABLE: "expandable_segments:True"}


@dataclass(frozen=True)
class Programs:
    """The programs that replay with real allocators; None for a missing one.

    Attributes:
        torch: The replay with torch's allocators.
        gmlake: The replay with GMLake's.
        synthesizer: The authors' planner.
        planned: The replay with stalloc's runtime, for its time.
        rounds: The number of measurements of each allocator's time.
    """

    torch: real.Torch | None = None
    gmlake: real.GMLake | None = None
    synthesizer: authors.Synthesizer | None = None
    planned: Path | None = None
    rounds: int = ROUNDS


def evaluate(workload: Recorded, programs: Programs) -> list[Row]:
    """All rows of one workload.

    Raises:
        RuntimeError: An allocator failed where nothing should run out.
    """
    config = workload.config
    trace = stalloc.Trace.load(workload.trace)
    profiled = trace
    if workload.profiled != workload.trace:
        profiled = stalloc.Trace.load(workload.profiled)
    plan, plan_seconds = _plan(profiled)
    ours = replay_stalloc(trace, plan)
    models = {
        name: replay_torch(trace, expandable_segments=name == EXPANDABLE) for name in _POLICIES
    }
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events"
        events_of(trace).tofile(events)
        plan_file = Path(folder) / "plan.json"
        plan.save(plan_file)
        timed = _times(programs, events, plan_file)
        rows = [
            _torch_row(config, trace, name, model, timed.get(name), programs, events)
            for name, model in models.items()
        ]
        rows.append(_gmlake_row(config, trace, programs.gmlake, events))
        if programs.torch is not None and figures.compares_settings(config):
            rows += [
                _tuned_row(config, trace, setting, programs.torch, events) for setting in SETTINGS
            ]
    rows.append(
        _row(
            config,
            trace,
            ours,
            allocator=STALLOC,
            seconds=_per_request(timed[STALLOC]) if STALLOC in timed else None,
            plan_seconds=plan_seconds,
            runs=lambda capacity: _planned_runs(trace, plan, capacity),
            plan=plan,
        )
    )
    if programs.synthesizer is not None and figures.compares_planner(config):
        rows.append(_authors_row(config, trace, ours, programs.synthesizer))
    if config.model.experts:
        rows.append(_without_reuse(config, trace, profiled))
    return rows


def _without_reuse(config: Config, trace: stalloc.Trace, profiled: stalloc.Trace) -> Row:
    plan, seconds = _plan(profiled, dynamic=False)
    return _row(
        config,
        trace,
        replay_stalloc(trace, plan, reuse=False),
        allocator=NO_REUSE,
        seconds=None,
        plan_seconds=seconds,
        runs=lambda capacity: _planned_runs(trace, plan, capacity, reuse=False),
        plan=plan,
    )


def _torch_row(
    config: Config,
    trace: stalloc.Trace,
    name: str,
    model: Replay,
    timed: list[dict[str, Any]] | None,
    programs: Programs,
    events: Path,
) -> Row:
    """A row of the real allocator where it ran, else of the model."""
    expandable = name == EXPANDABLE
    if timed is None:
        return _row(
            config,
            trace,
            model,
            allocator=name,
            seconds=None,
            runs=lambda capacity: bool(
                replay_torch(trace, expandable_segments=expandable, capacity=capacity).fits
            ),
            by="model",
        )
    assert programs.torch is not None
    torch, seen = programs.torch, timed[0]
    if seen["failed_request"] >= 0:
        raise RuntimeError(f"{config.name}: {name} ran out of {real.UNLIMITED:,} bytes")

    def runs(capacity: int) -> bool:
        policy = _POLICIES[name]
        done = real.run(torch.program, events, policy=policy, memory=capacity, cuda=torch.cuda)
        return bool(done["failed_request"] < 0)

    return _row(
        config,
        trace,
        _replay_of(seen, name),
        allocator=name,
        seconds=_per_request(timed),
        runs=runs,
        by=f"torch {torch.version}",
        model_reserved=model.peak_reserved,
    )


def _gmlake_row(
    config: Config, trace: stalloc.Trace, gmlake: real.GMLake | None, events: Path
) -> Row:
    """A row of GMLake with its defaults: its own allocator where it ran, else the model."""
    model = replay_gmlake(trace)
    seen, by, model_reserved = model, "model", None
    if gmlake is not None:
        done = real.run(gmlake.program, events)
        if done["failed_request"] >= 0:
            raise RuntimeError(f"{config.name}: GMLake ran out of {real.UNLIMITED:,} bytes")
        seen = replace(model, peak_load=done["load"], peak_reserved=done["reserved"])
        by, model_reserved = f"GMLake {gmlake.version}", model.peak_reserved
    return _row(
        config,
        trace,
        seen,
        allocator=GMLAKE,
        seconds=None,
        runs=lambda capacity: bool(replay_gmlake(trace, capacity=capacity).fits),
        by=by,
        model_reserved=model_reserved,
    )


def _authors_row(
    config: Config, trace: stalloc.Trace, ours: Replay, synthesizer: authors.Synthesizer
) -> Row:
    """A row of the authors' planner, whose plan has the start and all iterations."""
    reserved, seconds = authors.plan(trace, synthesizer)
    return _row(
        config,
        trace,
        replace(ours, peak_reserved=reserved, native_calls=0),
        allocator=AUTHORS,
        seconds=None,
        plan_seconds=seconds,
        runs=lambda capacity: reserved <= capacity,
        by=f"STAlloc {synthesizer.version}",
    )


def _tuned_row(
    config: Config, trace: stalloc.Trace, setting: str, torch: real.Torch, events: Path
) -> Row:
    """A row of the real allocator on the paper's GPU, with another setting."""

    def run(capacity: int) -> dict[str, Any]:
        return real.run(torch.program, events, policy=setting, memory=capacity, cuda=torch.cuda)

    return _row(
        config,
        trace,
        _replay_of(run(figures.capacity(config)), with_setting(setting)),
        allocator=with_setting(setting),
        seconds=None,
        runs=lambda capacity: bool(run(capacity)["failed_request"] < 0),
        by=f"torch {torch.version}",
    )


def _replay_of(seen: dict[str, Any], allocator: str) -> Replay:
    """The outcome of `torch_replay`."""
    calls = seen["native_calls"]
    return Replay(
        allocator=allocator,
        load=seen["load"],
        reserved=seen["reserved"],
        peak_load=seen["load"],
        peak_reserved=seen["reserved"],
        efficiency=seen["load"] / seen["reserved"],
        peak_efficiency=seen["load"] / seen["reserved"],
        native_calls=sum(calls.values()),
        mallocs=calls["malloc"],
        frees=calls["free"],
        maps=calls["map"],
        unmaps=calls["unmap"],
        moves=0,
        fits=None,
        failed_request=seen["failed_request"],
        failed_size=0,
    )


def _row(
    config: Config,
    trace: stalloc.Trace,
    seen: Replay,
    *,
    allocator: str,
    seconds: float | None,
    runs: Callable[[int], bool],
    plan_seconds: float | None = None,
    by: str = "stalloc",
    model_reserved: int | None = None,
    plan: stalloc.Plan | None = None,
) -> Row:
    capacity = figures.capacity(config)
    needs = None
    load, reserved = seen.peak_load, seen.peak_reserved
    if config.name in {c.name for c in figures.figures()["Table 1"].configs}:
        needs = smallest(runs, load, reserved)
    fits = seen.failed_request < 0 and (
        reserved <= capacity or (load <= capacity and runs(capacity))
    )
    last = trace.iterations[-2]
    return Row(
        workload=config.model.name,
        config=figures.config_label(config),
        stage="last" if config.last else "first",
        microbatch=config.parallelism.microbatch,
        allocator=allocator,
        load=load,
        reserved=reserved,
        efficiency=load / reserved,
        native_calls=seen.native_calls,
        seconds_per_request=seconds,
        plan_seconds=plan_seconds,
        requests=int((trace.requests.lower >= last).sum()),
        by=by,
        model_reserved=model_reserved,
        capacity=capacity,
        fits=fits,
        needs=needs,
        pool=plan.pool if plan else None,
        optimal=plan.optimal if plan else None,
        resident=plan.resident if plan else None,
    )


def _plan(trace: stalloc.Trace, *, dynamic: bool = True) -> tuple[stalloc.Plan, float]:
    """A plan as `Trace.plan` makes it by default, and the CPU time that it took.

    Without a proof that it is optimal, the search goes on to the default time limit.
    """
    with _one_core():
        cpu = time.process_time()
        plan = trace.plan(dynamic=dynamic)
        return plan, time.process_time() - cpu


@contextmanager
def _one_core() -> Iterator[None]:
    """Keeps the thread, and those it starts, on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[os.getpid() % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _planned_runs(
    trace: stalloc.Trace, plan: stalloc.Plan, capacity: int, *, reuse: bool = True
) -> bool:
    return bool(replay_stalloc(trace, plan, capacity=capacity, reuse=reuse).fits)


def _times(programs: Programs, events: Path, plan: Path) -> dict[str, list[dict[str, Any]]]:
    """The output of the programs, which run alternately."""
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(programs.rounds):
        if programs.torch is not None:
            torch = programs.torch
            for name, policy in _POLICIES.items():
                done = real.run(torch.program, events, policy=policy, cuda=torch.cuda)
                found.setdefault(name, []).append(done)
        if programs.planned is not None:
            found.setdefault(STALLOC, []).append(real.run(programs.planned, events, plan))
    return found


def _per_request(runs: list[dict[str, Any]]) -> float:
    """The median of all iterations after the warm-up."""
    return statistics.median(
        float(seconds) / int(requests)
        for run in runs
        for seconds, requests in list(zip(run["seconds"], run["requests"], strict=True))[1:]
    )


def smallest(runs: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest capacity at which it runs, to STEP; it does at `high`, and cannot below `low`.

    An allocator that runs at some capacity is taken to run at every larger one.
    """
    while high - low > STEP:
        middle = (low + high) // 2
        if runs(middle):
            high = middle
        else:
            low = middle
    return high
