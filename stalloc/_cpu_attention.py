"""Attention on a CPU: flash-attention in blocks, whose threads have buffers of their own.

torch chooses it for all floating-point types without dropout, by itself, since tensors of the
pretended CPU have a CPU's dispatch keys. It composes the rest of other operators. Sources:
`aten/src/ATen/native/transformers/attention.cpp` and `native/cpu/FlashAttentionKernel.cpp`.

Sizes depend on the number of torch's threads, `torch.get_num_threads()`.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from stalloc._unrecorded import is_unrecorded

_ATEN = torch.ops.aten
_torch: Any = torch  # for the parts that have no types

_KEYS = 512  # of a block
_SHORT = (torch.float16, torch.bfloat16)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The result and a sum for each query; each thread has scores, sums and results of a block."""
    batch, heads, length, size = query.shape
    result = torch.empty_like(query).transpose(1, 2)
    summed = _sum_type(query)
    sums = query.new_empty((batch, length, heads), dtype=summed)
    threads, rows, columns = torch.get_num_threads(), *_block(query, key)
    buffers = query.new_empty((threads, rows * (columns + 2 + size)), dtype=summed)
    rounded = query.new_empty((threads, rows, columns if query.dtype in _SHORT else 0))
    del rounded, buffers
    return result.transpose(1, 2), sums.transpose(1, 2)


def _attention_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    result: Tensor,
    sums: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """The gradients; each thread has scores and their gradients, and a sum for each query."""
    gradients = [x.new_empty(x.transpose(1, 2).shape) for x in (query, key, value)]
    rows_first = gradient.transpose(1, 2).contiguous()
    summed = _sum_type(query)
    threads, rows, columns = torch.get_num_threads(), *_block(query, key)
    scores = 2 * rows * columns
    buffers = query.new_empty((threads, scores), dtype=summed)
    rounded = query.new_empty((threads, scores if query.dtype in _SHORT else 0))
    busy = min(threads, query.shape[0] * query.shape[1])
    products = [query.new_empty(rows, dtype=summed)]
    others = _on_another_thread(busy - 1, rows * summed.itemsize)
    del others, products, rounded, buffers, rows_first
    return tuple(x.transpose(1, 2) for x in gradients)


def _on_another_thread(count: int, size: int) -> list[Any]:
    """Requests of OpenMP's threads, which are no backward's."""
    made: list[Any] = []

    def request() -> None:
        made.extend(_torch.UntypedStorage(size, device="meta") for _ in range(count))

    if count > 0 and not is_unrecorded():
        thread = threading.Thread(target=request)
        thread.start()
        thread.join()
    return made


def _block(query: Tensor, key: Tensor) -> tuple[int, int]:
    """The queries and the keys of a block."""
    length = query.shape[2]
    rows = 256 if length >= 768 else 64 if length >= 192 else 32
    return min(rows, length), min(_KEYS, key.shape[2])


def _sum_type(x: Tensor) -> torch.dtype:
    return torch.float32 if x.dtype in _SHORT else x.dtype


# Operators, their kernels, and the dispatch key.
KERNELS: tuple[tuple[Any, Any, str], ...] = (
    (_ATEN._scaled_dot_product_flash_attention_for_cpu.default, _attention, "Meta"),
    (
        _ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default,
        _attention_backward,
        "Meta",
    ),
)
