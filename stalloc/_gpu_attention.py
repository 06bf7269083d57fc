"""Attention on a GPU: the choice of a kernel, and what the kernels request.

Flash-attention 2 takes 16 bits and no mask, the memory-efficient kernels the rest that they can.
Neither holds the scores. The sizes of their scratch memory are those of compute capability 8.0 and
newer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stalloc import _gpu_reductions
from stalloc._unrecorded import unrecorded

_ATEN = torch.ops.aten
_torch: Any = torch  # for the parts that have no types

_MOST = 256  # elements of a head in flash-attention 2
_LOCK = 4  # numbers of a block of queries: its lock, a counter, and padding
_MANY = 256  # heads of a batch that keep a GPU busy
_SHARES_KEYS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)
"""True if the memory-efficient kernels take fewer heads of keys than of queries."""
_SHORT = (torch.float16, torch.bfloat16)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The kernel that a GPU takes: one that never holds the scores, if the inputs allow it."""
    allowed = _torch.backends.cuda
    size = query.shape[-1]
    valid = query.dtype == key.dtype == value.dtype and not (is_causal and attn_mask is not None)
    plain = valid and query.dim() == 4 and size == key.shape[-1] == value.shape[-1]
    short = query.dtype in _SHORT
    result: Tensor
    if plain and short and attn_mask is None and size <= _MOST and allowed.flash_sdp_enabled():
        scale = size**-0.5 if scale is None else scale
        inputs = [_padded(tensor) for tensor in (query, key, value)]
        result = _ATEN._scaled_dot_product_flash_attention.default(
            *inputs, dropout_p, is_causal, scale=scale
        )[0]
        return result[..., :size]
    short = short or query.dtype == torch.float32
    even = plain and (
        query.shape[1] == key.shape[1] == value.shape[1] or (enable_gqa and _SHARES_KEYS)
    )
    if even and short and allowed.mem_efficient_sdp_enabled():
        trains = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            zero, without = query.new_zeros(()), query.new_full((), -torch.inf)
            attn_mask = torch.where(attn_mask, zero, without)
            del without, zero
        if attn_mask is not None:
            shape = (*query.shape[:2], query.shape[2], key.shape[2])
            attn_mask = _aligned(attn_mask).expand(shape)
        result = _ATEN._scaled_dot_product_efficient_attention.default(
            query, key, value, attn_mask, trains, dropout_p, is_causal, scale=scale
        )[0]
        return result
    result = _ATEN._scaled_dot_product_attention_math.default(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]
    return result


def _aligned(mask: Tensor) -> Tensor:
    """The memory-efficient kernels take masks whose rows begin at multiples of 8 elements."""
    columns = mask.shape[-1]
    if mask.stride(-1) == 1 and not any(step % 8 for step in mask.stride()[:-1]):
        return mask
    return torch.nn.functional.pad(mask, (0, 8 - columns % 8))[..., :columns]


def _padded(x: Tensor) -> Tensor:
    """Flash-attention's kernels take heads of multiples of 8 elements."""
    missing = -x.shape[-1] % 8
    padded: Tensor = torch.nn.functional.pad(x, (0, missing)) if missing else x
    return padded


def _efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    keeps_sums: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The result, a sum for each query, and the generator's state, which the host has."""
    batch, heads, length, size = query.shape
    if dropout_p > 0:
        with unrecorded():
            seed, offset = _numbers(query)
    else:
        seed, offset = _numbers(query)
    result = query.new_empty((batch, length, heads, value.shape[3])).transpose(1, 2)
    rows = length + -length % 32 if keeps_sums else 0
    sums = query.new_empty((batch, heads, rows), dtype=torch.float32)
    if query.dtype in _SHORT and size > 128:
        added = result.new_empty(result.shape, dtype=torch.float32)
        del added
    return result, sums, seed, offset


