"""Operators that request other memory on a GPU than torch's kernels for the meta device.

Dropout and RMSNorm are fused on a GPU. Losses and the gradient of an embedding have kernels with
temporaries of their own. The scratch memory of CUB's sorts and scans is left out: some bytes for
each index. `_gpu_attention` has the kernels of attention, `_gpu_reductions` those of sums.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ATEN = torch.ops.aten

_UNSORTED = 3072  # indices of an embedding whose gradients are added without sorting them
_KEPT_OF_GRU = 5  # numbers of each element of the state that a fused cell keeps
_ROWS = 10  # of them that one thread adds, where they are sorted


def _with_logits(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = 1,
) -> Tensor:
    """A loss that is composed on a GPU as well, of fewer operators than its decomposition."""
    likelihood = torch.nn.functional.logsigmoid(x)
    if pos_weight is not None:
        likelihood.mul_((pos_weight - 1).mul(target).add_(1))
    loss = (1 - target).mul_(x).sub_(likelihood)
    if weight is not None:
        loss.mul_(weight)
    return loss if reduction == 0 else loss.new_empty(())


def _logsumexp(x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    """Composed on a GPU as well, of fewer operators than its decomposition."""
    if not (x.is_floating_point() or x.is_complex()):
        x = x.to(torch.get_default_dtype())
    if x.numel() == 0:
        return x.exp().sum(dim, keepdim)
    largest = torch.amax(x.real if x.is_complex() else x, dim, keepdim=True)
    return (x - largest).exp_().sum(dim, keepdim)


def _dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """Dropout in one kernel, which keeps a mask of bytes."""
    if not 0 <= p <= 1:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {p}")
    result: Tensor
    if p == 0.0 or not train or x.numel() == 0:
        result = x
    elif p == 1.0:
        result = x * torch.zeros((), dtype=x.dtype, device=x.device)
    else:
        result = _ATEN.native_dropout.default(x, p, train)[0]
    return result


def _native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """The kernel's mask is made before its result."""
    if train is False or x.numel() == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = torch.empty_like(x, dtype=torch.bool)
    return torch.empty_like(x), mask


def _fused_rms_norm(
    x: Tensor, normalized_shape: list[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """The norm and the reciprocal roots, which backward reads, in one kernel."""
    kept = x.dim() - len(normalized_shape)
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    shape = (*x.shape[:kept], *[1] * len(normalized_shape))
    return result, x.new_empty(shape, dtype=_sum_type(x))


def _softmax_backward(
    gradient: Tensor, result: Tensor, dim: int, input_dtype: torch.dtype
) -> Tensor:
    """The gradient, with a product beside it."""
    made = gradient.new_empty(gradient.shape, dtype=input_dtype)
    product = gradient * result
    del product
    return made


def _mish_backward(gradient: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The rows of a table; the kernel reads contiguous indices."""
    rows = indices.contiguous()
    return weight.new_empty((*rows.shape, weight.shape[1]))


def _embedding_dense_backward(
    gradient: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scaled: bool
) -> Tensor:
    """The gradient of a table. Many indices are sorted, and added up in parts."""
    rows = indices.contiguous()
    gradient = gradient.contiguous()
    shape = (num_weights, gradient.shape[-1])
    count = rows.numel()
    if count <= _UNSORTED and not scaled:
        return gradient.new_empty(shape)
    sorted_rows, order, numbers = (torch.empty_like(rows) for _ in range(3))
    del numbers
    frequencies = torch.empty_like(rows) if scaled else None
    result = gradient.new_empty(shape)
    segments = min(count, num_weights)
    starts, parts, part_starts = (rows.new_empty(segments) for _ in range(3))
    all_parts = rows.new_empty(count // _ROWS + segments)
    sums = gradient.new_empty((all_parts.numel(), shape[1]), dtype=_sum_type(gradient))
    del sorted_rows, order, frequencies, starts, parts, part_starts, all_parts, sums
    return result


def _gru_cell(
    inputs: Tensor,
    hidden: Tensor,
    state: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The new state, and the numbers that the backward needs of each gate."""
    kept = state.new_empty((state.shape[0], state.shape[1] * _KEPT_OF_GRU))
    return torch.empty_like(state, memory_format=torch.contiguous_format), kept


def _gru_cell_backward(
    gradient: Tensor, kept: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of the gates of the inputs and of the state, of the state, and of the biases."""
    gates = [kept.new_empty((kept.shape[0], kept.shape[1] // _KEPT_OF_GRU * 3)) for _ in range(2)]
    state = torch.empty_like(gradient, memory_format=torch.contiguous_format)
    biases = [gate.sum(0) for gate in gates] if has_bias else [None, None]
    return gates[0], gates[1], state, biases[0], biases[1]


def _sum_type(x: Tensor) -> torch.dtype:
    """The type in which a kernel adds up elements of a tensor."""
    return torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype


# Operators, their kernels, and the dispatch key.
KERNELS: tuple[tuple[Any, Any, str], ...] = (
    (_ATEN.binary_cross_entropy_with_logits.default, _with_logits, "Meta"),
    (_ATEN.logsumexp.default, _logsumexp, "Meta"),
    (_ATEN.native_dropout.default, _native_dropout, "Meta"),
    (_ATEN._fused_rms_norm.default, _fused_rms_norm, "Meta"),
    (_ATEN._softmax_backward_data.default, _softmax_backward, "Meta"),
    (_ATEN.mish_backward.default, _mish_backward, "Meta"),
    (_ATEN.embedding.default, _embedding, "Meta"),
    (_ATEN.embedding_dense_backward.default, _embedding_dense_backward, "Meta"),
    (_ATEN._thnn_fused_gru_cell.default, _gru_cell, "Meta"),
    (_ATEN._thnn_fused_gru_cell_backward.default, _gru_cell_backward, "Meta"),
    (_ATEN.dropout.default, _dropout, "AutogradMeta"),
)
# Operators of which torch has a kernel for a GPU, and composes the others'. Where it is a build
# without CUDA it composes a GPU's, too, unless there is a kernel.
COMPOSED = (
    _ATEN._fused_rms_norm.default,
    _ATEN.silu_backward.default,
    _ATEN.mish_backward.default,
)
