"""Operators that request other memory on a CPU than torch's kernels for the meta device.

Kernels of a CPU copy what is not contiguous, and threads have buffers of their own, so that some
sizes depend on `torch.get_num_threads()`. `_cpu_attention` has the kernels of attention, and
`_cpu_convolutions` those of convolutions. Sources are below `aten/src/ATen/native`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ATEN = torch.ops.aten


# cpu/layer_norm_kernel.cpp, layer_norm.cpp


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The norm, and the means and reciprocal roots, in the type of the weight."""
    rows = x.contiguous()
    result = torch.empty_like(rows)
    kept = x.dim() - len(shape)
    statistics = (*x.shape[:kept], *[1] * len(shape))
    dtype = x.dtype if weight is None else weight.dtype
    mean, root = (x.new_empty(statistics, dtype=dtype) for _ in range(2))
    return result, mean, root


def _layer_norm_backward(
    gradient: Tensor,
    x: Tensor,
    shape: list[int],
    mean: Tensor,
    root: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients; each thread adds up those of the weight and the bias."""
    rows = x.contiguous()
    made = torch.empty_like(rows) if wanted[0] else None
    of_weight, of_bias = (
        torch.empty_like(y) if asked and y is not None else None
        for y, asked in ((weight, wanted[1]), (bias, wanted[2]))
    )
    whole = gradient.contiguous()
    if of_weight is not None or of_bias is not None:
        elements = x.numel() // max(mean.numel(), 1)
        added = x.new_empty((2, torch.get_num_threads(), elements))
        del added
    del whole
    return made, of_weight, of_bias


# group_norm.cpp, cpu/group_norm_kernel.cpp


def _group_norm_backward(
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    root: Tensor,
    weight: Tensor | None,
    rows: int,
    channels: int,
    image: int,
    groups: int,
    wanted: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients; sums for each channel of each row come first."""
    made = torch.empty_like(x) if wanted[0] else None
    of_weight, of_bias = (
        x.new_empty(channels, dtype=x.dtype if weight is None else weight.dtype) if asked else None
        for asked in wanted[1:]
    )
    products = x.new_empty((rows, channels), dtype=mean.dtype)
    sums = x.new_empty((rows, channels), dtype=mean.dtype)
    del sums, products
    return made, of_weight, of_bias


# Normalization.cpp, cpu/batch_norm_kernel.cpp


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The norm and, in training, the statistics; factors and summands of each channel."""
    result = torch.empty_like(x)
    channels = x.shape[1]
    dtype = x.dtype if weight is None else weight.dtype
    mean, root = (x.new_empty(channels if training else 0, dtype=dtype) for _ in range(2))
    for _ in range(2 if training else 1):
        factors = x.new_empty(channels, dtype=dtype)
        summands = x.new_empty(channels, dtype=dtype)
        del summands, factors
    return result, mean, root


def _batch_norm_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor | None,
    root: Tensor | None,
    training: bool,
    eps: float,
    wanted: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients; that of the input is requested twice."""
    first = torch.empty_like(x) if wanted[0] else None
    channels = x.shape[1]
    of_weight, of_bias = (
        x.new_empty(channels, dtype=x.dtype if weight is None else weight.dtype) if asked else None
        for asked in wanted[1:]
    )
    made = torch.empty_like(x) if wanted[0] else None
    del first
    return made, of_weight, of_bias


# Embedding.cpp


def _embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The rows of a table; the kernel reads indices in a row."""
    rows = indices.reshape(-1)
    result = weight.new_empty((*indices.shape, *weight.shape[1:]))
    del rows
    return result


def _embedding_dense_backward(
    gradient: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scaled: bool
) -> Tensor:
    """The gradient of a table."""
    result = gradient.new_empty((num_weights, gradient.shape[-1]))
    rows = indices.contiguous()
    whole = gradient.contiguous()
    del whole, rows
    return result


# Operators, their kernels, and the dispatch key.
KERNELS: tuple[tuple[Any, Any, str], ...] = (
    (_ATEN.native_layer_norm.default, _layer_norm, "Meta"),
    (_ATEN.native_layer_norm_backward.default, _layer_norm_backward, "Meta"),
    (_ATEN.native_group_norm_backward.default, _group_norm_backward, "Meta"),
    (_ATEN.native_batch_norm.default, _batch_norm, "Meta"),
    (_ATEN.native_batch_norm_backward.default, _batch_norm_backward, "Meta"),
    (_ATEN.embedding.default, _embedding, "Meta"),
    (_ATEN.embedding_dense_backward.default, _embedding_dense_backward, "Meta"),
)
