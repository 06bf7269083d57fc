"""Observes when modules change between training and evaluation.

torch has no hook for it. `model.train()` and `model.eval()` both call `nn.Module.train`, for every
submodule, too. So this function is replaced while there is a listener. A class that overrides it
without calling it is not seen.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Protocol

from torch import nn


class ModeListener(Protocol):
    """Receives a report of each change, on the thread that makes it."""

    def mode_changed(self, module: nn.Module, training: bool) -> None:
        """`module` was set to train, or to evaluate; it may have been so before."""


_lock = threading.Lock()
_listeners: tuple[ModeListener, ...] = ()
_train_before = nn.Module.train


@functools.wraps(nn.Module.train)
def _train(module: nn.Module, mode: bool = True) -> Any:
    result = _train_before(module, mode)
    for listener in _listeners:
        listener.mode_changed(module, mode)
    return result


def add_listener(listener: ModeListener) -> None:
    """Begins to tell `listener`; thread-safe."""
    global _listeners, _train_before
    with _lock:
        if not _listeners and nn.Module.train is not _train:
            _train_before = nn.Module.train
            nn.Module.train = _train  # type: ignore[method-assign]
        _listeners = (*_listeners, listener)


def remove_listener(listener: ModeListener) -> None:
    """Ceases to; the last one out puts back the function that was there.

    If someone else has replaced it since, ours stays below theirs and passes calls through.
    """
    global _listeners
    with _lock:
        _listeners = tuple(other for other in _listeners if other is not listener)
        if not _listeners and nn.Module.train is _train:
            nn.Module.train = _train_before  # type: ignore[method-assign]
