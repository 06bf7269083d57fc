"""Training loops that use pinned memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from training_cuda import Trainer

import stalloc

MIB = 1 << 20


class Offloading(Trainer):
    """Keeps what the backward needs in pinned memory."""

    def step(self, rows: int | None = None) -> None:
        for _ in range(self.microbatches):
            x = torch.empty(rows or self.rows, self.width, device=self.device)
            with torch.autograd.graph.save_on_cpu(pin_memory=True):
                loss = self.model(x).square().mean()
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        stalloc.step()


def pinned(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


class Buffers:
    """A loop whose iteration has one pinned buffer after another, each copied from the GPU."""

    def __init__(self, copies: Callable[[torch.Tensor], None] = lambda buffer: None) -> None:
        self.model = torch.nn.Linear(1, 1, device="cuda", bias=False)
        self.copies = copies
        self.addresses: list[int] = []

    def step(self) -> None:
        for size in (3 * MIB, 5 * MIB, 3 * MIB):
            buffer = pinned(size)
            self.addresses.append(buffer.data_ptr())
            self.copies(buffer)
            del buffer
        stalloc.step()

    def plans(self) -> tuple[stalloc.Plan, stalloc.Plan]:
        with stalloc.profile(self.model, pinned=True) as prof:
            for _ in range(3):
                self.step()
        return prof.plan(), prof.plan_pinned()
