"""Two engines on one device: identical to the bit, within the load of both, nothing stranded."""

from __future__ import annotations

from pathlib import Path

import pytest
from isolation import run_isolated
from two_engines import MIB, train

import stalloc
import stalloc.integrations.trl

STEPS = 100
UNPLANNED = 5  # warm-up, and the profile


def test_trls_grpo_shares_the_device_with_an_engine(tmp_path: Path) -> None:
    plain, _ = run_isolated(train, tmp_path, STEPS, False)
    planned, figures = run_isolated(train, tmp_path, STEPS, True)
    plain.assert_same(planned)
    assert figures["rollouts"] == STEPS
    assert figures["released"] == STEPS - UNPLANNED
    assert figures["kept"] <= figures["released"] // 3
    assert figures["reserved"] <= 1.03 * figures["load"]
    assert figures["pool"] > 8 * MIB
    assert figures["stranded"] <= 8 * MIB


def test_trls_grpo_is_lent_the_pool_where_the_model_generates(tmp_path: Path) -> None:
    steps = 25
    plain, _ = run_isolated(train, tmp_path, steps, False, False)
    planned, figures = run_isolated(train, tmp_path, steps, True, False)
    plain.assert_same(planned)
    assert (figures["rollouts"], figures["released"]) == (steps, 0)
    assert figures["reserved"] <= 1.03 * figures["load"]


def test_a_trainer_without_samples_is_refused() -> None:
    with pytest.raises(stalloc.StallocError, match="object generates no samples"):
        stalloc.integrations.trl.share(object())
