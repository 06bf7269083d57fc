"""Losses that request the same memory on a GPU and on a CPU, and other than on the meta device.

The source is `aten/src/ATen/native/Loss.cpp`. The elements have the shape, the strides and the type
of the difference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ATEN = torch.ops.aten


def _reduced_beside(x: Tensor, target: Tensor, reduction: int = 1, *_: float) -> Tensor:
    """A loss whose storage has room for all elements, which are reduced from a temporary."""
    result = x - target
    if reduction:
        temporary = x - target
        del temporary
        result.resize_(())
    return result


def _reduced(x: Tensor, target: Tensor, reduction: int = 1, *_: float) -> Tensor:
    """A loss that is reduced from a temporary."""
    elements = x - target
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


# Operators, their kernels, and the dispatch key.
KERNELS: tuple[tuple[Any, Any, str], ...] = (
    (_ATEN.mse_loss.default, _reduced_beside, "Meta"),
    (_ATEN.smooth_l1_loss.default, _reduced_beside, "Meta"),
    (_ATEN.huber_loss.default, _reduced, "Meta"),
    (_ATEN.binary_cross_entropy.default, _reduced_in_place, "Meta"),
)
