"""A training loop for a GPU without arithmetic: no result is ever looked at, so no kernel need run.

Elementwise operators alone, so that nothing of cuBLAS need be pretended.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

import stalloc


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.gelu(x * self.scale + self.shift).tanh()


class Model(nn.Module):
    def __init__(self, width: int = 4096, layers: int = 6) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@dataclass
class Trainer:
    device: str = "cuda:0"
    rows: int = 256
    width: int = 4096
    microbatches: int = 2
    model: nn.Module = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        self.model = Model(self.width).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self, rows: int | None = None) -> None:
        for _ in range(self.microbatches):
            x = torch.empty(rows or self.rows, self.width, device=self.device)
            self.model(x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        stalloc.step()

    def plan(self, steps: int = 3, exact: bool = True) -> stalloc.Plan:
        with stalloc.profile(self.model, exact=exact) as prof:
            for _ in range(steps):
                self.step()
        return prof.plan()
