"""Accelerate's own Accelerator, with and without stalloc."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from isolation import isolated
from torch.utils.data import DataLoader
from trainers import Run, assert_served, loss_of, network, phases_of, prepare, tokens

import stalloc
from stalloc.driver import Stage
from stalloc.errors import StallocError
from stalloc.options import Options
from stalloc.session import current_session


def train(
    tmp_path: Path,
    mode: str,
    folder: Path | None = None,
    *,
    microbatches: int = 3,
    zeroes: bool = True,
    warmup: int = 1,
) -> tuple[Run, list[Stage]]:
    from accelerate import Accelerator

    import stalloc.integrations.accelerate

    prepare()
    net = network()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=microbatches)
    model, optimizer, loader = accelerator.prepare(
        net,
        torch.optim.AdamW(net.parameters(), lr=1e-3),
        DataLoader(tokens(12 * 4 * microbatches), 4, shuffle=True),
    )
    driver = stalloc.integrations.accelerate.install(accelerator, mode, folder, warmup=warmup)
    assert stalloc.integrations.accelerate.install(accelerator, mode, folder) is driver
    run, stages = Run(), []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
            run.losses.append(loss.item())
            accelerator.backward(loss)
            optimizer.step()
            if zeroes:
                optimizer.zero_grad()
            elif accelerator.sync_gradients:
                model.zero_grad()
        if accelerator.sync_gradients:
            stages.append(driver.stage)
            if len(stages) % 7 == 0:
                model.eval()
                with torch.no_grad():
                    run.losses.append(loss_of(model, tokens(10)).item())
                model.train()
                accelerator.save_state(str(tmp_path / "output"))
    stalloc.integrations.accelerate.uninstall()
    stalloc.integrations.accelerate.uninstall()
    assert not {"step", "zero_grad"} & set(vars(optimizer))
    assert "save_state" not in vars(accelerator)
    return run.keep(net), stages


@pytest.mark.parametrize("zeroes", [True, False])
@isolated
def test_one_run_profiles_plans_and_is_served(tmp_path: Path, zeroes: bool) -> None:
    """Gradients may be zeroed by the model, too, whom nobody watches."""
    plain, _ = train(tmp_path, "off", zeroes=zeroes)
    planned, stages = train(tmp_path, "auto", zeroes=zeroes)
    plain.assert_same(planned)
    iterations = stages.count(Stage.SERVING)
    assert iterations == (8 if zeroes else 7)
    assert_served(iterations - 1)
    assert stalloc.memory_stats()["idle_requests"] > 0, "the evaluation's"
    assert current_session() is None


@isolated
def test_next_run_is_served_from_the_profiled_plan(tmp_path: Path) -> None:
    folder = tmp_path / "plans"
    train(tmp_path, "profile", folder)
    names = {path.name for path in folder.iterdir()}
    assert names == {"mb3.rank0.trace.json", "mb3.rank0.plan.json"}
    plain, _ = train(tmp_path, "off")
    planned, stages = train(tmp_path, "plan", folder)
    plain.assert_same(planned)
    assert stages == [Stage.WAITING] + [Stage.SERVING] * 11, "as seen when each is over"
    assert_served(iterations=12 - Options.serve_from)
    phases = phases_of(str(folder / "mb3.rank0.trace.json"))
    assert {("forward", i, 0) for i in range(3)} <= phases
    assert {("backward", i, 0) for i in range(3)} <= phases
    assert not any(microbatch > 2 for _, microbatch, _ in phases)


@isolated
def test_an_accelerator_that_has_prepared_nothing_is_refused() -> None:
    from accelerate import Accelerator

    import stalloc.integrations.accelerate

    with pytest.raises(StallocError, match=r"after accelerator\.prepare"):
        stalloc.integrations.accelerate.install(Accelerator(cpu=True))
