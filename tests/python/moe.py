"""A small mixture of experts, for tests of requests whose sizes the router decides."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from training import Trainer

import stalloc


class Experts(nn.Module):
    """Runs each expert on the tokens it got: the router decides how many requests of what size."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(experts)
        )

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, ranks = torch.where(chosen == i)
            if len(rows):
                y = expert(x.index_select(0, rows))
                out = out.index_add(0, rows, y * weights[rows, ranks, None])
        return out


class Mixture(nn.Module):
    """Top-k routing with an auxiliary loss, and a shared expert.

    Attributes:
        bias: Added to the router's logits before the choice; how a test skews the routing.
    """

    def __init__(self, width: int, experts: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = Experts(width, experts)
        self.shared = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.bias = nn.Buffer(torch.zeros(experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flat = x.flatten(0, 1)
        odds = (self.router(flat) + self.bias).softmax(-1)
        weights, chosen = odds.topk(self.top_k)
        share = functional.one_hot(chosen, odds.shape[-1]).sum((0, 1)) / chosen.numel()
        y = self.experts(flat, chosen, weights) + self.shared(flat)
        return y.view_as(x), (share * odds.mean(0)).sum() * odds.shape[-1]


class MoeBlock(nn.Module):
    def __init__(self, width: int, experts: int, top_k: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mixture = Mixture(width, experts, top_k)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(self.norm(x)).unsqueeze(1).chunk(3, dim=-1)
        x = x + functional.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
        y, balance = self.mixture(x)
        return x + y, balance


class MoeModel(nn.Module):
    def __init__(
        self,
        recompute: bool = False,
        width: int = 32,
        layers: int = 2,
        experts: int = 8,
        top_k: int = 2,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, width)
        self.blocks = nn.ModuleList(MoeBlock(width, experts, top_k) for _ in range(layers))
        self.head = nn.Linear(width, 128, bias=False)
        self.recompute = recompute

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embedding(tokens)
        balance = x.new_zeros(())
        for block in self.blocks:
            y = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
            x, balance = y[0], balance + y[1]
        return self.head(x), balance


class MoeTrainer(Trainer):
    """A Trainer of a MoeModel, with a loss that balances the experts.

    Attributes:
        rows: Sequences a microbatch.
    """

    def __init__(self, model: MoeModel, microbatches: int) -> None:
        super().__init__(model, microbatches)
        self.rows = 4

    def loss(self, microbatch: int, length: int = 32) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * self.steps + microbatch)
        # Squared, so that some tokens are much more common than others, and experts with them.
        t = (128 * torch.rand(self.rows, length + 1, generator=generator) ** 2).long()
        logits, balance = self.model(t[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), t[:, 1:].flatten()) + 0.01 * balance

    def backward(self, microbatch: int, length: int = 32) -> None:
        loss = self.loss(microbatch, length)
        loss.backward()
        self.losses.append(loss.item())

    def bias(self, *values: float) -> None:
        """Adds these to the logits of the first experts of all layers from now on."""
        with torch.no_grad():
            for block in self.model.blocks:
                block.mixture.bias[: len(values)] = torch.tensor(values)


def moe_twins(recompute: bool = False, microbatches: int = 2) -> tuple[MoeTrainer, MoeTrainer]:
    """Two trainers of equal models."""
    torch.manual_seed(0)
    model = MoeModel(recompute)
    return MoeTrainer(copy.deepcopy(model), microbatches), MoeTrainer(model, microbatches)


def moe_profile(trainer: MoeTrainer, tagged: bool = True, steps: int = 8) -> stalloc.Profile:
    """The profile of some steps; tagged says which modules are dynamic, else comparing has to."""
    with stalloc.profile(trainer.model, dynamic=[Experts] if tagged else ()) as prof:
        for _ in range(steps):
            trainer.step()
    return prof
