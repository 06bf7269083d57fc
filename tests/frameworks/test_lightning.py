"""Lightning's own Trainer, with and without the callback."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from isolation import isolated
from torch.utils.data import DataLoader
from trainers import Run, assert_served, loss_of, network, phases_of, prepare, tokens

import stalloc
from stalloc.driver import Stage
from stalloc.options import Options
from stalloc.session import current_session


def train(
    folder: Path, callbacks: list[Any], manual: bool = False, steps: int = 12, every: int = 7
) -> Run:
    import lightning.pytorch as pl

    prepare()
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    run = Run()

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network()
            self.automatic_optimization = not manual

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            loss = loss_of(self.network, batch)
            run.losses.append(loss.item())
            if manual:
                optimizer = self.optimizers()
                self.manual_backward(loss / 2)
                if index % 2:
                    optimizer.step()
                    optimizer.zero_grad()
            return loss

        def validation_step(self, batch: torch.Tensor, index: int) -> None:
            run.losses.append(loss_of(self.network, batch).item())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.network.parameters(), lr=1e-3)

    checkpoint = pl.callbacks.ModelCheckpoint(folder / "output", every_n_train_steps=9)
    trainer = pl.Trainer(
        max_steps=steps,
        accelerator="cpu",
        accumulate_grad_batches=1 if manual else 2,
        callbacks=[*callbacks, checkpoint],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        val_check_interval=2 * every,  # batches
        check_val_every_n_epoch=None,
    )
    module = Module()
    trainer.fit(module, DataLoader(tokens(), 4), DataLoader(tokens(10), 4))
    assert "save_checkpoint" not in vars(trainer)
    return run.keep(module)


@pytest.mark.parametrize("manual", [False, True])
@isolated
def test_one_run_profiles_plans_and_is_served(tmp_path: Path, manual: bool) -> None:
    """With validations, checkpoints and a second callback, which does nothing."""
    from stalloc.integrations.lightning import StallocCallback

    plain = train(tmp_path, [], manual)
    callback, second = StallocCallback(warmup=1), StallocCallback(warmup=1)
    planned = train(tmp_path, [callback, second], manual)
    plain.assert_same(planned)
    assert_served(iterations=12 - 1 - 4)
    assert stalloc.memory_stats()["idle_requests"] > 0, "the validations'"
    assert callback.driver.stage is Stage.OFF, "when training ends, so does the plan"
    assert current_session() is None
    assert second.driver.stage is Stage.OFF


@pytest.mark.parametrize("every", [1, 2, 3])
@isolated
def test_validations_between_steps_leave_the_plan_as_it_is(tmp_path: Path, every: int) -> None:
    """Lightning zeroes gradients before one, which else live on into the next iteration."""
    from stalloc.integrations.lightning import StallocCallback

    plain = train(tmp_path, [], every=every)
    planned = train(tmp_path, [StallocCallback(warmup=1)], every=every)
    plain.assert_same(planned)
    assert_served(iterations=12 - 1 - 4)
    assert stalloc.memory_stats()["idle_requests"] > 0, "the validations'"


@isolated
def test_next_run_is_served_from_the_profiled_plan(tmp_path: Path) -> None:
    from stalloc.integrations.lightning import StallocCallback

    folder = tmp_path / "plans"
    train(tmp_path, [StallocCallback("profile", folder)], steps=7)
    names = {path.name for path in folder.iterdir()}
    assert names == {"mb2-mbs4.rank0.trace.json", "mb2-mbs4.rank0.plan.json"}
    plain = train(tmp_path, [])
    planned = train(tmp_path, [StallocCallback("plan", folder)])
    plain.assert_same(planned)
    assert_served(iterations=12 - Options.serve_from)
    phases = phases_of(str(folder / "mb2-mbs4.rank0.trace.json"))
    assert {("forward", i, 0) for i in range(2)} <= phases
    assert {("backward", i, 0) for i in range(2)} <= phases
    assert not any(microbatch > 1 for _, microbatch, _ in phases)


@isolated
def test_a_failure_ends_the_plan(tmp_path: Path) -> None:
    import lightning.pytorch as pl

    from stalloc.integrations.lightning import StallocCallback

    class Fails(pl.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 5:
                raise KeyError("as told")

    callback = StallocCallback(warmup=0, iterations=2)
    with pytest.raises(KeyError, match="as told"):
        train(tmp_path, [callback, Fails()])
    assert stalloc.memory_stats()["iterations"] == 3
    assert callback.driver.stage is Stage.OFF
    assert current_session() is None
    train(tmp_path, [StallocCallback(warmup=0, iterations=3)], steps=5)
    assert_served(iterations=2)
