"""Models of the sizes that fill a card: GPT-2, Llama-like, mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Config:
    """One model; `experts` of 0 is a dense one.

    `latent` is the rank of multi-head latent attention, 0 for plain attention. `shared` adds an
    expert that takes every token, and `exchange` sends tokens to the experts over a stream of their
    own, as the all-to-all of expert parallelism does.
    """

    layers: int
    hidden: int
    heads: int
    ffn: int
    sequence: int
    vocabulary: int = 50304
    experts: int = 0
    top_k: int = 2
    latent: int = 0
    shared: bool = False
    exchange: bool = False


MODELS = {
    "tiny": Config(2, 64, 2, 128, 32, 256),
    "tiny-moe": Config(2, 64, 2, 64, 32, 256, experts=4),
    "small": Config(4, 512, 8, 2048, 1024, 16384),
    "gpt2-345m": Config(24, 1024, 16, 4096, 1024),
    "llama-1.3b": Config(24, 2048, 16, 5632, 2048, 32000),
    "moe-8x": Config(12, 1024, 16, 2816, 2048, 32000, experts=8),
    # The shape of DeepSeek-V3: latent attention, many small experts and a shared one, exchanges.
    "deepseek-proxy": Config(
        8, 1024, 8, 512, 1024, 32000, experts=32, top_k=4, latent=256, shared=True, exchange=True
    ),
    "tiny-proxy": Config(2, 64, 2, 64, 32, 256, experts=4, latent=16, shared=True, exchange=True),
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


class LatentAttention(nn.Module):
    """Causal self-attention whose queries, keys and values come from small latent vectors."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.heads = c.heads
        self.q_down = nn.Linear(c.hidden, 3 * c.latent, bias=False)
        self.q_norm = nn.RMSNorm(3 * c.latent)
        self.q_up = nn.Linear(3 * c.latent, c.hidden, bias=False)
        self.kv_down = nn.Linear(c.hidden, c.latent, bias=False)
        self.kv_norm = nn.RMSNorm(c.latent)
        self.kv_up = nn.Linear(c.latent, 2 * c.hidden, bias=False)
        self.out = nn.Linear(c.hidden, c.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attends within each sequence."""
        batch, length, hidden = x.shape
        q = self.q_up(self.q_norm(self.q_down(x)))
        k, v = self.kv_up(self.kv_norm(self.kv_down(x))).chunk(2, dim=-1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, hidden))


@cache
def _exchange_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _exchanged(x: Tensor) -> Tensor:
    """A copy that is made on the stream of exchanges, as an all-to-all makes its output."""
    if x.device.type != "cuda":
        return x.clone()
    stream = _exchange_stream(x.device)
    stream.wait_stream(torch.cuda.current_stream(x.device))
    with torch.cuda.stream(stream):
        y = x.clone()
    x.record_stream(stream)
    torch.cuda.current_stream(x.device).wait_stream(stream)
    y.record_stream(torch.cuda.current_stream(x.device))
    return y


class Exchange(torch.autograd.Function):
    """An exchange of tokens forward, and of their gradients backward."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        """The tokens, from the other stream."""
        return _exchanged(x)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        """Their gradients, from the other stream."""
        return _exchanged(gradient)


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
        self.shared = FeedForward(c) if c.shared else None
        self.exchange = c.exchange

    def forward(self, x: Tensor) -> Tensor:
        """The experts' outputs, weighted by the router."""
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = self.router(tokens).softmax(-1).topk(self.top_k, dim=-1)
        result = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            rows, slots = self.chosen_by(chosen, index)
            sent = tokens[rows]
            output = expert(Exchange.apply(sent) if self.exchange else sent)
            output = Exchange.apply(output) if self.exchange else output
            output = output * weights[rows, slots, None]
            result = result.index_add(0, rows, output.to(result.dtype))
        if self.shared is not None:
            result = result + self.shared(tokens)
        return result.view_as(x)

    def chosen_by(self, chosen: Tensor, expert: int) -> tuple[Tensor, Tensor]:
        """The tokens that have chosen an expert, and with which of their choices."""
        rows, slots = (chosen == expert).nonzero(as_tuple=True)
        return rows, slots


class Block(nn.Module):
    """A layer."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(c.hidden)
        self.attention = LatentAttention(c) if c.latent else Attention(c)
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
