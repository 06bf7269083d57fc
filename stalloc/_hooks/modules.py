"""Hooks on modules, and the layers of a model."""

from __future__ import annotations

import fnmatch
import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from stalloc._hooks import registry
from stalloc._hooks.registry import Handle, after_forward, before_forward
from stalloc._hooks.sink import PhaseSink

Pattern = str | type[nn.Module]


class ModuleName(str):
    """A pattern that names one module, without wildcards; the root has no name."""

    __slots__ = ()


class ModuleHook:
    """Calls `function`, on the way into a module or out of it."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> None:
        """Called by the module."""
        self._function(*args)


@functools.cache
def _eager_hook() -> type[ModuleHook]:
    # Not at the top level: disable() imports the compiler, which takes seconds. A training program
    # has imported it already, by making an optimizer.
    class EagerHook(ModuleHook):
        __call__ = torch.compiler.disable(ModuleHook.__call__)  # type: ignore[no-untyped-call]

    return EagerHook


def root_hook(function: Callable[..., None]) -> ModuleHook:
    """A hook that runs even if the module's call is compiled (`module.compile()`)."""
    return _eager_hook()(function)


class LayerHook(ModuleHook):
    """Is not there in compiled code: it would break the graph, and so change the requests."""

    def __call__(self, *args: Any) -> None:
        """Called by the module."""
        if not torch.compiler.is_compiling():
            self._function(*args)


@functools.cache
def _first_forward_hook_class() -> type[ModuleHook]:
    class FirstForwardHook(_eager_hook()):  # type: ignore[misc]
        call_eagerly = _eager_hook().__call__

        # Anywhere else in compiled code it would break the graph: an evaluation would get other
        # values, and a graph that has to be whole an error.
        def __call__(self, module: nn.Module, *args: Any) -> None:
            if not torch.compiler.is_compiling() or (
                module._compiled_call_impl is not None
                and module.training
                and torch.is_grad_enabled()
            ):
                self.call_eagerly(module, *args)

    return FirstForwardHook


def _first_forward_hook(function: Callable[..., None]) -> ModuleHook:
    return _first_forward_hook_class()(function)


Listener = Callable[[nn.Module, tuple[Any, ...]], None]


class _EveryForward:
    """Listeners before each forward of any module, behind one hook that is always the same.

    Compiled code is guarded by the hooks that there are. A hook of each listener's own would make
    torch compile it again whenever a listener comes or goes.

    Args:
        name: Of the hook.
        kind: Makes the hook of a function.
    """

    def __init__(self, name: str, kind: Callable[[Callable[..., None]], ModuleHook]) -> None:
        self._name = name
        self._kind = kind
        self._lock = threading.Lock()
        self._listeners: tuple[Listener, ...] = ()
        self._hook: ModuleHook | None = None
        self._handle: Handle | None = None

    def add(self, listener: Listener) -> Handle:
        """Calls the listener until the handle removes it."""
        with self._lock:
            self._listeners = (*self._listeners, listener)
            self._hook = self._hook or self._kind(self._call)
            self._handle = self._handle or registry.before_every_forward(self._hook, self._name)
        return Handle(lambda: self._remove(listener))

    def _remove(self, listener: Listener) -> None:
        with self._lock:
            left = list(self._listeners)
            left.remove(listener)
            self._listeners = tuple(left)
            if not left and self._handle is not None:
                self._handle.remove()
                self._handle = None

    def _call(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        for listener in self._listeners:
            listener(module, args)


_every_forward = _EveryForward("every forward", LayerHook)
_first_forwards = _EveryForward("first forwards", _first_forward_hook)


def before_every_forward(listener: Listener) -> Handle:
    """Calls the listener before each forward of any module that is not in compiled code."""
    return _every_forward.add(listener)


def before_first_forwards(listener: Listener) -> Handle:
    """The same, for a listener that goes at the first forward that trains.

    It is called for a module that was compiled in place (`module.compile()`), too, when it trains.
    """
    return _first_forwards.add(listener)


class _OpenLayers(threading.local):
    """The calling thread's open layers, innermost last, and the next sequence number to tag."""

    def __init__(self) -> None:
        self.layers: list[int] = []
        self.untagged = 0


class LayerHooks:
    """Reports the stays in a model's modules, and the autograd nodes made in them.

    A module is hooked if `everything` is, or if a pattern names it: by its qualified name or the
    name of its class or a base class (shell wildcards, case matters), or by its class itself.
    """

    def __init__(
        self, sink: PhaseSink, thread: int, everything: bool, dynamic: Iterable[Pattern]
    ) -> None:
        self._sink = sink
        self.thread = thread  # that trains
        self._everything = everything
        self.patterns = tuple(dynamic)
        self._open = _OpenLayers()
        self.root_layer: int | None = None
        self._spans: dict[str, int] = {}

    def span(self, name: str) -> int:
        """The dynamic layer of that name that is no module."""
        if name not in self._spans:
            self._spans[name] = self._sink.define_layer(name, True)
        return self._spans[name]

    def watch(self, model: nn.Module, handles: list[Handle]) -> None:
        """Hooks the modules of `model`; shared ones once, under their first name."""
        if not self._everything and not self.patterns:
            return
        dynamic_names = set()
        for name, module in model.named_modules():
            matches = self._matches(name, module)
            dynamic = matches or (name != "" and name.rpartition(".")[0] in dynamic_names)
            if dynamic:
                dynamic_names.add(name)
            if not self._everything and not matches:
                continue
            layer = self._sink.define_layer(name or type(model).__name__, dynamic)
            if module is model:
                self.root_layer = layer
            enter, leave = (
                functools.partial(self.enter, layer),
                functools.partial(self.leave, layer),
            )
            handles.append(before_forward(module, LayerHook(enter)))
            handles.append(after_forward(module, LayerHook(leave)))

    def _matches(self, name: str, module: nn.Module) -> bool:
        names = [name, *(base.__name__ for base in type(module).__mro__)]
        for pattern in self.patterns:
            if isinstance(pattern, ModuleName):
                if name and name == pattern:
                    return True
            elif isinstance(pattern, str):
                if any(fnmatch.fnmatchcase(n, pattern) for n in names):
                    return True
            elif isinstance(module, pattern):
                return True
        return False

    def enter(self, layer: int, *_: object) -> None:
        """A module is called, on a thread that matters or another."""
        recompute = torch._C._current_graph_task_id() != -1
        if not recompute and threading.get_ident() != self.thread:
            return
        self._tag()
        self._open.layers.append(layer)
        self._sink.enter_layer(layer, recompute)

    def leave(self, layer: int, *_: object) -> None:
        """A module returns or raises; closes the layers that are still open inside it."""
        layers = self._open.layers
        if layer in layers:
            self.close(len(layers) - 1 - layers[::-1].index(layer))

    def depth(self) -> int:
        """The number of layers that the calling thread is in."""
        return len(self._open.layers)

    def close(self, depth: int) -> None:
        """Leaves the calling thread's layers until `depth` are open."""
        while len(self._open.layers) > depth:
            self._tag()
            self._open.layers.pop()
            self._sink.leave_layer()

    def _tag(self) -> None:
        now = torch._C._autograd._get_sequence_nr()
        if self._open.layers and self._open.untagged < now:
            self._sink.tag_sequence(self._open.layers[-1], self._open.untagged, now)
        self._open.untagged = now
