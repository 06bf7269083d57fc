"""Collectives of gloo that are over when they return.

The thread of gloo that did the work drops its reference to a tensor a moment after it has said that
it is done, so that the tensor would be freed at a random moment, which no GPU does.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

_COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all_single",
    "broadcast",
    "reduce",
    "reduce_scatter_tensor",
)


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """Inside, what torch.distributed's functions were given is let go of when they return."""
    with contextlib.ExitStack() as stack:
        for name in _COLLECTIVES:
            waiting = _waiting(getattr(torch.distributed, name))
            stack.enter_context(mock.patch.object(torch.distributed, name, waiting))
        yield


def _waiting(collective: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(collective)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
        before = [tensor._use_count() for tensor in tensors]
        work = collective(*args, **kwargs)
        if work is None:
            while any(t._use_count() > n for t, n in zip(tensors, before, strict=True)):
                os.sched_yield()
        return work

    return wrapper
