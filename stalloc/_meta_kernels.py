"""Records on the meta device what the kernels of a GPU, or of a CPU, request.

torch runs most operators of the meta device in Python: references and decompositions, which exist
for the shapes of their results. A GPU has none of their temporaries, since its kernel writes the
result directly: `exp_` requests nothing there, and a copy of the tensor here. While a profile
records, each of these kernels is wrapped. Inside it nothing is recorded, and each new storage of
its result is one request, as is the storage of an `out` that it enlarges. Operators that torch
composes of others in C++ are composed on a GPU as well, and keep their temporaries. So do
functions in Python that call several operators.

Some operators differ from device to device, and are given the way of a GPU (`_gpu_operators`,
`_gpu_attention` and `_gpu_reductions`), or of a CPU (`_cpu_operators`, `_cpu_attention` and
`_cpu_convolutions`). For a CPU, operators that it composes of others in C++ are composed so, too.

A kernel in Python takes up to a millisecond, and a training run calls it with the same shapes again
and again. So the shapes of new results are kept for arguments that look the same.

Invariant: without a recording torch has its own kernels. The wrapper costs some microseconds a
call; runs under a plan never are on the meta device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey

from stalloc import (
    _cpu_attention,
    _cpu_convolutions,
    _cpu_operators,
    _gpu_attention,
    _gpu_operators,
    _gpu_reductions,
    _loss_operators,
)
from stalloc._torch_modules import torch_module
from stalloc._unrecorded import is_unrecorded, unrecorded

_Kernel = Callable[..., Any]

_ATEN = torch.ops.aten

_torch: Any = torch  # for the parts that have no types
_libraries: list[Any] = []
_KERNELS = {
    "cuda": (
        *_gpu_operators.KERNELS,
        *_gpu_attention.KERNELS,
        *_gpu_reductions.KERNELS,
        *_loss_operators.KERNELS,
    ),
    "cpu": (
        *_cpu_operators.KERNELS,
        *_cpu_attention.KERNELS,
        *_cpu_convolutions.KERNELS,
        *_loss_operators.KERNELS,
    ),
}


def install(target: str = "cuda") -> None:
    """Puts the recorder behind the meta device. No-op if it is.

    Args:
        target: The device whose kernels it has, "cuda" or "cpu".
    """
    torch_module().install_meta()
    if _libraries:
        return
    library = _torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    for operator, kernel in _python_kernels():
        if target == "cpu" and _is_composed(operator):
            composed = partial(operator._op_dk, DispatchKey.CompositeExplicitAutograd)
            library.impl(operator, composed, "Meta", allow_override=True)
            continue
        wrapped = _without_temporaries(kernel, is_new=_returns_new_tensors(operator))
        library.impl(operator, wrapped, "Meta", allow_override=True)
    for operator, kernel, key in _KERNELS[target]:
        if operator in _gpu_operators.COMPOSED:
            # impl() refuses operators that torch composes of others elsewhere.
            library.m.impl(operator.name().partition("::")[2], key, kernel, False)
        else:
            library.impl(operator, kernel, key, allow_override=True)


def uninstall() -> None:
    """Gives torch its kernels and its allocator back. No-op if it has them."""
    while _libraries:
        _libraries.pop()._destroy()
    torch_module().uninstall_meta()


def _python_kernels() -> Iterator[tuple[torch._ops.OpOverload, _Kernel]]:
    """The operators whose kernel for the meta device is one of torch's in Python."""
    from torch import _meta_registrations

    library = _meta_registrations._meta_lib_dont_use_me_use_register_meta
    for entry in sorted(library._op_impls):
        name, _, overload = entry.split("/")[1].partition(".")
        operator = getattr(getattr(_ATEN, name), overload or "default")
        yield operator, operator.py_kernels[DispatchKey.Meta]


def _is_composed(operator: torch._ops.OpOverload) -> bool:
    """True if a CPU has no kernel of its own, and composes others' in C++."""
    name = operator.name()  # type: ignore[no-untyped-call]
    has = _torch._C._dispatch_has_kernel_for_dispatch_key
    return (
        not has(name, "CPU")
        and has(name, "CompositeExplicitAutograd")
        and _returns_new_tensors(operator)
    )


