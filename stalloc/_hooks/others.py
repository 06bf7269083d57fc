"""Finds the evaluations of other models than the root: an average of its weights, a teacher.

    step | ema(x)  ema(x)  fetch | root(x) ...   once in a while: an evaluation
    step | teacher(x)            | root(x) ...   in each iteration: part of training
         |--------- gap ---------|

In a **gap**, from an optimizer's step to the root's next training forward, a global hook sees the
modules that are called, but not those inside a call that it knows. A module with parameters that is
called there is **known** from then on and has hooks of its own. Its call may begin an evaluation
unless the iteration before had one, too: training may use the results then, as it uses those of a
teacher, a frozen encoder or a target network. After the first iteration of all, no call begins one:
it may come in each iteration.

A call for training may begin one, too, if the module is a part of each iteration, and is called in
a gap once in a while:

    step | generator(z) | root(x) ... generator(z) ... step   pictures of an epoch: an evaluation

It is known from its first such call on, in all later loops of hooks. If something trains by the
call, `PhaseTracker` no longer takes calls of other models for evaluations.

A **twin** of the root has its class, and parameters of the same shapes. Copies may train in turns
while the root lives: the children of an evolution, the clients of federated learning. Once a twin
has trained in an iteration without the root, each twin that is called for training in a gap is the
root from then on. One that was the root before has to train without the root itself.

A module whose call is compiled (`module.compile()`) is not seen. torch calls all modules slower
while there is a global hook, so it is there in gaps only.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from stalloc._hooks import registry
from stalloc._hooks.modules import before_every_forward, root_hook

_NEVER = -1  # before the first iteration

_Form = tuple[type, tuple[torch.Size, ...]]


_generators: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Modules that were called for training in a gap."""


class _Called(NamedTuple):
    """The iterations of a module's calls.

    Those for training count in gaps only; the others count everywhere.
    """

    last: int = _NEVER
    before: int = _NEVER  # the latest of those before


