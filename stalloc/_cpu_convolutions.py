"""Convolutions on a CPU: oneDNN has inputs, weights and results in blocks of channels.

    input, weight -> copies in blocks -> result in blocks -> result

torch's allocator serves these tensors. Which layout oneDNN takes depends on the processor; here,
blocks have as many channels as a vector register has numbers, and few channels are not padded.
Scratch memory of oneDNN's own is left out. Source: `aten/src/ATen/native/mkldnn/Conv.cpp`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._meta_registrations import calc_conv_nd_return_shape

_ATEN = torch.ops.aten
_torch: Any = torch  # for the parts that have no types

_FEW = 4  # channels of an input that stays as it is


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Tensor:
    """The result, whose storage is a copy of what oneDNN writes."""
    options = stride, padding, dilation, transposed, output_padding, groups
    shape = _shape(x, weight, *options)
    if not _is_blocked(x, weight, *options):
        return _made(shape, x)
    inputs = _blocked(x.shape, x) if x.shape[1] > _FEW else None
    weights = _blocked_weight(weight, groups)
    blocks = _blocked(shape, x)
    del weights, inputs
    result = _made(shape, x)
    del blocks
    return result


def _convolution_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    wanted: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients, that of the input first."""
    of_x = of_weight = of_bias = None
    options = stride, padding, dilation, transposed, output_padding, groups
    blocked = _is_blocked(x, weight, *options)
    whole = gradient.contiguous()
    if wanted[0]:
        if blocked:
            gradients, weights = (
                _blocked(gradient.shape, x),
                _blocked_weight(weight, groups, pads_all=True),
            )
            of_blocks = _blocked(x.shape, x)
            del weights, gradients
        of_x = _made(list(x.shape), x)
        if blocked:
            del of_blocks
    if wanted[1] or wanted[2]:
        if blocked:
            gradients = _blocked(gradient.shape, x)
            inputs = _blocked(x.shape, x) if x.shape[1] > _FEW else None
            weights = _blocked_weight(weight, groups)
            biases = x.new_empty(weight.shape[0]) if wanted[2] else None
            del inputs, gradients
        of_bias = x.new_empty(weight.shape[0]) if wanted[2] else None
        of_weight = torch.empty_like(weight) if wanted[1] else None
        if blocked:
            del weights, biases
    del whole
    return of_x, of_weight, of_bias


def _is_blocked(x: Tensor, weight: Tensor, *options: Any) -> bool:
    """True if torch takes oneDNN for tensors in a row."""
    if x.dtype != torch.float32 or not (x.is_contiguous() and weight.is_contiguous()):
        return False
    numbers = torch.empty(1)  # on the CPU, where torch asks for the device
    backend = _torch._C._select_conv_backend(
        numbers.expand(x.shape), numbers.expand(weight.shape), None, *options, None
    )
    return bool(backend == _torch._C._ConvBackend.Mkldnn)


def _shape(
    x: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> list[int]:
    sizes = stride, padding, dilation, transposed, groups
    added = output_padding if transposed else None
    return list(calc_conv_nd_return_shape(x, weight, *sizes, added))  # type: ignore[no-untyped-call, unused-ignore]


def _made(shape: list[int], like: Tensor) -> Tensor:
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = layouts.get(like.dim(), torch.contiguous_format)
    if like.is_contiguous() or not like.is_contiguous(memory_format=layout):
        layout = torch.contiguous_format
    return torch.empty(shape, dtype=like.dtype, device="meta", memory_format=layout)


def _channels() -> int:
    return 16 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8


def _padded(channels: int) -> int:
    return channels + -channels % _channels()


def _blocked(shape: Any, like: Tensor) -> Tensor:
    return like.new_empty((shape[0], _padded(shape[1]), *shape[2:]))


def _blocked_weight(weight: Tensor, groups: int, *, pads_all: bool = False) -> Tensor:
    outputs, inputs, *rest = weight.shape
    if groups > 1:
        return weight.new_empty(weight.shape)
    if inputs > _FEW or pads_all:
        inputs = _padded(inputs)
    return weight.new_empty((_padded(outputs), inputs, *rest))


# Operators, their kernels, and the dispatch key.
KERNELS: tuple[tuple[Any, Any, str], ...] = (
    (_ATEN.convolution.default, _convolution, "Meta"),
    (_ATEN.convolution_backward.default, _convolution_backward, "Meta"),
)
