"""The time of a step under each allocator, in turns in one process.

Processes differ by more than allocators do: so one process trains on, and the allocator changes
between blocks of steps. "again" is torch's allocator a second time: it shows the noise. The
optimizer's steps have length 0: with weights that stay, each turn has the same work, also where a
router decides on it.
"""

from __future__ import annotations

import time
from statistics import median, quantiles
from typing import Any

import torch
from training import Run

import stalloc

SIDES = ("torch", "stalloc", "expandable", "again")
UNMEASURED = 2  # steps after each change


def measure(run: Run, seconds: float) -> dict[str, Any]:
    """Trains in turns under each side; returns seconds a step and their ratios to torch's.

    Args:
        run: The training; its `steps` are those of one turn.
        seconds: Begin no round of turns after so many.
    """
    end = time.monotonic() + seconds
    torch.manual_seed(0)
    model, optimizer = run.make()
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    with stalloc.profile(model, device=run.device, exact=False) as prof:
        for step in range(run.profiled):
            run.step(model, optimizer, step)
    plan = prof.plan(streams=run.streams)
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    figures: dict[str, Any] = {}
    rounds = 0
    while rounds < 2 or time.monotonic() < end:
        turns = SIDES if rounds % 2 == 0 else SIDES[::-1]
        for side in turns:
            times[side].append(_turn(run, model, optimizer, side, plan, figures))
        rounds += 1
    base = times["torch"]
    return {
        "plan": {"pool": plan.pool, "gap": plan.gap},
        "rounds": rounds,
        "steps": run.steps,
        "step_seconds": {side: median(times[side]) for side in SIDES},
        "ratio": {
            side: _spread([a / b for a, b in zip(times[side], base, strict=True)])
            for side in SIDES[1:]
        },
        **figures,
    }


def _set_allocator(settings: str) -> None:
    newer = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    (newer or torch.cuda.memory._set_allocator_settings)(settings)


def _spread(ratios: list[float]) -> dict[str, float]:
    low, _, high = quantiles(ratios, n=4, method="inclusive")
    return {"median": median(ratios), "low": low, "high": high}


def _turn(
    run: Run,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    side: str,
    plan: stalloc.Plan,
    figures: dict[str, Any],
) -> float:
    """Seconds a step: the median of a turn."""
    gpu = run.device.startswith("cuda")
    if gpu:
        torch.cuda.empty_cache()
        expandable = "True" if side == "expandable" else "False"
        _set_allocator(f"expandable_segments:{expandable}")
    if side == "stalloc":
        stalloc.enable(plan, model=model)
    try:
        times = []
        for step in range(UNMEASURED + run.steps):
            start = time.perf_counter()
            run.step(model, optimizer, step)
            if gpu:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        if side == "stalloc":
            ours = stalloc.memory_stats(run.device)
            figures["hit_rate"] = ours["hit_rate"]
            figures["fallback_requests"] = ours["fallback_requests"]
    finally:
        if side == "stalloc":
            stalloc.disable()
    return median(times[UNMEASURED:])
