"""A transformer layer as Megatron-LM runs it, shard by shard: real modules, real autograd.

Fused kernels are autograd functions that allocate what the kernels allocate: RMSNorm as in apex,
attention as in flash-attn 2 (csrc/flash_attn/flash_api.cpp), SwiGLU as Megatron-LM's jitted one.
Everything else is plain torch. Activations are [sequence, batch, features], 16-bit.
"""

from __future__ import annotations

from typing import Any

import torch
from models import Implementation, Model
from parallel import ColumnParallelLinear, GatherBuffer, RowParallelLinear
from torch import Tensor, nn
from torch.autograd import Function

_NORM_PARTS = 16  # rows of partial weight gradients in apex's kernel


class _RMSNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        output = torch.empty_like(x)
        inverse = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, inverse)
        return output

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, inverse = ctx.saved_tensors
        grad_input = torch.empty_like(x)
        grad_weight = torch.empty_like(weight)
        parts = inverse.new_empty((_NORM_PARTS, *weight.shape))
        del parts
        return grad_input, grad_weight


class RMSNorm(nn.Module):
    """Normalises the last dimension."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden, dtype=torch.bfloat16, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        return _RMSNorm.apply(x, self.weight)


class _LayerNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        output = torch.empty_like(x)
        mean = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
        inverse = torch.empty_like(mean)
        ctx.save_for_backward(x, weight, mean, inverse)
        return output

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight, _mean, inverse = ctx.saved_tensors
        grad_input = torch.empty_like(x)
        grad_weight, grad_bias = torch.empty_like(weight), torch.empty_like(weight)
        parts = inverse.new_empty((2, _NORM_PARTS, *weight.shape))
        del parts
        return grad_input, grad_weight, grad_bias


class LayerNorm(nn.Module):
    """Normalises the last dimension, as Transformer Engine does."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden, dtype=torch.bfloat16, device="meta"))
        self.bias = nn.Parameter(torch.empty(hidden, dtype=torch.bfloat16, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        return _LayerNorm.apply(x, self.weight, self.bias)


def norm(model: Model) -> nn.Module:
    """The model's normalisation."""
    engine = model.implementation is Implementation.ENGINE
    return LayerNorm(model.hidden) if engine else RMSNorm(model.hidden)


class _SwiGLU(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.empty_like(x)


def swiglu(x: Tensor, *, fused: bool) -> Tensor:
    """SiLU of the first half times the second half, in one kernel if `fused`."""
    if fused:
        return _SwiGLU.apply(x)
    first, second = torch.chunk(x, 2, dim=-1)
    return nn.functional.silu(first) * second


def has_fused_swiglu(model: Model) -> bool:
    """True if SwiGLU is one kernel."""
    return model.implementation is Implementation.CORE


class _FlashAttention(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, sequence, heads, _ = q.shape
        output = torch.empty_like(q, memory_format=torch.contiguous_format)
        lse = torch.empty(batch, heads, sequence, dtype=torch.float32, device=q.device)
        rng = torch.empty(2, dtype=torch.int64, device=q.device)
        ctx.save_for_backward(q, k, v, output, lse, rng)
        return output

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, output, lse, _rng = ctx.saved_tensors
        batch, sequence, heads, size = q.shape
        rounded = -(-sequence // 128) * 128
        dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        softmax_d = lse.new_empty((batch, heads, rounded))
        dq_accumulated = lse.new_empty((batch, rounded, heads, size))
        if k.shape[2] != heads:  # grouped queries: gradients a query head, then their sums
            expanded_k = output.new_empty((batch, sequence, heads, size))
            expanded_v = torch.empty_like(expanded_k)
            groups = (batch, sequence, k.shape[2], heads // k.shape[2], size)
            torch.sum(expanded_k.view(groups), dim=3, out=dk)
            torch.sum(expanded_v.view(groups), dim=3, out=dv)
        del softmax_d, dq_accumulated
        return dq, dk, dv


def flash_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention of [batch, sequence, heads, head size]; keys and values may have fewer heads."""
    return _FlashAttention.apply(query, key, value)


def _rotate_half(x: Tensor) -> Tensor:
    first, second = torch.chunk(x, 2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def _rotary(x: Tensor, angles: Tensor) -> Tensor:
    """apply_rotary_pos_emb without fusion; `angles` [sequence, 1, 1, head size]."""
    size = angles.shape[-1]
    rotated, rest = x[..., :size], x[..., size:]
    cosine = torch.cos(angles).to(x.dtype)
    sine = torch.sin(angles).to(x.dtype)
    rotated = (rotated * cosine) + (_rotate_half(rotated) * sine)
    return torch.cat((rotated, rest), dim=-1)


class Attention(nn.Module):
    """Self-attention with rotary embeddings; key and value heads may be fewer than query heads."""

    def __init__(self, model: Model, ranks: int, buffer: GatherBuffer) -> None:
        super().__init__()
        self.size = model.head_size
        self.groups = max(1, model.kv_heads // ranks)
        self.queries = model.heads // ranks // self.groups
        width = (model.heads + 2 * max(model.kv_heads, ranks)) * self.size
        self.qkv = ColumnParallelLinear(model.hidden, width, ranks, buffer, bias=model.qkv_bias)
        self.out = RowParallelLinear(model.hidden, model.hidden, ranks, buffer)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """Same shape as `x`."""
        mixed = self.qkv(x)
        length, batch, _ = mixed.shape
        mixed = mixed.view(length, batch, self.groups, (self.queries + 2) * self.size)
        query, key, value = torch.split(
            mixed, [self.queries * self.size, self.size, self.size], dim=3
        )
        query = query.reshape(length, batch, -1, self.size)
        query, key = _rotary(query, angles), _rotary(key, angles)
        attended = flash_attention(
            query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        )
        return self.out(attended.transpose(0, 1).reshape(length, batch, -1))


class MLP(nn.Module):
    """The gated feed-forward part."""

    def __init__(self, model: Model, ffn: int, ranks: int, buffer: GatherBuffer) -> None:
        super().__init__()
        self.fused = has_fused_swiglu(model)
        self.up = ColumnParallelLinear(model.hidden, 2 * ffn, ranks, buffer)
        self.down = RowParallelLinear(ffn, model.hidden, ranks, buffer)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        return self.down(swiglu(self.up(x), fused=self.fused))


class Layer(nn.Module):
    """Attention, then the feed-forward part or what stands for it, each with its residual."""

    def __init__(
        self, model: Model, ranks: int, buffer: GatherBuffer, angles: Tensor, mlp: nn.Module
    ) -> None:
        super().__init__()
        self.attention_norm = norm(model)
        self.attention = Attention(model, ranks, buffer)
        self.mlp_norm = norm(model)
        self.mlp = mlp
        self.angles = angles

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        x = x + self.attention(self.attention_norm(x), self.angles)
        return x + self.mlp(self.mlp_norm(x))
