"""Measures a program: its plan, its run under each allocator, and the files of its recordings."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

import stalloc
from programs.registry import PROFILED, Program, record
from stalloc.replaying import replay_stalloc, replay_torch


@dataclass(frozen=True)
class Row:
    """A run under each allocator.

    Attributes:
        program: Its name.
        seed: The seed of the sizes.
        iterations: The length of the run.
        load: The most bytes live at once.
        torch: The most bytes that torch's allocator holds.
        expandable: The same with expandable segments.
        stalloc: The same with a plan of the first iterations.
        waits: For stalloc, how often the run waits for the device.
        calls: For stalloc, calls of the driver.
        torch_calls: For torch's allocator.
        expandable_calls: For expandable segments.
        hit_rate: The share of static requests that the plan served at their address.
        requests: The number of all.
        plan_seconds: The time to make the plan.
    """

    program: str
    seed: int
    iterations: int
    load: int
    torch: int
    expandable: int
    stalloc: int
    waits: int
    calls: int
    torch_calls: int
    expandable_calls: int
    hit_rate: float
    requests: int
    plan_seconds: float

    @property
    def best(self) -> int:
        """The bytes of the better one of torch's allocators."""
        return min(self.torch, self.expandable)

    @property
    def excess(self) -> float:
        """The bytes above the better one of torch's allocators, as a share of the load."""
        return (self.stalloc - self.best) / self.load

    @property
    def ratio(self) -> float:
        """The bytes of stalloc as a multiple of the load."""
        return self.stalloc / self.load

    def to_dict(self) -> dict[str, object]:
        """The fields and what follows from them, for a file."""
        return {**asdict(self), "excess": round(self.excess, 5), "ratio": round(self.ratio, 5)}


def measure(
    case: Program, seed: int, iterations: int, *, fallback: str, recordings: Path | None
) -> Row:
    """Replays a run under each allocator.

    Args:
        case: The program.
        seed: The seed of its sizes.
        iterations: The length of the run.
        fallback: The allocator of the requests outside stalloc's pool.
        recordings: The folder of traces; None keeps none. A trace that is there is taken as it is,
            so a changed program needs its old traces removed.
    """
    profile = _recorded(case, seed, PROFILED, "profile", recordings)
    run = _recorded(case, seed, iterations, f"run-{iterations}", recordings)
    begun = time.perf_counter()
    plan = profile.plan()
    seconds = time.perf_counter() - begun
    torch = replay_torch(run)
    expandable = replay_torch(run, expandable_segments=True)
    ours = replay_stalloc(run, plan, fallback=fallback)
    return Row(
        program=case.name,
        seed=seed,
        iterations=iterations,
        load=ours.peak_load,
        torch=torch.peak_reserved,
        expandable=expandable.peak_reserved,
        stalloc=ours.peak_reserved,
        waits=ours.moves,
        calls=ours.native_calls,
        torch_calls=torch.native_calls,
        expandable_calls=expandable.native_calls,
        hit_rate=round(ours.hit_rate or 0.0, 4),
        requests=len(run.requests.size),
        plan_seconds=round(seconds, 2),
    )


def _recorded(
    case: Program, seed: int, iterations: int, part: str, folder: Path | None
) -> stalloc.Trace:
    if folder is None:
        return record(case, seed, iterations)
    path = folder / f"{case.name}.{seed}.{part}.json"
    if path.exists():
        return stalloc.Trace.load(path)
    trace = record(case, seed, iterations)
    folder.mkdir(parents=True, exist_ok=True)
    trace.save(path)
    return trace
