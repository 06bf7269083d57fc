"""Logging how well a plan serves."""

from __future__ import annotations

import logging
import sys
import types
from typing import Any

import pytest
from isolation import isolated
from training import profiled_plan, twins

import stalloc


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Writer:
    def __init__(self) -> None:
        self.values: dict[int, dict[str, float]] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        assert global_step is not None
        self.values.setdefault(global_step, {})[tag] = scalar_value


@isolated
def test_figures_are_logged_every_so_many_iterations() -> None:
    _, planned = twins()
    plan = profiled_plan(planned)
    logger, records, writer = logging.Logger("mine", logging.INFO), Records(), Writer()
    logger.addHandler(records)
    rows: list[dict[str, float]] = []
    wandb: Any = types.ModuleType("wandb")
    wandb.run, wandb.log = None, lambda row, commit: rows.append(row)
    sys.modules["wandb"] = wandb
    stalloc.enable(plan)
    with stalloc.log_stats(2, logger=logger, tensorboard=writer):
        for step in range(7):
            if step == 5:
                wandb.run = object()
            planned.step()
    # The step of the optimizer comes before the end of its iteration: 0, 1, 2, ... are seen.
    assert [line.split(":")[0] for line in records.lines] == [
        "iteration 2",
        "iteration 4",
        "iteration 6",
    ]
    per_two = 2 * stalloc.memory_stats()["planned"]
    assert [v["stalloc/hits"] for v in writer.values.values()] == [per_two] * 3
    assert writer.values[6]["stalloc/misses"] == 0
    last = writer.values[6]
    assert last["stalloc/served_as_planned"] == per_two
    assert last["stalloc/hit_rate"] == per_two / last["stalloc/requests"] <= 1.0
    assert len(rows) == 1, "there was a run only for the last"
    assert rows[0]["stalloc/hits"] == per_two
    for _ in range(4):
        planned.step()
    assert len(records.lines) == 3, "it was stopped"


@isolated
def test_another_plan_begins_anew() -> None:
    _, planned = twins()
    plan = profiled_plan(planned)
    logger, records = logging.Logger("mine", logging.INFO), Records()
    logger.addHandler(records)
    with stalloc.log_stats(3, logger=logger):
        planned.step()
        stalloc.enable(plan)
        for _ in range(5):
            planned.step()
        stalloc.enable(plan)
        for _ in range(4):
            planned.step()
    assert [line.split(":")[0] for line in records.lines] == ["iteration 3", "iteration 3"]


def test_every_no_iteration_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="from 1"):
        stalloc.log_stats(0)
