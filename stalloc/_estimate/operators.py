"""Answers of the pretended GPU to operators whose kernel for the meta device will not do.

They read values, have results whose shapes depend on values, request otherwise than a GPU's kernel,
or have no kernel for the meta device.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from stalloc._estimate import choices
from stalloc._estimate.gpu import MOST_COPIED, PretendedGpu, answers, engine_asks, own_gpu
from stalloc._estimate.values import keep_values
from stalloc._unrecorded import unrecorded

_ATEN: Any = torch.ops.aten
_torch: Any = torch  # for the parts that have no types


def register() -> None:
    """Does nothing: importing this module registers the answers."""


# References to a gradient of the engine during a dispatch: its tensor and the storage object that
# counts; the engine's, and those of the arguments on their way here.
_UNSHARED_STORAGE = 2
_UNSHARED_TENSOR = 5


# The first two come from below autograd, as from DTensor; elsewhere they are the third one.
@answers(_ATEN.is_nonzero.default, _ATEN.item.default, _ATEN._local_scalar_dense.default)
def _read(gpu: PretendedGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    number = gpu.values.number(args[0])
    return bool(number) if func is _ATEN.is_nonzero.default else number


@answers(_ATEN.equal.default)
def _compare(gpu: PretendedGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    gpu.values.note("torch.equal", True)
    return True


@answers(_ATEN._to_copy.default)
def _move(gpu: PretendedGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, device = args[0], kwargs.get("device")
    if not isinstance(tensor, FakeTensor):
        result = gpu.run(func, args, kwargs)
        keep_values(result, tensor)
        return result
    if device is None or device.type != "cpu" or tensor.fake_device.type != "cuda":
        return NotImplemented
    if tensor.numel() * tensor.element_size() > MOST_COPIED:
        return NotImplemented  # a tensor on the host without memory
    return gpu.values.copy(tensor, kwargs.get("dtype"))


@answers(_ATEN.copy_.default)
def _fill(gpu: PretendedGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target, source = args[:2]
    if isinstance(target, FakeTensor):
        result = gpu.run(func, args, kwargs)
        if not isinstance(source, FakeTensor) and target.shape == source.shape:
            keep_values(target, source, written=True)
        return result
    return target.copy_(gpu.values.copy(source).expand_as(target))


@answers(_ATEN.convolution.default)
def _convolve(gpu: PretendedGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A convolution of a GPU keeps the channels last if its input or its weight has them last."""
    tensors = [x for x in args[:2] if isinstance(x, Tensor)]
    layout = next((layout for layout in map(_channels_last, tensors) if layout), None)
    if layout is None or gpu.common_device(func, list(tensors)).type != "cuda":
        return NotImplemented
    with unrecorded():
        shape = gpu.run(func, args, kwargs).shape
    keywords = {"dtype": args[0].dtype, "device": own_gpu(), "memory_format": layout}
    return gpu.run(_ATEN.empty.memory_format, (list(shape),), keywords)


def _channels_last(tensor: Tensor) -> torch.memory_format | None:
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = layouts.get(tensor.dim())
    if layout is None or tensor.is_contiguous():
        return None
    return layout if tensor.is_contiguous(memory_format=layout) else None


