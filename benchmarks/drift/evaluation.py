"""Replays runs whose router drifts under every allocator.

Rows of torch come from the model of its policy. stalloc has one plan, of the run's first
iterations. It is in force from the beginning, as a plan of an earlier run is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from configs import Config
from router_drift import DRIFTS

from drift.run import trace_of
from drift.template import Template
from stalloc.replaying import replay_stalloc, replay_torch

PROFILED = (1, 2, 3)
"""Iterations that the plan is made of."""


@dataclass(frozen=True)
class Row:
    """One run. Figures are bytes, at the peak over the whole run with start-up.

    Attributes:
        workload: The rank.
        drift: The kind of drift.
        seed: Of the routing.
        iterations: The number of iterations after the warm-up.
        load: Live at once, as asked.
        torch: Reserved by torch's allocator.
        expandable: The same with expandable segments.
        stalloc: By stalloc.
        planned: Of the plan: its pool and resident region.
        seconds: CPU time of stalloc's replay.
    """

    workload: str
    drift: str
    seed: int
    iterations: int
    load: int
    torch: int
    expandable: int
    stalloc: int
    planned: int
    seconds: float

    @property
    def efficiency(self) -> float:
        """The load, divided by the bytes that stalloc reserves at its peak."""
        return self.load / self.stalloc


def evaluate(template: Template, drift: str, seed: int, iterations: Sequence[int]) -> Row:
    """One run of a rank."""
    config: Config = replace(template.config, seed=seed, drift=DRIFTS[drift])
    plan = trace_of(template, config, PROFILED).plan()
    run = trace_of(template, config, iterations)
    torch = replay_torch(run)
    expandable = replay_torch(run, expandable_segments=True)
    began = time.process_time()
    ours = replay_stalloc(run, plan)
    return Row(
        workload=template.config.name,
        drift=drift,
        seed=seed,
        iterations=len(iterations),
        load=ours.peak_load,
        torch=torch.peak_reserved,
        expandable=expandable.peak_reserved,
        stalloc=ours.peak_reserved,
        planned=plan.pool + plan.resident,
        seconds=round(time.process_time() - began, 2),
    )