class OtherModels:
    """Sees the calls of other models in gaps. Keeps no module alive.

    Args:
        drives: True on the thread that trains.
        trains: True if a call of this module is a training forward.
        iteration: The number of the iteration that is on, or after its last step of the next one.
        called: Called before such a call, with whether it may begin an evaluation.
        succeeds: Called with a twin and its arguments, where its call makes it the root.
    """

    def __init__(
        self,
        drives: Callable[[], bool],
        trains: Callable[[nn.Module], bool],
        iteration: Callable[[], int],
        called: Callable[[bool], None],
        succeeds: Callable[[nn.Module, tuple[Any, ...]], None],
    ) -> None:
        self._drives = drives
        self._trains = trains
        self._iteration = iteration
        self._called = called
        self._succeeds = succeeds
        self._root: weakref.ref[nn.Module] | None = None
        self._known: weakref.WeakKeyDictionary[nn.Module, dict[bool, _Called]]
        self._known = weakref.WeakKeyDictionary()  # by whether the calls were for training
        self._trained: weakref.WeakKeyDictionary[nn.Module, int]
        self._trained = weakref.WeakKeyDictionary()  # the last iteration, outside of gaps
        self._handles: list[registry.Handle] = []
        self._watch: registry.Handle | None = None
        self._in_gap = False
        self._inside: int | None = None  # id of the outermost module whose call is on
        self._twin: weakref.ref[nn.Module] | None = None  # called for training in the last gap
        self._follows_twins = False
        self._form: _Form | None = None  # of the root
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # so far
        self._heirs: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # of these, trained as twins

    def follow(self, root: nn.Module) -> None:
        """The calls of this module are no longer another model's."""
        self._root = weakref.ref(root)
        self._form = _form(root)
        if _is_known_by_identity(root):
            self._roots.add(root)

    def begin_gap(self) -> None:
        """An optimizer has stepped, or an iteration has ended."""
        for module in [each for each in _generators if each not in self._known]:
            self._know(module)
        self._in_gap = True
        self._inside = None
        self._twin = None
        self._see()

    def end_gap(self) -> None:
        """Something trains."""
        self._in_gap = False
        self._see_nothing()

    def trains_without_root(self) -> None:
        """A backward pass begins, and the root was not called in this iteration."""
        twin = self._twin() if self._twin is not None else None
        if twin is not None:
            self._follows_twins = True
            self._heirs.add(twin)

    def follow_no_twins(self) -> None:
        """An iteration that seemed to lack the root was a part of one with it."""
        self._follows_twins = False

    def enter(self, module: nn.Module) -> bool:
        """A call of the root or a known module begins; False if it is inside another one."""
        if self._inside is not None:
            return False
        self._inside = id(module)
        self._see_nothing()
        return True

    def leave(self, module: nn.Module) -> None:
        """The call returned or raised."""
        if self._inside == id(module):
            self._inside = None
            self._see()

    def close(self) -> None:
        """Removes all hooks."""
        self.end_gap()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._known.clear()
        self._trained.clear()

    def _see(self) -> None:
        if self._in_gap and self._watch is None:
            self._watch = before_every_forward(self._module_called)

    def _see_nothing(self) -> None:
        if self._watch is not None:
            self._watch.remove()
            self._watch = None

    def _module_called(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        root = self._root() if self._root is not None else None
        if module is root or not _is_known_by_identity(module):
            return
        if module in self._known or not self._drives():
            return
        if next(module.parameters(), None) is None:  # a transform, a metric
            return
        if root is not None and any(inner is root for inner in module.modules()):
            self._see_nothing()
            return
        if self._trains(module):
            if self._is_heir(module):
                self._succeeds(module, args)
                return
            _generators.add(module)
        self._know(module)
        self._known_called(module, args)  # the hooks just made miss this call's beginning

    def _know(self, module: nn.Module) -> None:
        self._known[module] = {}
        self._handles.append(registry.before_forward(module, root_hook(self._known_called)))
        self._handles.append(registry.after_forward(module, root_hook(self._known_returned)))

    def _known_called(self, module: nn.Module, args: tuple[Any, ...], *_: object) -> None:
        root = self._root() if self._root is not None else None
        if module is root or not self._drives() or self._inside is not None:
            return
        trains, now = self._trains(module), self._iteration()
        if trains and self._in_gap and self._is_heir(module):
            self._succeeds(module, args)
            return
        self.enter(module)
        if trains and not self._in_gap:
            self._trained[module] = now
            return
        calls = self._known.setdefault(module, {})
        called = calls.get(trains, _Called())
        if called.last != now:
            called = calls[trains] = _Called(now, called.last)
        if not self._in_gap:
            return
        is_part = not trains or self._trained.get(module, _NEVER) == now - 1
        self._called(is_part and now > 1 and called.before < now - 1)

    def _is_heir(self, module: nn.Module) -> bool:
        """True if the root is to be this module, which is called for training in a gap."""
        if self._form is None or type(module) is not self._form[0]:
            return False
        is_trained = any(parameter.requires_grad for parameter in module.parameters())
        if not is_trained or _form(module) != self._form:
            return False
        self._twin = weakref.ref(module)
        if not self._follows_twins or (module in self._roots and module not in self._heirs):
            return False
        self._heirs.add(module)
        return True

    def _known_returned(self, module: nn.Module, *_: object) -> None:
        if self._drives():
            self.leave(module)


def _is_known_by_identity(module: nn.Module) -> bool:
    """False for a module with a hash of its own, or none."""
    return type(module).__hash__ is object.__hash__


def _form(model: nn.Module) -> _Form:
    """The class and the shapes that twins have in common."""
    parameters = [parameter for parameter in model.parameters() if not is_lazy(parameter)]
    return type(model), tuple(parameter.shape for parameter in parameters)
