"""Models of the sizes that fill a card: GPT-2, Llama-like, and a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Config:
    """One model; `experts` of 0 is a dense one."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    sequence: int
    vocabulary: int = 50304
    experts: int = 0
    top_k: int = 2


MODELS = {
    "tiny": Config(2, 64, 2, 128, 32, 256),
    "tiny-moe": Config(2, 64, 2, 64, 32, 256, experts=4),
    "gpt2-345m": Config(24, 1024, 16, 4096, 1024),
    "llama-1.3b": Config(24, 2048, 16, 5632, 2048, 32000),
    "moe-8x": Config(12, 1024, 16, 2816, 2048, 32000, experts=8),
}


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.heads = c.heads
        self.qkv = nn.Linear(c.hidden, 3 * c.hidden, bias=False)
        self.out = nn.Linear(c.hidden, c.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attends within each sequence."""
        batch, length, hidden = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, hidden))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.up = nn.Linear(c.hidden, 2 * c.ffn, bias=False)
        self.down = nn.Linear(c.ffn, c.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Token by token."""
        gate, value = self.up(x).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * value)


class RoutedExperts(nn.Module):
    """Sends each token to its experts: how many requests of what sizes, the data decide."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.top_k = c.top_k
        self.router = nn.Linear(c.hidden, c.experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(c) for _ in range(c.experts))

    def forward(self, x: Tensor) -> Tensor:
        """The experts' outputs, weighted by the router."""
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = self.router(tokens).softmax(-1).topk(self.top_k, dim=-1)
        result = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            rows, slots = (chosen == index).nonzero(as_tuple=True)
            output = expert(tokens[rows]) * weights[rows, slots, None]
            result = result.index_add(0, rows, output.to(result.dtype))
        return result.view_as(x)


class Block(nn.Module):
    """A layer."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(c.hidden)
        self.attention = Attention(c)
        self.norm2 = nn.RMSNorm(c.hidden)
        self.mlp = RoutedExperts(c) if c.experts else FeedForward(c)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the feed-forward part, each added."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    """A decoder; returns the loss."""

    def __init__(self, c: Config, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(c.vocabulary, c.hidden)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = nn.RMSNorm(c.hidden)
        self.head = nn.Linear(c.hidden, c.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """The loss of predicting each token from those before it."""
        x = self.embedding(tokens[:, :-1])
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
