from __future__ import annotations

from collections.abc import Iterator

import pytest
import standin
import torch
from training_cuda import Trainer

import stalloc

MIB = 1 << 20


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    """Trains under `stalloc.auto`; small blocks that stay keep most of torch's segments."""
    stalloc.auto(device="cuda")
    trainer = Trainer(rows=250)
    kept: list[torch.Tensor] = []

    def keep(module: torch.nn.Module, *_: object) -> None:
        kept.append(torch.empty(3 * MIB // 2, dtype=torch.uint8, device="cuda"))

    hooks = [block.register_forward_hook(keep) for block in trainer.model.blocks]  # type: ignore
    trainer.step()
    for hook in hooks:
        hook.remove()
    yield trainer
    stalloc.disable()
    kept.clear()


def test_torchs_cache_stays_until_a_plan_fits(trainer: Trainer) -> None:
    given_back = standin.calls("cudaFree")
    for _ in range(100):
        trainer.step()
        if stalloc.status()["stage"] == "resting":
            break
    assert "exceed torch's peak" in stalloc.status()["reason"]
    assert standin.calls("cudaFree") == given_back, "torch reserves anew what it gives back"
