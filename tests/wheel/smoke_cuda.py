"""Smoke test of an installed wheel beside a CUDA build of torch, on the pretended GPU.

Run by scripts/test_wheels.py, where nothing of stalloc is but the wheel. Kernels do nothing there,
so this looks at addresses, and tests/wheel/smoke.py at values.

Usage: python smoke_cuda.py native|compat
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import stalloc


class Block(nn.Module):
    """Elementwise operators alone, so that nothing of cuBLAS need be pretended."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4096))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.gelu(x * self.scale).tanh()


def main() -> None:
    if sys.argv[1] == "compat":
        stalloc.install_compat()
    model = nn.Sequential(*(Block() for _ in range(4))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(torch.empty(64, 4096, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    with stalloc.profile(model) as prof:
        for _ in range(3):
            step()
            prof.step()
    plan = prof.plan()
    with stalloc.enable(plan, model=model):
        for _ in range(4):
            step()
            stalloc.step()
        stats = stalloc.memory_stats("cuda:0")
        y = model(torch.empty(64, 4096, device="cuda")).detach()
        pool = next(s for s in torch.cuda.memory_snapshot() if s["total_size"] == plan.pool)
        assert torch.cuda.memory_reserved() >= plan.pool
    assert stats["hits"] > 0, "nothing was served from the plan"
    assert pool["address"] <= y.data_ptr() < pool["address"] + plan.pool
    assert torch.cuda.memory_reserved() < plan.pool, "the pool's memory goes, but where `y` lies"


if __name__ == "__main__":
    main()
