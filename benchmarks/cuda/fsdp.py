"""Measures the memory of FSDP2 under torch's allocators and stalloc, separate streams and ordered.

    make bench-cuda

On the pretended GPU (tests/standin), with collectives that do nothing: what is asked for, on which
of FSDP2's three streams, is real. Each allocator has a process of its own, from its start on.
Prints a table; with `--output NAME` writes NAME.json.
"""

from __future__ import annotations

import comparison
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import stalloc

RANKS, BLOCKS, WIDTH, TOKENS, STEPS = 8, 12, 2048, 8192, 8


class Block(nn.Module):
    """As many parameters and activations as a small MLP, without its products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.empty(4 * width * width))
        self.scale = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        """Some activations of the size of `x`."""
        return x + nn.functional.gelu(x * self.scale + self.weight[: self.width]).tanh()


def sharded(blocks: int, width: int) -> nn.Module:
    """A rank's model, and the process group: its collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    with torch.device("cuda"):
        model = nn.Sequential(*(Block(width) for _ in range(blocks)))
    for block in model:
        fully_shard(block)
    fully_shard(model)
    return model


def train(steps: int) -> None:
    """Trains a rank from the making of its model on."""
    model = sharded(BLOCKS, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        x = torch.empty(TOKENS, WIDTH, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        stalloc.step()


if __name__ == "__main__":
    model = {"ranks": RANKS, "blocks": BLOCKS, "width": WIDTH, "tokens": TOKENS}
    comparison.main(__file__, __doc__, train, STEPS, {"model": model})
