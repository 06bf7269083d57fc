"""A training loop for a GPU without arithmetic: no result is ever looked at, so no kernel need run.

Elementwise operators alone, so that nothing of cuBLAS need be pretended.
"""

from __future__ import annotations

import atexit
import contextlib
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.autograd.variable import Variable

import stalloc


def _let_autograd_finish() -> None:
    """Makes autograd's worker drop what it holds of the last backward pass.

    Since pytorch#173568 that can be a Python object. Where Python ends before the worker, on a busy
    machine, has dropped it, torch aborts ("terminate called without an active exception"), with any
    allocator. The worker takes this next pass, which holds nothing of Python's, after the last one.
    """
    if not torch.cuda.is_initialized():
        return
    with contextlib.suppress(RuntimeError):  # the device may be lost
        y = torch.ones((), device="cuda", requires_grad=True) * 1
        run_backward = Variable._execution_engine.run_backward  # as Tensor.backward() calls it
        run_backward((y,), (torch.ones_like(y),), False, False, (), True, accumulate_grad=True)


atexit.register(_let_autograd_finish)


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
