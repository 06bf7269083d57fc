"""Observes the calls of the autograd engine.

`torch.autograd.backward`, `torch.autograd.grad`, `Tensor.backward` and direct callers of the engine
(such as Megatron's pipeline) look it up as `Variable._execution_engine`, in every torch so far. So
this attribute is replaced while there is a listener, by an engine of the same type, because
torch.compile checks the type. Full-backward hooks would turn modules' outputs into views.

Calls from inside a running graph task (reentrant checkpointing) also arrive here, on any thread.
The listeners select the calls that matter.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

import torch
from torch.autograd.variable import Variable


class BackwardListener(Protocol):
    """Receives a report of each engine call, on the thread that makes it."""

    def backward_begins(self) -> bool:
        """Returns whether `backward_ends` shall follow."""

    def backward_ends(self) -> None:
        """The engine returned or raised."""


_lock = threading.Lock()
_listeners: tuple[BackwardListener, ...] = ()


class _ListeningEngine(torch._C._ImperativeEngine):
    """Passes everything on to the engine that was there before."""

    def __init__(self, engine: Any) -> None:
        super().__init__()
        self.engine = engine

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        told = [listener for listener in _listeners if listener.backward_begins()]
        try:
            return self.engine.run_backward(*args, **kwargs)
        finally:
            for listener in reversed(told):
                listener.backward_ends()


def add_listener(listener: BackwardListener) -> None:
    """Begins to tell `listener`; thread-safe."""
    global _listeners
    with _lock:
        _listeners = (*_listeners, listener)
        if not isinstance(Variable._execution_engine, _ListeningEngine):
            Variable._execution_engine = _ListeningEngine(Variable._execution_engine)


def remove_listener(listener: BackwardListener) -> None:
    """Ceases to; the last one out puts back the engine that was there.

    If someone else has replaced it since, ours stays below theirs and passes calls through.
    """
    global _listeners
    with _lock:
        _listeners = tuple(other for other in _listeners if other is not listener)
        if not _listeners and isinstance(Variable._execution_engine, _ListeningEngine):
            Variable._execution_engine = Variable._execution_engine.engine
