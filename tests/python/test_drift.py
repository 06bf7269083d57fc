"""The measurement of drift: its runs are those that a recording would have made."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "workloads"))

from configs import Config, Parallelism
from drift import report
from drift.evaluation import Row, evaluate
from drift.run import trace_of
from drift.template import Template, make
from models import QWEN15_MOE
from rank import record_run
from router_drift import DRIFTS

MOE = Config(
    replace(QWEN15_MOE, layers=4, sequence=1024), Parallelism(4, 2, 1, 8, 4, expert=4), "n"
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return make(MOE, tmp_path_factory.mktemp("drift"))


@pytest.mark.parametrize("drift", DRIFTS)
def test_a_derived_run_has_the_requests_of_a_recorded_one(template: Template, drift: str) -> None:
    config = replace(MOE, seed=2, drift=DRIFTS[drift])
    derived = trace_of(template, config, (1, 5)).requests
    recorded = record_run(config, (0, 1, 5)).requests
    for column in ("size", "lower", "upper", "phase_begin", "phase_end", "dynamic"):
        assert np.array_equal(getattr(derived, column), getattr(recorded, column)), column


def test_a_drift_is_complete_after_its_iterations() -> None:
    start = np.random.default_rng(0).standard_normal(1000)
    turned = DRIFTS["turn"].apply(start, 1, 0, 50)
    assert abs(np.corrcoef(start, turned)[0, 1]) < 0.1
    assert np.allclose(DRIFTS["skew"].apply(start, 1, 0, 50), 3 * start)
    walked = DRIFTS["walk"].apply(start, 1, 0, 50) - start
    assert walked.std() == pytest.approx(1.0, abs=0.1)
    for drift in DRIFTS.values():
        assert np.array_equal(drift.apply(start, 1, 0, 0), start)


def test_a_run_that_drifts_stays_below_expandable_segments(template: Template) -> None:
    row = evaluate(template, "walk+skew", 1, (1, 2, 3, 10, 30, 50))
    assert row.load <= row.stalloc < row.torch
    assert row.efficiency >= report.LEAST_EFFICIENCY
    assert row.stalloc < row.expandable


def test_the_report_counts_the_runs_that_meet_the_targets() -> None:
    row = Row("rank", "walk", 1, 6, 97, 120, 101, 99, 98, 0.1)
    text = report.render([row, replace(row, seed=2, stalloc=110)])
    assert "| Reserves less than expandable segments | 1 of 2 |" in text
    assert "1 of 2; the lowest is 0.8818 (rank, walk, seed 2)" in text
