"""The measurement of programs whose batches change in shape, with small models."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from changing.programs import CASES, Case, record

from stalloc.hooks import PhaseKind
from stalloc.replaying import replay_stalloc, replay_torch

NAMES = {case.name: case for case in CASES}
# The least share of the load.
LEAST_EFFICIENCY = 0.98


def small(name: str, **changes: object) -> Case:
    return replace(NAMES[name], layers=2, iterations=12, **changes)  # type: ignore[arg-type]


def test_a_profile_is_the_beginning_of_its_run() -> None:
    case = small("budget, 2 microbatches")
    profile, run = (record(case, 1, profiled=profiled) for profiled in (True, False))
    begun = run.requests.lower < profile.iterations[-1]
    for column in ("size", "lower", "phase_begin"):
        expected = getattr(profile.requests, column)[: begun.sum()]
        assert np.array_equal(expected, getattr(run.requests, column)[begun]), column


def test_batches_of_a_budget_have_no_more_tokens() -> None:
    run = record(small("budget, longest not profiled"), 2, profiled=False)
    shapes = [tuple(values) for values in run.extents.values.tolist()]
    assert len(set(shapes)) > 6
    assert all(rows * length <= 8192 for rows, length in shapes)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "name", ["budget of tokens", "budget, 2 microbatches", "budget, longest not profiled"]
)
def test_a_budget_needs_no_more_than_its_largest_batch(name: str, seed: int) -> None:
    case = small(name)
    plan = record(case, seed, profiled=True).plan()
    run = record(case, seed, profiled=False)
    ours = replay_stalloc(run, plan)
    assert ours.peak_load >= LEAST_EFFICIENCY * ours.peak_reserved
    assert ours.peak_reserved <= replay_torch(run, expandable_segments=True).peak_reserved
    assert ours.peak_reserved <= replay_torch(run).peak_reserved


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "name",
    [
        "padded to 64",
        "padded to 128, longest not profiled",
        "experts",
        "experts, longest profiled",
        "experts, recomputed",
    ],
)
def test_scores_that_the_loop_keeps_need_no_more(name: str, seed: int) -> None:
    case = small(name)
    plan = record(case, seed, profiled=True).plan()
    assert len(plan.turns) >= 1
    run = record(case, seed, profiled=False)
    ours = replay_stalloc(run, plan)
    assert ours.peak_load >= LEAST_EFFICIENCY * ours.peak_reserved
    assert ours.peak_reserved <= replay_torch(run, expandable_segments=True).peak_reserved
    assert ours.peak_reserved <= replay_torch(run).peak_reserved


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "case",
    [
        small("evaluations"),
        small("evaluations without eval()"),
        small("evaluations of an average"),
        NAMES["evaluations, longest not profiled"],
    ],
    ids=["small", "small-without-eval", "average", "all"],
)
def test_evaluations_between_lengths_need_no_more(case: Case, seed: int) -> None:
    plan = record(case, seed, profiled=True).plan()
    run = record(case, seed, profiled=False)
    ours = replay_stalloc(run, plan)
    assert ours.peak_load >= LEAST_EFFICIENCY * ours.peak_reserved
    assert ours.peak_reserved <= replay_torch(run, expandable_segments=True).peak_reserved
    assert ours.peak_reserved <= replay_torch(run).peak_reserved


def test_each_forward_of_an_evaluation_is_a_stretch_of_its_own() -> None:
    run = record(small("evaluations"), 0, profiled=False)
    # Three evaluations: the stretch before the first forward, then three forwards.
    assert np.sum(run.phases.kind == PhaseKind.UNPLANNED) == 3 * 4


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("microbatches", [2, 3, 4])
@pytest.mark.parametrize("recompute", [False, True])
def test_microbatches_of_a_budget_need_no_more(
    recompute: bool, microbatches: int, seed: int
) -> None:
    case = small(
        "budget, longest not profiled", kept=False, microbatches=microbatches, recompute=recompute
    )
    plan = record(case, seed, profiled=True).plan()
    run = record(case, seed, profiled=False)
    ours = replay_stalloc(run, plan)
    assert ours.peak_load >= LEAST_EFFICIENCY * ours.peak_reserved
    assert ours.peak_reserved <= replay_torch(run, expandable_segments=True).peak_reserved
