"""Reductions on a GPU: a kernel that divides a sum among thread blocks needs scratch memory.

Each block leaves its part in a buffer, and a counter for each output tells the last block to add
the parts up. The division is that of torch's `Reduce.cuh`, which all reductions share:

    input (rows x columns)        blocks of 32 x 4 threads, each with 4 columns
    summed over the rows          rows / 4 a thread; from 256 on, several blocks for each column

An input of 2 GiB or more is reduced in pieces, whose scratch memory is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

_ATEN = torch.ops.aten

_THREADS = 512  # of a block, at most
_WARP = 32
_LEAST_VALUES, _MOST_VALUES = 16, 256  # of a thread, where a sum is divided among blocks
_VECTOR = 4
_LEAST_VECTORIZED = 128
_LONGEST = (1 << 31) - 1  # bytes that an index of 32 bits reaches
_COUNTER = 4  # bytes
_SHORT = (torch.float16, torch.bfloat16)


_THREADS_OF = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
"""The most threads of a multiprocessor by compute capability, if they are not 2,048."""


@dataclass(frozen=True, slots=True)
class _Processors:
    """The GPU's streaming multiprocessors, on which the number of blocks depends."""

    count: int = 108
    threads: int = 2048  # on each


_processors = _Processors()
_are_left_out = False


@contextmanager
def left_out() -> Iterator[None]:
    """In the block, reductions request no scratch memory: its sizes follow no law of the input."""
    global _are_left_out
    before, _are_left_out = _are_left_out, True
    try:
        yield
    finally:
        _are_left_out = before


@contextmanager
def on(count: int, capability: tuple[int, int]) -> Iterator[None]:
    """Reductions in the block run on a GPU of so many multiprocessors; else on an A100.

    Args:
        count: The number of streaming multiprocessors.
        capability: CUDA's compute capability.
    """
    global _processors
    before = _processors
    _processors = _Processors(count, _THREADS_OF.get(capability, 2048))
    try:
        yield
    finally:
        _processors = before


def processors() -> int:
    """The number of the GPU's streaming multiprocessors."""
    return _processors.count


