"""Hugging Face's own Trainer, with a tiny GPT-2, with and without the callback."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from isolation import isolated
from trainers import LENGTH, VOCABULARY, Run, assert_served, phases_of, prepare, tokens

import stalloc
from stalloc.driver import Stage
from stalloc.options import Options
from stalloc.session import current_session


def train(
    folder: Path, callbacks: list[Any], steps: int = 12, layers: int = 2, **arguments: Any
) -> Run:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

    prepare()
    logging.disable(logging.WARNING)
    set_seed(0)
    sizes = {"n_embd": 32, "n_layer": layers, "n_head": 2, "n_positions": LENGTH + 1}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **sizes))
    data = [{"input_ids": row, "labels": row} for row in tokens()]
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(folder / "output"),
            max_steps=steps,
            per_device_train_batch_size=4,
            per_device_eval_batch_size=4,
            gradient_accumulation_steps=2,
            logging_steps=1,
            disable_tqdm=True,
            report_to=[],
            use_cpu=True,
            **{"save_strategy": "no", **arguments},
        ),
        train_dataset=data,
        eval_dataset=data[:12],
        callbacks=callbacks,
    )
    trainer.train()
    log = trainer.state.log_history
    losses = [entry[key] for entry in log for key in ("loss", "eval_loss") if key in entry]
    return Run(losses).keep(model)


@isolated
def test_one_run_profiles_plans_and_is_served(tmp_path: Path) -> None:
    """With a second callback, which does nothing."""
    from stalloc.integrations.transformers import StallocCallback

    plain = train(tmp_path, [], layers=3)
    callback, second = StallocCallback(warmup=1), StallocCallback(warmup=1)
    planned = train(tmp_path, [callback, second], layers=3)
    plain.assert_same(planned)
    assert_served(iterations=12 - 1 - 4)
    assert callback.driver.stage is Stage.OFF, "when training ends, so does the plan"
    assert current_session() is None
    assert second.driver.stage is Stage.OFF


@isolated
def test_next_run_is_served_from_the_profiled_plan(tmp_path: Path) -> None:
    from stalloc.integrations.transformers import StallocCallback

    folder = tmp_path / "plans"
    train(tmp_path, [StallocCallback("profile", folder)], steps=7)
    names = {path.name for path in folder.iterdir()}
    assert names == {"mbs4-mb2.rank0.trace.json", "mbs4-mb2.rank0.plan.json"}
    plain = train(tmp_path, [])
    planned = train(tmp_path, [StallocCallback("plan", folder)])
    plain.assert_same(planned)
    assert_served(iterations=12 - Options.serve_from)
    phases = phases_of(str(folder / "mbs4-mb2.rank0.trace.json"))
    assert {("forward", i, 0) for i in range(2)} <= phases
    assert {("backward", i, 0) for i in range(2)} <= phases
    assert not any(microbatch > 1 for _, microbatch, _ in phases)


@pytest.mark.parametrize("every", [3, 7])
@isolated
def test_evaluations_and_checkpoints_are_unplanned(tmp_path: Path, every: int) -> None:
    """With some of them inside the profile, or none."""
    from stalloc.integrations.transformers import StallocCallback

    often = {"eval_steps": every, "save_strategy": "steps", "save_steps": 2 * every}
    plain = train(tmp_path, [], steps=20, eval_strategy="steps", **often)
    planned = train(tmp_path, [StallocCallback(warmup=1)], steps=20, eval_strategy="steps", **often)
    plain.assert_same(planned)
    assert_served(iterations=20 - 1 - 4)
    assert stalloc.memory_stats()["idle_requests"] > 0


@isolated
def test_a_callback_can_be_ended(tmp_path: Path) -> None:
    from transformers import TrainerCallback

    from stalloc.integrations.transformers import StallocCallback

    callback = StallocCallback("profile", tmp_path, warmup=1, iterations=3)

    class Ends(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 4:
                callback.finish()

    train(tmp_path, [Ends(), callback], steps=5, eval_strategy="steps", eval_steps=3)
    assert callback.driver.stage is Stage.OFF
    assert ("unplanned", -1, 0) in phases_of(str(tmp_path / "mbs4-mb2.rank0.trace.json"))
