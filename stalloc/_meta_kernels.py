"""Records on the meta device what the kernels of a GPU request.

torch runs most operators of the meta device in Python: references and decompositions, which exist
for the shapes of their results. A GPU has none of their temporaries, since its kernel writes the
result directly: `exp_` requests nothing there, and a copy of the tensor here. While a profile
records, each of these kernels is wrapped. Inside it nothing is recorded, and each new storage of
its result is one request, as is the storage of an `out` that it enlarges. Operators that torch
composes of others in C++ are composed on a GPU as well, and keep their temporaries. So do
functions in Python that call several operators.

Some operators differ from device to device, and are given the way of a GPU: dropout, the choice of
attention, and losses, whose kernels have temporaries of their own.

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

from stalloc._torch_modules import torch_module

_Kernel = Callable[..., Any]

_ATEN = torch.ops.aten

_torch: Any = torch  # for the parts that have no types
_libraries: list[Any] = []
_inside = threading.local()

_MOST = 256  # elements of a head in flash-attention 2


def install() -> None:
    """Puts the recorder behind the meta device. No-op if it is."""
    torch_module().install_meta()
    if _libraries:
        return
    library = _torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    for operator, kernel in _python_kernels():
        library.impl(operator, _without_temporaries(kernel), "Meta")
    for operator, kernel in (
        (_ATEN.mse_loss.default, _reduced_beside),
        (_ATEN.smooth_l1_loss.default, _reduced_beside),
        (_ATEN.huber_loss.default, _reduced),
        (_ATEN.binary_cross_entropy.default, _reduced_in_place),
        (_ATEN.binary_cross_entropy_with_logits.default, _with_logits),
        (_ATEN.logsumexp.default, _logsumexp),
    ):
        library.impl(operator, kernel, "Meta")
    library.impl(_ATEN.dropout.default, _dropout, "AutogradMeta")
    library.impl(_ATEN.scaled_dot_product_attention.default, attention, "AutogradMeta")


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


def _reduced_beside(x: Tensor, target: Tensor, reduction: int = 1, *_: float) -> Tensor:
    """A loss whose storage has room for all elements, which are reduced from a temporary."""
    result = _elements(x, target)
    if reduction:
        temporary = _elements(x, target)
        del temporary
        result.resize_(())
    return result


def _reduced(x: Tensor, target: Tensor, reduction: int = 1, *_: float) -> Tensor:
    """A loss that is reduced from a temporary."""
    elements = _elements(x, target)
    return elements.new_empty(()) if reduction else elements


def _reduced_in_place(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    """A loss whose storage has room for all elements, and holds them first."""
    result = torch.empty_like(x)
    if reduction:
        reduced = x.new_empty(())
        del reduced
        result.resize_(())
    return result


def _elements(x: Tensor, target: Tensor) -> Tensor:
    return x - target  # its shape, strides and type


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
    short = query.dtype in (torch.float16, torch.bfloat16)
    result: Tensor
    if plain and short and attn_mask is None and size <= _MOST and allowed.flash_sdp_enabled():
        scale = size**-0.5 if scale is None else scale
        inputs = [_padded(tensor) for tensor in (query, key, value)]
        result = _ATEN._scaled_dot_product_flash_attention.default(
            *inputs, dropout_p, is_causal, scale=scale
        )[0]
        return result[..., :size]
    short = short or query.dtype == torch.float32
    if plain and short and not enable_gqa and allowed.mem_efficient_sdp_enabled():
        trains = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.where(attn_mask, 0.0, -torch.inf).to(query.dtype)
        if attn_mask is not None:
            shape = (*query.shape[:2], query.shape[2], key.shape[2])
            attn_mask = attn_mask.expand(shape)
        result = _ATEN._scaled_dot_product_efficient_attention.default(
            query, key, value, attn_mask, trains, dropout_p, is_causal, scale=scale
        )[0]
        return result
    result = _ATEN._scaled_dot_product_attention_math.default(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]
    return result


def _padded(x: Tensor) -> Tensor:
    """Flash-attention's kernels take heads of multiples of 8 elements."""
    missing = -x.shape[-1] % 8
    padded: Tensor = torch.nn.functional.pad(x, (0, missing)) if missing else x
    return padded


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
