"""The searches of `stalloc.auto`: a short one for the first plan, longer ones beside the run."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from isolation import isolated
from test_auto import Silent, train
from training import Model, assert_same

import stalloc
from stalloc._auto.background import Background
from stalloc.plans import Plan
from stalloc.trace import Trace

POOR = "first-fit-start"
"""A planner that wastes a tenth of the pool of this file's model."""


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_only_short_work_has_the_priority_of_training() -> None:
    short = Background(lambda goes_on: priority(), 1, is_short=True)
    longer = Background(lambda goes_on: priority(), 1)
    assert short.result() == priority()
    assert longer.result() == 19


def changes_with(poor: int) -> list[dict[str, Any]]:
    """Trains with and without `auto`, whose first `poor` searches find poor plans."""
    plan_of = Trace.plan
    limits: list[float] = []

    def plan(self: Trace, *, time_limit: float, **options: Any) -> Plan:
        limits.append(time_limit)
        algorithm = POOR if len(limits) <= poor else None
        return plan_of(self, algorithm, time_limit=time_limit, **options)

    trainer, plain = Silent(Model(width=128)), Silent(Model(width=128))
    plain.model.load_state_dict(trainer.model.state_dict())
    with pytest.MonkeyPatch.context() as patch, stalloc.auto(iterations=3, exchanges=0) as auto:
        patch.setattr(Trace, "plan", plan)
        train(auto, trainer, 12)
        status = auto.status()
    train(None, plain, 12)
    assert_same(plain, trainer)
    assert status["stage"] == "serving"
    assert limits[0] <= 0.1, "the first search is a short one"
    return status["changes"]


@isolated
def test_a_longer_search_follows_a_poor_plan() -> None:
    poor, left, better = changes_with(poor=1)
    assert better["pool"] < 0.95 * poor["pool"]
    assert [change["in_force"] for change in (poor, left, better)] == [True, False, True]
    assert "longer search" in left["reason"]
    assert "longer search" in better["reason"]


@isolated
def test_a_search_that_finds_nothing_better_is_the_last() -> None:
    assert [change["in_force"] for change in changes_with(poor=100)] == [True]


@isolated
def test_a_plan_that_meets_its_bound_ends_the_search() -> None:
    assert [change["in_force"] for change in changes_with(poor=0)] == [True]
