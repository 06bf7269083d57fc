"""Trainers whose batches change: identical to the bit, served as planned, within the load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from changing_trainers import NAMES, program
from isolation import run_isolated
from trainers import Run

import stalloc
from stalloc import _core

TARGET = 0.99  # hits, of all requests
# The pool's alignment and the segments of the fallback, which a toy model feels.
SLACK = 1 << 20


def train(name: str, folder: Path, planned: bool) -> tuple[Run, dict[str, Any]]:
    run = program(name)(folder, planned)
    _core.runtime("cpu").check()
    return run, dict(stalloc.memory_stats())


@pytest.mark.parametrize("name", NAMES)
def test_unseen_shapes_are_served_as_planned(name: str, tmp_path: Path) -> None:
    plain, _ = run_isolated(train, name, tmp_path, False)
    planned, stats = run_isolated(train, name, tmp_path, True)
    plain.assert_same(planned)
    assert stats["iterations"] > 10
    assert stats["strays"] == 0
    assert stats["run_peak_reserved"] <= 1.02 * stats["run_peak_allocated"] + SLACK
    assert stats["hit_rate"] >= TARGET, stats
