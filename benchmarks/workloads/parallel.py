"""Tensor parallelism on one rank: what Megatron-LM's layers allocate, without the other ranks.

Collectives move no data on the meta device; what matters is the buffers they need, which are
allocated where and when Megatron-LM allocates them (megatron/core/tensor_parallel/layers.py and
mappings.py).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function


class GatherBuffer:
    """Megatron-LM's GlobalMemoryBuffer: one buffer that grows, for gathered activations."""

    def __init__(self) -> None:
        self._buffer: Tensor | None = None

    def get(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of `shape`; what it held before is lost."""
        numel = math.prod(shape)
        if self._buffer is None or self._buffer.numel() < numel:
            self._buffer = torch.empty(numel, dtype=like.dtype, device=like.device)
        return self._buffer[:numel].view(shape)


class _GatheredLinear(Function):
    """LinearWithGradAccumulationAndAsyncCommunication with sequence parallelism.

    The gathered input lies in the shared buffer and is gathered again in backward; the weight
    gradient is accumulated by the matrix product itself into `weight.main_grad`, and autograd gets
    a placeholder for it.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, ranks: int, buffer: GatherBuffer
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.ranks, ctx.buffer, ctx.has_bias = ranks, buffer, bias is not None
        output = torch.matmul(_gathered(x, ranks, buffer), weight.t())
        return output if bias is None else output + bias

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        x, weight = ctx.saved_tensors
        _gathered(x, ctx.ranks, ctx.buffer)
        grad_input = grad.matmul(weight)
        if ctx.ranks > 1:
            scattered = torch.empty_like(x)
            del grad_input
            grad_input = scattered
        flat = grad.contiguous().view(-1, grad.shape[-1])
        grad_weight = torch.empty_like(weight)
        grad_bias = flat.sum(dim=0) if ctx.has_bias else None
        return grad_input, grad_weight, grad_bias, None, None


def _gathered(x: Tensor, ranks: int, buffer: GatherBuffer) -> Tensor:
    return x if ranks == 1 else buffer.get((x.shape[0] * ranks, *x.shape[1:]), x)


class _ReduceScatter(Function):
    """_ReduceScatterToSequenceParallelRegion: a new tensor in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        return x.new_empty((x.shape[0] // ranks, *x.shape[1:]))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        return grad.new_empty((grad.shape[0] * ctx.ranks, *grad.shape[1:])), None


def reduce_scatter(x: Tensor, ranks: int) -> Tensor:
    """Sums over the tensor-parallel ranks and keeps this rank's part of the sequence."""
    return _ReduceScatter.apply(x, ranks) if ranks > 1 else x


def _weight(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(rows, columns, dtype=torch.bfloat16, device="meta"))


class ColumnParallelLinear(nn.Module):
    """Output features split over the ranks; gathers the sequence first."""

    def __init__(
        self, inputs: int, outputs: int, ranks: int, buffer: GatherBuffer, *, bias: bool = False
    ) -> None:
        super().__init__()
        self.ranks = ranks
        self.buffer = buffer
        self.weight = _weight(outputs // ranks, inputs)
        self.bias = (
            nn.Parameter(torch.empty(outputs // ranks, dtype=torch.bfloat16, device="meta"))
            if bias
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """[sequence / ranks, batch, inputs] to [sequence, batch, outputs / ranks]."""
        return _GatheredLinear.apply(x, self.weight, self.bias, self.ranks, self.buffer)


class RowParallelLinear(nn.Module):
    """Input features split over the ranks; sums and scatters the sequence afterwards."""

    def __init__(self, inputs: int, outputs: int, ranks: int, buffer: GatherBuffer) -> None:
        super().__init__()
        self.ranks = ranks
        self.buffer = buffer
        self.weight = _weight(outputs, inputs // ranks)

    def forward(self, x: Tensor) -> Tensor:
        """[sequence, batch, inputs / ranks] to [sequence / ranks, batch, outputs]."""
        whole = _GatheredLinear.apply(x, self.weight, None, 1, self.buffer)
        return reduce_scatter(whole, self.ranks)


class _CrossEntropy(Function):
    """_VocabParallelCrossEntropy: one 32-bit copy of the logits, kept as softmax for backward."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        maximum = torch.max(logits, dim=-1)[0]
        logits -= maximum.unsqueeze(dim=-1)
        mask = (target < 0) | (target >= logits.shape[-1])
        local = target.clone()
        local.masked_fill_(mask, 0)
        flat = logits.view(-1, logits.shape[-1])
        picked = flat.gather(1, local.view(-1, 1)).view_as(target).clone().contiguous()
        picked.masked_fill_(mask, 0.0)
        softmax = logits
        torch.exp(logits, out=softmax)
        total = softmax.sum(dim=-1)
        loss = torch.log(total) - picked
        softmax.div_(total.unsqueeze(dim=-1))
        ctx.save_for_backward(softmax, mask, local.view(-1))
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        softmax, mask, local = ctx.saved_tensors
        update = 1.0 - mask.view(-1).float()
        flat = softmax.view(-1, softmax.shape[-1])
        flat.scatter_add_(1, local.view(-1, 1), -update.view(-1, 1))
        softmax.mul_(grad.unsqueeze(dim=-1))
        return softmax, None


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Loss a token, of logits [sequence, batch, vocabulary / ranks]; overwrites `logits`."""
    return _CrossEntropy.apply(logits, target)


class _Checkpoint(Function):
    """Megatron-LM's CheckpointFunction: keeps the inputs, runs forward again inside backward."""

    @staticmethod
    def forward(ctx: Any, run: nn.Module, x: Tensor) -> Tensor:
        ctx.run = run
        with torch.no_grad():
            output = run(x)
        ctx.save_for_backward(x)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None]:
        (x,) = ctx.saved_tensors
        detached = x.detach()
        detached.requires_grad_(True)
        with torch.enable_grad():
            output = ctx.run(detached)
        torch.autograd.backward(output, *grads)
        return None, detached.grad


def checkpoint(run: nn.Module, x: Tensor) -> Tensor:
    """`run(x)`, which backward computes again."""
    return _Checkpoint.apply(run, x)


__all__ = [
    "ColumnParallelLinear",
    "GatherBuffer",
    "RowParallelLinear",
    "checkpoint",
    "cross_entropy",
    "reduce_scatter",
]