@answers(_ATEN.add.Tensor)
def _accumulate(gpu: PretendedGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Adds a gradient to an earlier one of the same tensor as autograd does on a GPU.

    It adds in place if nobody else has the earlier one. For tensors of a class of their own it
    makes a new one instead.
    """
    if kwargs or torch.is_grad_enabled() or not engine_asks(sys._getframe(1)):
        return NotImplemented
    if not all(isinstance(arg, FakeTensor) for arg in args) or args[0].shape != args[1].shape:
        return NotImplemented
    if args[0].dtype == args[1].dtype and _is_unshared(args[0]):
        return gpu.run(_ATEN.add_.Tensor, args, {})
    return NotImplemented


def _is_unshared(tensor: FakeTensor) -> bool:
    """True for a gradient that the autograd engine alone holds."""
    uses = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    holders: int = tensor._use_count()  # type: ignore[attr-defined]
    return uses == _UNSHARED_STORAGE and holders <= _UNSHARED_TENSOR and _is_dense(tensor)


def _is_dense(tensor: Tensor) -> bool:
    """True if the elements fill a range of memory, each its own place."""
    expected = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length != 1:
            if stride != expected:
                return False
            expected *= length
    return True


@answers(_ATEN.split_with_sizes_copy.out, _ATEN._chunk_cat.out)
def _write(gpu: PretendedGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A GPU has a kernel that writes to `out`; the meta device makes the result, and copies it."""
    with unrecorded():
        return gpu.run(func, args, kwargs)


@answers(_ATEN.all.default, _ATEN.any.default)
def _reduce(gpu: PretendedGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = gpu.run(func, args, kwargs)
    if getattr(args[0], "_stalloc_guess", False):
        result._stalloc_guess = True
    return result


@answers(_ATEN.nonzero.default)
def _nonzero(gpu: PretendedGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mask = args[0]
    count = choices.selected(mask)
    gpu.values.note("the number of elements that a mask selects", count)
    return gpu.run(
        _ATEN.empty.memory_format,
        ([count, mask.dim()],),
        {"dtype": torch.int64, "device": mask.device},
    )


@answers(_ATEN.masked_select.default)
def _select(gpu: PretendedGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, mask = args
    count = 1
    for length in _torch.broadcast_shapes(tensor.shape, mask.shape):
        count *= length
    gpu.values.note("the number of elements that a mask selects", count)
    return gpu.run(
        _ATEN.empty.memory_format, ([count],), {"dtype": tensor.dtype, "device": tensor.device}
    )


@answers(_ATEN.index.Tensor)
def _index(gpu: PretendedGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, indices = args
    masks = (torch.bool, torch.uint8)
    if not any(index is not None and index.dtype in masks for index in indices):
        return NotImplemented
    numbers: list[Any] = []
    for index in indices:
        if index is None or index.dtype not in masks:
            numbers.append(index)
        elif isinstance(index, FakeTensor):
            positions = _nonzero(gpu, func, (index,), {})
            numbers += [
                gpu.run(_ATEN.select.int, (positions, 1, dim), {}) for dim in range(index.dim())
            ]
        else:
            numbers += list(index.nonzero(as_tuple=True))
    return gpu.run(func, (tensor, numbers), kwargs)


@answers(_ATEN.bincount.default)
def _count(gpu: PretendedGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    bins = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
    bins = max(bins, choices.among(tensor) or 0)
    if not bins:
        return NotImplemented
    gpu.values.note("the number of bins", bins)
    dtype = torch.int64 if len(args) < 2 or args[1] is None else args[1].dtype
    keywords = {"dtype": dtype, "device": tensor.device}
    result = gpu.run(_ATEN.empty.memory_format, ([bins],), keywords)
    choices.count(result, tensor.numel() // bins)
    return result


@answers(_ATEN._unique2.default, _ATEN.unique_dim.default, _ATEN.unique_consecutive.default)
def _unique(gpu: PretendedGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    gpu.values.note("the number of different elements", tensor.numel())

    def empty(*shape: int, dtype: torch.dtype = torch.int64) -> Any:
        keywords = {"dtype": dtype, "device": tensor.device}
        return gpu.run(_ATEN.empty.memory_format, (list(shape),), keywords)

    return (
        empty(tensor.numel(), dtype=tensor.dtype),
        empty(*tensor.shape),
        empty(tensor.numel()),
    )


@answers(_ATEN._pack_padded_sequence.default)
def _pack(gpu: PretendedGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Sequences of lengths that the host knows, without the padding."""
    tensor, lengths = args[:2]
    if isinstance(lengths, FakeTensor):
        return NotImplemented
    first, second = (0, 1) if kwargs.get("batch_first", args[2]) else (1, 0)
    if tensor.shape[first] != len(lengths) or int(lengths.max()) > tensor.shape[second]:
        raise RuntimeError(
            f"lengths {lengths.tolist()} are not those of a batch of shape {list(tensor.shape)}"
        )
    shape = [int(lengths.sum()), *tensor.shape[2:]]
    keywords = {"dtype": tensor.dtype, "device": tensor.device}
    longer = lengths[None] > torch.arange(int(lengths.max()))[:, None]
    return gpu.run(_ATEN.empty.memory_format, (shape,), keywords), longer.sum(1)


# Batch normalization over several processes: its kernels exist for CUDA alone.
@answers(_ATEN.batch_norm_stats.default)
def _statistics(gpu: PretendedGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _of_channels(gpu, args[0]), _of_channels(gpu, args[0])


@answers(_ATEN.batch_norm_gather_stats_with_counts.default)
def _gather(gpu: PretendedGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _of_channels(gpu, args[0]), _of_channels(gpu, args[0])


@answers(_ATEN.batch_norm_elemt.default, _ATEN.batch_norm_backward_elemt.default)
def _normalize(gpu: PretendedGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return gpu.run(_ATEN.empty_like.default, (args[0],), {})


@answers(_ATEN.batch_norm_backward_reduce.default)
def _sums(gpu: PretendedGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, weight, wanted = args[1], args[4], args[5:8]
    sums = [_of_channels(gpu, x) if wanted[0] else None for _ in range(2)]
    of_weight = [
        gpu.run(_ATEN.empty_like.default, (weight,), {}) if asked and weight is not None else None
        for asked in wanted[1:]
    ]
    return (*sums, *of_weight)


def _of_channels(gpu: PretendedGpu, tensor: Any) -> Any:
    """A number for each channel, in the type that a GPU sums up in."""
    dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    keywords = {"dtype": dtype, "device": own_gpu()}
    return gpu.run(_ATEN.empty.memory_format, ([tensor.shape[1]],), keywords)
