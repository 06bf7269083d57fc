"""torchtitan: a stand-in for its Trainer, which does not import where there is no GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from isolation import isolated
from trainers import Run, assert_served, loss_of, network, phases_of, prepare, tokens

import stalloc
import stalloc.integrations.torchtitan
from stalloc.driver import Stage
from stalloc.errors import StallocError, StallocWarning

MICROBATCHES = 2


class Trainer:
    """Has what torchtitan's has, of what the integration looks at."""

    def __init__(self, graphs: bool = False) -> None:
        self.model_parts = [network()]
        self.parallel_dims = SimpleNamespace(pp=1, dp_shard=1, tp=1)
        self.gradient_accumulation_steps = MICROBATCHES
        self.config = SimpleNamespace(training=SimpleNamespace(disable_cuda_graphs=not graphs))
        self.optimizer = torch.optim.AdamW(self.model_parts[0].parameters(), lr=1e-3)
        self.run = Run()

    def train_step(self, batches: Any) -> None:
        self.optimizer.zero_grad()
        for _ in range(self.gradient_accumulation_steps):
            loss = loss_of(self.model_parts[0], next(batches))
            loss.backward()
            self.run.losses.append(loss.item())
        self.optimizer.step()

    def train(self, steps: int = 10) -> Run:
        batches = iter(tokens().split(4))
        for _ in range(steps):
            self.train_step(batches)
        return self.run.keep(self.model_parts[0])


def pretend() -> None:
    """Makes the stand-in importable where the real one would be."""
    prepare()
    for name in ("torchtitan", "torchtitan.trainer"):
        sys.modules[name] = ModuleType(name)
    sys.modules["torchtitan.trainer"].Trainer = Trainer  # type: ignore[attr-defined]


@isolated
def test_one_run_profiles_plans_and_is_served(tmp_path: Path) -> None:
    pretend()
    plain = Trainer().train()
    original = Trainer.train_step
    driver = stalloc.integrations.torchtitan.install("auto", tmp_path, warmup=2)
    assert stalloc.integrations.torchtitan.install() is driver
    plain.assert_same(Trainer().train())
    assert driver.stage is Stage.SERVING
    assert_served(10 - 2 - 3)
    wanted = {(kind, i, 0) for kind in ("forward", "backward") for i in range(MICROBATCHES)}
    phases = phases_of(str(tmp_path / "mb2.rank0.trace.json"))
    assert {phase for phase in phases if phase[0] in ("forward", "backward")} == wanted
    stalloc.integrations.torchtitan.uninstall()
    assert Trainer.train_step is original


@isolated
def test_cuda_graphs_are_left_alone() -> None:
    pretend()
    driver = stalloc.integrations.torchtitan.install("auto")
    with pytest.warns(StallocWarning, match="disable_cuda_graphs"):
        Trainer(graphs=True).train(steps=1)
    assert driver.stage is Stage.OFF


@isolated
def test_without_torchtitan_there_is_an_error_that_says_so() -> None:
    sys.modules["torchtitan"] = None  # type: ignore[assignment]
    with pytest.raises(StallocError, match="install torchtitan"):
        stalloc.integrations.torchtitan.install()