def _numbers(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty((), dtype=torch.int64), x.new_empty((), dtype=torch.int64)


def _efficient_attention_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    result: Tensor,
    sums: Tensor,
    seed: Tensor,
    offset: Tensor,
    dropout_p: float,
    wanted: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """The gradients. Each block of queries has a lock, and adds up in high precision."""
    gradients = [_transposed(x) for x in (query, key, value)]
    parts = _parts_of_heads(query, key)
    of_bias = None
    if wanted[3] and bias is not None:
        columns = bias.shape[-1]
        of_bias = bias.new_empty((*bias.shape[:-1], columns + -columns % 16))[..., :columns]
    if query.dtype in _SHORT:
        products = query.new_empty(query.shape[:3], dtype=torch.float32)
    else:
        product = gradient.transpose(1, 2) * result.transpose(1, 2)
        total = product.sum(-1)
        products = total.transpose(1, 2).contiguous()
        del total, product
    scratch = query.new_empty(_scratch(query, key, dropout_p > 0), dtype=torch.uint8)
    del products, scratch, parts
    return gradients[0], gradients[1], gradients[2], of_bias


def _parts_of_heads(query: Tensor, key: Tensor) -> list[Tensor]:
    """The gradients of shared keys and values, one for each head of the queries."""
    batch, heads, length, size = key.shape
    if heads == query.shape[1]:
        return []
    return [key.new_empty((batch, length, query.shape[1], size)) for _ in range(2)]


def _transposed(x: Tensor) -> Tensor:
    batch, heads, length, size = x.shape
    return x.new_empty((batch, length, heads, size)).transpose(1, 2)


def _scratch(query: Tensor, key: Tensor, drops: bool) -> int:
    """The bytes in which the backward kernel of the size of a head adds up."""
    batch, heads, length, size = query.shape
    short = query.dtype in _SHORT
    block, columns, in_registers = 64, 64, short
    if size > 64:
        block = 128
        columns = 128 if short and size <= 128 else 64
        in_registers = short and size <= 128
    added = 0
    if not in_registers and short:
        splits = _splits(batch * heads, key.shape[2], columns)
        added = 2 * splits * columns * (size + -size % block)
    tiles = -(-length // block) * -(-size // columns)
    floats = added + tiles * (_LOCK + block * columns)
    return 4 * batch * heads * (floats + -floats % 4)


def _splits(heads: int, keys: int, columns: int) -> int:
    """Parts of the keys that different blocks of threads have."""
    splits = -(-keys // columns)
    if heads >= _MANY and keys <= 2 * columns:
        splits = 1
    return max(1, min(splits, 200 // heads))


def _flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """The result, a sum for each query, and the generator's state, made twice for dropout.

    Without dropout, the keys may be divided among thread blocks. Each part has sums and a result.
    """
    result = torch.empty_like(query.transpose(1, 2)).transpose(1, 2)
    sums = query.new_empty(query.shape[:3], dtype=torch.float32)
    parts = 1 if dropout_p > 0 else _parts_of_keys(query, key)
    divided: list[Tensor] = []
    if parts > 1:
        shape = (parts, *query.shape[:3])
        divided += [query.new_empty(shape, dtype=torch.float32)]
        divided += [query.new_empty((*shape, _rounded_size(query)), dtype=torch.float32)]
    state = query.new_empty(2, dtype=torch.uint64)
    unused = query.new_empty((), dtype=torch.uint64)
    if dropout_p > 0:
        state = query.new_empty(2, dtype=torch.uint64)
    while divided:
        divided.pop(0)
    lengths = query.shape[2], key.shape[2]
    return result, sums, None, None, *lengths, state, unused, query.new_empty(0)


def _rounded_size(query: Tensor) -> int:
    """Elements that a head has in high precision."""
    size = query.shape[3]
    return size + -size % (32 if size <= 128 else 64)


def _parts_of_keys(query: Tensor, key: Tensor) -> int:
    """The parts of the keys that different thread blocks have, if the queries keep few busy.

    As many as give nearly the most work to each wave of blocks (`num_splits_heuristic` of
    flash-attention).
    """
    batch, heads, length, size = query.shape
    blocks = batch * heads * -(-length // 64)
    processors = 2 * _gpu_reductions.processors()
    columns = -(-key.shape[2] // (256 if size <= 64 else 128 if size <= 128 else 64))
    if blocks >= 0.8 * processors:
        return 1
    efficiencies = {}
    for parts in range(1, min(128, processors, columns) + 1):
        # A part more that leaves the longest one as long changes nothing.
        if parts == 1 or -(-columns // parts) != -(-columns // (parts - 1)):
            waves = blocks * parts / processors
            efficiencies[parts] = waves / -(-blocks * parts // processors)
    enough = 0.85 * max(efficiencies.values())
    return next(parts for parts, value in efficiencies.items() if value >= enough)


def _flash_attention_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients, with a sum for each query and a gradient of it in high precision meanwhile."""
    results = [torch.empty_like(x.transpose(1, 2)).transpose(1, 2) for x in (query, key, value)]
    batch, heads, length, size = query.shape
    length += -length % 128
    size = _rounded_size(query)
    sums = query.new_empty((batch, heads, length), dtype=torch.float32)
    added = query.new_empty((batch, length, heads, size), dtype=torch.float32)
    parts = _parts_of_heads(query, key)
    del parts, added, sums
    return results[0], results[1], results[2]


# Operators, their kernels, and the dispatch key.
KERNELS: tuple[tuple[Any, Any, str], ...] = (
    (_ATEN._scaled_dot_product_flash_attention.default, _flash_attention, "Meta"),
    (_ATEN._scaled_dot_product_flash_attention_backward.default, _flash_attention_backward, "Meta"),
    (_ATEN._scaled_dot_product_efficient_attention.default, _efficient_attention, "Meta"),
    (
        _ATEN._scaled_dot_product_efficient_attention_backward.default,
        _efficient_attention_backward,
        "Meta",
    ),
    (_ATEN.scaled_dot_product_attention.default, attention, "AutogradMeta"),
)
