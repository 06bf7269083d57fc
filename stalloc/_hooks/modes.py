"""Observes when modules change between training and evaluation.

torch has no hook for it. `model.train()` and `model.eval()` both call `nn.Module.train`, for every
submodule, too. So this function is replaced while there is a listener. A class that overrides it
without calling it is not seen.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn

Train = Callable[..., nn.Module]


class ModeListener(Protocol):
    """Receives a report of each change, on the thread that makes it."""

    def mode_changed(self, module: nn.Module, training: bool) -> None:
        """`module` was set to train, or to evaluate; it may have been so before."""


_lock = threading.Lock()
_listeners: tuple[ModeListener, ...] = ()
_installed: tuple[Train, Train] | None = None  # the function in place, and the one it replaced


def _telling(train: Train) -> Train:
    @functools.wraps(train)
    def tell(module: nn.Module, mode: bool = True) -> nn.Module:
        result = train(module, mode)
        # Dynamo traces a change of mode inside a compiled forward, and must not see the listeners.
        if not torch.compiler.is_compiling():
            for listener in _listeners:
                listener.mode_changed(module, mode)
        return result

    return tell


def add_listener(listener: ModeListener) -> None:
    """Begins to tell `listener`; thread-safe."""
    global _listeners, _installed
    with _lock:
        _listeners = (*_listeners, listener)
        if _installed is None:
            before: Train = nn.Module.train
            _installed = _telling(before), before
            nn.Module.train = _installed[0]  # type: ignore[method-assign,assignment]


def remove_listener(listener: ModeListener) -> None:
    """Ceases to; the last one out puts back the function that was there.

    If someone else has replaced it since, ours stays below theirs and passes calls through.
    """
    global _listeners, _installed
    with _lock:
        _listeners = tuple(other for other in _listeners if other is not listener)
        if _listeners or _installed is None:
            return
        ours, before = _installed
        _installed = None
        if nn.Module.train is ours:
            nn.Module.train = before  # type: ignore[method-assign,assignment]
