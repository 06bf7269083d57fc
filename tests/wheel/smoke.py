"""Smoke test of an installed wheel: profile, plan and serve a tiny training run, to the bit.

Run by scripts/test_wheel.py, where nothing of stalloc is but the wheel.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import stalloc

PROFILED = 3
PLANNED = 4


def make_training() -> tuple[nn.Module, Callable[[], float]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = model(torch.randn(16, 32)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach().item()

    return model, step


def main() -> None:
    _, step = make_training()
    expected = [step() for _ in range(PROFILED + PLANNED)]

    model, step = make_training()
    losses = []
    with stalloc.profile(model) as prof:
        for _ in range(PROFILED):
            losses.append(step())
            prof.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        prof.plan().save(path)
        plan = stalloc.Plan.load(path)
    with stalloc.enable(plan):
        for _ in range(PLANNED):
            losses.append(step())
            stalloc.step()
        hits = stalloc.memory_stats()["hits"]

    assert losses == expected, f"the losses differ: {losses} and {expected}"
    assert hits > 0, "nothing was served from the plan"
    for name, module in sys.modules.items():
        if name.split(".")[0] == "stalloc":
            file = Path(str(module.__file__))
            assert file.is_relative_to(sys.prefix), f"{name} is not the wheel's: {file}"


if __name__ == "__main__":
    main()
