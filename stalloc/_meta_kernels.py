"""Records on the meta device what the kernels of a GPU request.

torch runs most operators of the meta device in Python: references and decompositions, which exist
for the shapes of their results. A GPU has none of their temporaries, since its kernel writes the
result directly: `exp_` requests nothing there, and a copy of the tensor here. While a profile
records, each of these kernels is wrapped. Inside it nothing is recorded, and each new storage of
its result is one request, as is the storage of an `out` that it enlarges. Operators that torch
composes of others in C++ are composed on a GPU as well, and keep their temporaries. So do
functions in Python that call several operators.

Some operators differ from device to device, and are given the way of a GPU: `_gpu_operators.py`.

Invariant: without a recording torch has its own kernels. The wrapper costs some microseconds a
call; runs under a plan never are on the meta device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey

from stalloc import _gpu_operators
from stalloc._torch_modules import torch_module

_Kernel = Callable[..., Any]

_ATEN = torch.ops.aten

_torch: Any = torch  # for the parts that have no types
_libraries: list[Any] = []
_inside = threading.local()


def install() -> None:
    """Puts the recorder behind the meta device. No-op if it is."""
    torch_module().install_meta()
    if _libraries:
        return
    library = _torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    for operator, kernel in _python_kernels():
        library.impl(operator, _without_temporaries(kernel), "Meta", allow_override=True)
    for operator, kernel, key in _gpu_operators.KERNELS:
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


@contextmanager
def unrecorded() -> Iterator[None]:
    """Requests nothing meanwhile on the meta device, on this thread; may be nested."""
    module = torch_module()
    outermost = not getattr(_inside, "kernel", False)
    if outermost:
        _inside.kernel = True
        module.mute_meta(True)
    try:
        yield
    finally:
        if outermost:
            module.mute_meta(False)
            _inside.kernel = False


def _python_kernels() -> Iterator[tuple[torch._ops.OpOverload, _Kernel]]:
    """The operators whose kernel for the meta device is one of torch's in Python."""
    from torch import _meta_registrations

    library = _meta_registrations._meta_lib_dont_use_me_use_register_meta
    for entry in sorted(library._op_impls):
        name, _, overload = entry.split("/")[1].partition(".")
        operator = getattr(getattr(_ATEN, name), overload or "default")
        yield operator, operator.py_kernels[DispatchKey.Meta]


def _without_temporaries(kernel: _Kernel) -> _Kernel:
    @wraps(kernel)
    def run(*args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, "kernel", False):
            return kernel(*args, **kwargs)
        known = {
            storage._cdata: storage.nbytes()
            for storage in map(Tensor.untyped_storage, _tensors((args, tuple(kwargs.values()))))
        }
        with unrecorded():
            result = kernel(*args, **kwargs)
        _request(result, known)
        return result

    return run


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
