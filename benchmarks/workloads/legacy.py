"""The legacy layers of Megatron-LM 0.8 (`--use-legacy-models --transformer-impl local`).

The paper's published scripts train GPT-2 and Llama2 with them. They differ from those of its core
(layers.py): RMSNorm and SwiGLU are plain torch, linear layers have biases, and hidden activations
and attention have dropout. Rotary embeddings are apex's fused ones, attention is flash-attn's, and
the fused sum of bias, dropout and residual keeps a mask.
"""

from __future__ import annotations

from typing import Any

import torch
from layers import flash_attention
from models import Model
from parallel import ColumnParallelLinear, GatherBuffer, RowParallelLinear
from torch import Tensor, nn
from torch.autograd import Function

DROPOUT = 0.1  # Megatron-LM's default


class RMSNorm(nn.Module):
    """Normalises the last dimension, in 32 bits."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden, dtype=torch.bfloat16, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        wide = x.float()
        normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return normal.type_as(x) * self.weight


class _BiasDropoutAdd(Function):
    """bias_dropout_add_fused_train: one kernel each way; the mask has a byte an element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        mask = torch.empty_like(x, dtype=torch.bool)
        ctx.save_for_backward(mask)
        return torch.empty_like(residual)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (grad,) = grads
        grad_input = torch.empty_like(grad)
        return grad_input, grad_input.sum(dim=(0, 1)), grad


class _FusedRotary(Function):
    """apex's fused_apply_rotary_pos_emb: a new tensor in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return torch.empty_like(grads[0], memory_format=torch.contiguous_format)


def _bias(width: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(width, dtype=torch.bfloat16, device="meta"))


class Attention(nn.Module):
    """ParallelAttention with flash-attn; the bias of its output is left to the caller."""

    def __init__(self, model: Model, ranks: int, buffer: GatherBuffer) -> None:
        super().__init__()
        self.size = model.head_size
        self.qkv = ColumnParallelLinear(model.hidden, 3 * model.hidden, ranks, buffer, bias=True)
        self.out = RowParallelLinear(model.hidden, model.hidden, ranks, buffer)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        mixed = self.qkv(x)
        length, batch, width = mixed.shape
        mixed = mixed.view(length, batch, width // 3 // self.size, 3 * self.size)
        query, key, value = torch.split(mixed, self.size, dim=3)
        query, key = _FusedRotary.apply(query), _FusedRotary.apply(key)
        query, key, value = (t.transpose(0, 1).contiguous() for t in (query, key, value))
        attended = flash_attention(query, key, value)
        return self.out(attended.transpose(0, 1).reshape(length, batch, -1))


class MLP(nn.Module):
    """ParallelMLP; the bias of its output is left to the caller."""

    def __init__(self, hidden: int, ffn: int, ranks: int, buffer: GatherBuffer) -> None:
        super().__init__()
        self.up = ColumnParallelLinear(hidden, 2 * ffn, ranks, buffer)
        self.up_bias = _bias(2 * ffn // ranks)
        self.down = RowParallelLinear(ffn, hidden, ranks, buffer)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        first, second = torch.chunk(self.up(x) + self.up_bias, 2, dim=-1)
        return self.down(torch.nn.functional.silu(first) * second)


class Layer(nn.Module):
    """ParallelTransformerLayer."""

    def __init__(self, model: Model, ranks: int, buffer: GatherBuffer) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(model.hidden)
        self.attention = Attention(model, ranks, buffer)
        self.attention_bias = _bias(model.hidden)
        self.mlp_norm = RMSNorm(model.hidden)
        self.mlp = MLP(model.hidden, model.ffn, ranks, buffer)
        self.mlp_bias = _bias(model.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        attended = self.attention(self.attention_norm(x))
        x = _BiasDropoutAdd.apply(attended, self.attention_bias, x)
        return _BiasDropoutAdd.apply(self.mlp(self.mlp_norm(x)), self.mlp_bias, x)
