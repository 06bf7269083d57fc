"""Tensors that stalloc itself makes, inside of whatever the program is doing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_C: Any = torch._C  # for the parts that have no types


@contextlib.contextmanager
def plain_tensors() -> Iterator[None]:
    """Operators in the block make plain tensors, which have memory.

    A module may be called inside of `torch.func.vmap` or `grad`, or of a mode that takes operators
    over (`FakeTensorMode`), and so may stalloc's hooks.
    """
    with _C._DisableFuncTorch(), _C._DisableTorchDispatch():
        yield