def scratch(x: Tensor, dims: Sequence[int], size: int) -> tuple[int, int] | None:
    """The bytes of the buffer and of the counters, or None if no sum is divided among blocks.

    Args:
        x: The input.
        dims: Its dimensions that are reduced, each at least 0.
        size: Bytes of a part of a result.
    """
    if _are_left_out or x.numel() == 0 or _reach(x) > _LONGEST:
        return None
    axes = _axes(x, frozenset(dims))
    reduced = [axis for axis in axes if axis[2] == 0]
    outputs = prod(length for length, _, kept in axes if kept)
    inputs = x.numel() // outputs
    along = len(reduced) == len(axes) or (bool(reduced) and axes[0][1] < axes[len(reduced)][1])
    width, height, fastest, vector = 1, 1, 1, 1
    if axes:
        width, height = (inputs, outputs) if along else (outputs, inputs)
        fastest = axes[0 if along else len(reduced)][1]
    if fastest == 1 and along and width >= _LEAST_VECTORIZED and len(reduced) == 1:
        width //= _VECTOR
    elif fastest == 1 and not along:
        vector = _output_vector(x, axes, len(reduced))
        width //= vector
    across, down = _block(width, height, _THREADS // vector)
    values, outputs_of_block = _divided(inputs, across), 1
    if not along:
        values, outputs_of_block = inputs, across
    if values < min(down * 16, _MOST_VALUES):
        return None  # each warp has outputs of its own
    values = _divided(values, down)
    grid = _divided(outputs // vector, outputs_of_block)
    room = _processors.count * (_processors.threads // (across * down))
    if values < _MOST_VALUES or grid > room:
        return None
    blocks = _divided(room, grid)
    blocks = min(max(blocks, _divided(values, _MOST_VALUES)), _divided(values, _LEAST_VALUES))
    if blocks <= 1:
        return None
    return size * outputs * blocks * (1 if along else across * vector), _COUNTER * grid


_Axis = tuple[int, int, int]
"""Elements, and the strides of input and output in elements; 0 in the output if it is reduced."""


def _axes(x: Tensor, dims: frozenset[int]) -> list[_Axis]:
    """The input's dimensions as torch's iterator has them: fastest first, and merged."""
    axes: list[_Axis] = []
    step = 1
    for dim in range(x.dim() - 1, -1, -1):
        length = x.shape[dim]
        axes.append((length, x.stride(dim), 0 if dim in dims else step))
        step *= 1 if dim in dims else length
    for place in range(1, len(axes)):
        moving = place
        for before in range(place - 1, -1, -1):
            order = _order(axes[before], axes[moving])
            if order > 0:
                axes[before], axes[moving] = axes[moving], axes[before]
                moving = before
            elif order < 0:
                break
    merged: list[_Axis] = []
    for axis in axes:
        last = merged[-1] if merged else None
        if last is None or not _may_merge(last, axis):
            merged.append(axis)
        elif last[0] == 1:
            merged[-1] = axis
        else:
            merged[-1] = (last[0] * axis[0], last[1], last[2])
    return [axis for axis in merged if axis[0] != 1 or len(merged) > 1]


def _order(a: _Axis, b: _Axis) -> int:
    """Positive if the second axis comes before the first one."""
    for stride, other, output in ((a[2], b[2], True), (a[1], b[1], False)):
        if output and (stride == 0) != (other == 0):
            return 1 if other == 0 else -1
        if stride == 0 or other == 0:
            continue
        if stride != other:
            return -1 if stride < other else 1
        if a[0] > b[0]:
            return 1
    return 0


def _may_merge(a: _Axis, b: _Axis) -> bool:
    return 1 in (a[0], b[0]) or all(a[0] * a[i] == b[i] for i in (1, 2))


def _output_vector(x: Tensor, axes: list[_Axis], output: int) -> int:
    """Neighbouring outputs of a thread, which reads their inputs at once."""
    numbers = [x.storage_offset(), axes[output][0]]
    numbers += [axis[1] for place, axis in enumerate(axes) if place != output]
    vector = _VECTOR
    while any(number % vector for number in numbers):
        vector //= 2
    return vector


def _block(width: int, height: int, most: int) -> tuple[int, int]:
    """The threads of a block, across and down."""
    across, down = (1 << (max(1, min(n, most)).bit_length() - 1) for n in (width, height))
    narrow = min(across, _WARP)
    down = min(down, most // narrow)
    return min(across, most // down), down


def _divided(number: int, by: int) -> int:
    return -(-number // by)


def _reach(x: Tensor) -> int:
    steps = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return max(x.numel(), (1 + steps) * x.element_size())


def _reduced(
    x: Tensor, dim: Sequence[int] | None, keepdim: bool, dtype: torch.dtype, cast: torch.dtype
) -> Tensor:
    """The result, and the scratch memory meanwhile."""
    dims = sorted({d % max(x.dim(), 1) for d in dim} if dim else range(x.dim()))
    kept = [1 if d in dims else n for d, n in enumerate(x.shape) if keepdim or d not in dims]
    result = x.new_empty(kept, dtype=dtype)
    if x.dtype != cast and not (x.dtype in _SHORT and cast == torch.float32):
        x = x.to(cast)
    size = 4 if x.dtype in _SHORT else cast.itemsize
    needed = scratch(x, dims, size)
    if needed is not None:
        parts = [x.new_empty(count, dtype=torch.uint8) for count in needed]
        del parts
    return result


def _sum(
    x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    if dtype is None:
        counts = not (x.is_floating_point() or x.is_complex())
        dtype = torch.int64 if counts else x.dtype
    return _reduced(x, dim, keepdim, dtype, dtype)


def _sum_of_all(x: Tensor, *, dtype: Any = None) -> Tensor:
    return _sum(x, dtype=dtype)


def _mean(
    x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    dtype = dtype or x.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        raise RuntimeError(
            f"mean(): could not infer output dtype. Input dtype must be either a floating point or "
            f"complex dtype. Got: {x.dtype}"
        )
    return _reduced(x, dim, keepdim, dtype, dtype)


KERNELS: tuple[tuple[Any, Any, str], ...] = (
    (_ATEN.sum.default, _sum_of_all, "Meta"),
    (_ATEN.sum.dim_IntList, _sum, "Meta"),
    (_ATEN.mean.dim, _mean, "Meta"),
)