def _returns_new_tensors(operator: torch._ops.OpOverload) -> bool:
    """True if nothing that the operator returns or writes to is, or shows, one of its arguments."""
    schema = operator._schema
    return all(x.alias_info is None for x in (*schema.arguments, *schema.returns))


def _without_temporaries(kernel: _Kernel, *, is_new: bool) -> _Kernel:
    shapes: dict[tuple[Any, ...], _Shapes] = {}

    @wraps(kernel)
    def run(*args: Any, **kwargs: Any) -> Any:
        if is_unrecorded():
            return kernel(*args, **kwargs)
        look = _look(args, kwargs) if is_new else None
        if look is not None and (found := shapes.get(look)) is not None:
            return found.make()
        known = {
            storage._cdata: storage.nbytes()
            for storage in map(Tensor.untyped_storage, _tensors((args, tuple(kwargs.values()))))
        }
        with unrecorded():
            result = kernel(*args, **kwargs)
        if look is not None and (found := _Shapes.of(result, known)) is not None:
            if len(shapes) == _MOST_SHAPES:
                shapes.clear()
            shapes[look] = found
        _request(result, known)
        return result

    return run


_MOST_SHAPES = 4096
"""Looks of arguments that are kept for an operator."""


@dataclass(frozen=True, slots=True)
class _Shapes:
    """The tensors that a kernel has made: for each its shape, strides and type."""

    tensors: tuple[tuple[torch.Size, tuple[int, ...], torch.dtype], ...]
    several: bool
    """True if the kernel returns a sequence, which it may of one tensor, too."""

    @classmethod
    def of(cls, result: Any, known: dict[int, int]) -> _Shapes | None:
        """Those of a result; None if it is more than new tensors that fill their storages."""
        several = isinstance(result, tuple | list)
        tensors = tuple(result) if several else (result,)
        if not all(type(x) is Tensor and x.is_meta and _fills_storage(x) for x in tensors):
            return None
        storages = {x.untyped_storage()._cdata for x in tensors}
        if len(storages) < len(tensors) or not storages.isdisjoint(known):
            return None
        return cls(tuple((x.shape, x.stride(), x.dtype) for x in tensors), several)

    def make(self) -> Any:
        """Requests such tensors."""
        made = tuple(
            torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            for shape, stride, dtype in self.tensors
        )
        return made if self.several else made[0]


def _fills_storage(tensor: Tensor) -> bool:
    end = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    size = end * tensor.element_size() if tensor.numel() else 0
    return (
        tensor.storage_offset() == 0
        and tensor.untyped_storage().nbytes() == size
        and not tensor.is_complex()  # may be marked as conjugated
    )


def _look(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """All that a kernel for the meta device can see of its arguments; None if that is not known."""
    try:
        return (
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            *map(_seen, args),
            *((name, _seen(value)) for name, value in kwargs.items()),
        )
    except _UnknownError:
        return None


class _UnknownError(Exception):
    """An argument of a kind of which not everything is known that a kernel may ask."""


def _seen(value: Any) -> Any:
    if isinstance(value, Tensor):
        if not value.is_meta or value.layout is not torch.strided or value.is_complex():
            raise _UnknownError
        device = getattr(value, "fake_device", None)
        return value.shape, value.stride(), value.storage_offset(), value.dtype, device
    if type(value) in (tuple, list):
        return tuple(map(_seen, value))
    if value is None or type(value) in _PLAIN:
        return type(value), value
    raise _UnknownError


_PLAIN = (int, float, bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


def _request(result: Any, known: dict[int, int]) -> None:
    """Requests the storages of a result that are not known with their size, in their order."""
    made: dict[int, torch.UntypedStorage] = {}
    for tensor in _tensors((result,)):
        storage = tensor.untyped_storage()
        number, size = storage._cdata, storage.nbytes()
        if known.get(number, -1) >= size:
            continue
        if number not in made:
            made[number] = _torch.UntypedStorage(size, device="meta")
        tensor.set_(made[number], tensor.storage_offset(), tensor.shape, tensor.stride())


def _tensors(values: tuple[Any, ...] | list[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)
