"""The share of a mask's elements that is true, where a choice tells it.

A router chooses among experts (`topk`, `argmax`, `multinomial`), and compares the choices with each
expert's number: of `chosen == expert` one in so many elements is true if the router is even.
Nothing is computed, so this is the guess; without it, each expert would get all tokens. Marks lie
on the tensors: `_stalloc_choices`, how many there were to choose among, `_stalloc_share`, and
`_stalloc_each`, the value of each element of a count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_ATEN = torch.ops.aten
_CHOICES, _SHARE, _EACH = "_stalloc_choices", "_stalloc_share", "_stalloc_each"


def follow(func: Any, args: tuple[Any, ...], result: Any) -> None:
    """Marks the result of an operator, if its arguments or itself tell something."""
    mark = _MARKS.get(func)
    if mark is not None and args and isinstance(args[0], Tensor):
        mark(args, result)


def selected(mask: Tensor) -> int:
    """The number of elements of a mask to take for true."""
    return math.ceil(mask.numel() * getattr(mask, _SHARE, 1.0))


def among(indices: Tensor) -> int | None:
    """The number of choices there were; None if the tensor has no choices."""
    number: int | None = getattr(indices, _CHOICES, None)
    return number


def count(tensor: Tensor, value: int) -> None:
    """Notes the value of each element of a tensor of counts."""
    setattr(tensor, _EACH, value)


def each(tensor: Tensor) -> int | None:
    """The value of each element of a tensor of counts; None where nothing tells it."""
    value: int | None = getattr(tensor, _EACH, None)
    return value


def _chosen(args: tuple[Any, ...], result: Any) -> None:
    """The indices of `argmax(x, dim)`, `max(x, dim)` or `sort(x, dim)`."""
    x, indices = args[0], result if isinstance(result, Tensor) else result[1]
    dimension = args[1] if len(args) > 1 else None if isinstance(result, Tensor) else -1
    number = x.numel() if dimension is None else x.shape[dimension] if x.dim() else 1
    setattr(indices, _CHOICES, max(1, number))


def _drawn(args: tuple[Any, ...], result: Any) -> None:
    setattr(result, _CHOICES, max(1, args[0].shape[-1]))


def _top(args: tuple[Any, ...], result: Any) -> None:
    dimension = args[2] if len(args) > 2 else -1
    setattr(result[1], _CHOICES, max(1, args[0].shape[dimension] if args[0].dim() else 1))


def _compared(args: tuple[Any, ...], result: Any) -> None:
    for arg in args[:2]:
        if (number := getattr(arg, _CHOICES, None)) is not None:
            setattr(result, _SHARE, 1 / number)


def _counted(args: tuple[Any, ...], result: Any) -> None:
    """A sum of a mask, the counts of what is true, or a sum of counts."""
    each = getattr(args[0], _SHARE, getattr(args[0], _EACH, None))
    if each is not None and isinstance(result, Tensor) and result.numel():
        setattr(result, _EACH, round(args[0].numel() / result.numel() * each))


def _kept(args: tuple[Any, ...], result: Any) -> None:
    """The same elements in another shape or type, or some of them."""
    for name in (_CHOICES, _SHARE, _EACH):
        value = getattr(args[0], name, None)
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if value is not None and isinstance(tensor, Tensor):
                setattr(tensor, name, value)


_MARKS: dict[Any, Callable[[tuple[Any, ...], Any], None]] = {
    _ATEN.topk.default: _top,
    **dict.fromkeys(
        (
            _ATEN.argmax.default,
            _ATEN.argmin.default,
            _ATEN.max.dim,
            _ATEN.min.dim,
            _ATEN.sort.default,
        ),
        _chosen,
    ),
    _ATEN.multinomial.default: _drawn,
    **dict.fromkeys((_ATEN.eq.Scalar, _ATEN.eq.Tensor), _compared),
    **dict.fromkeys((_ATEN.sum.default, _ATEN.sum.dim_IntList), _counted),
    **dict.fromkeys(
        (
            _ATEN.view.default,
            _ATEN._unsafe_view.default,
            _ATEN.select.int,
            _ATEN.slice.Tensor,
            _ATEN.transpose.int,
            _ATEN.t.default,
            _ATEN.permute.default,
            _ATEN.unsqueeze.default,
            _ATEN.squeeze.default,
            _ATEN.squeeze.dim,
            _ATEN.squeeze.dims,
            _ATEN.expand.default,
            _ATEN.clone.default,
            _ATEN._to_copy.default,
            _ATEN.detach.default,
            _ATEN.alias.default,
            _ATEN.unbind.int,
            _ATEN.split.Tensor,
        ),
        _kept,
    ),
}
