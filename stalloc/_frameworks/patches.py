"""Replaces attributes of other people's modules, classes and objects, and puts them back.

A wrapper stays transparent: it has the original's name and signature. If other code has replaced it
since, the wrapper stays below the replacement and only passes calls on.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]
Make = Callable[[Function], Function]

_INHERITED = object()


class Patches:
    """Replaced attributes, which can be restored."""

    def __init__(self) -> None:
        self._done: list[tuple[object, str, object, object]] = []
        self._last: list[Callable[[], None]] = []

    def then(self, call: Callable[[], None]) -> None:
        """Calls a function once everything is put back."""
        self._last.append(call)

    def replace(self, owner: object, name: str, value: object) -> None:
        """Puts a value in the place of `owner.name`, which may be its own or inherited."""
        self._done.append((owner, name, vars(owner).get(name, _INHERITED), value))
        setattr(owner, name, value)

    def wrap(self, owner: object, name: str, make: Make) -> bool:
        """Replaces `owner.name` by `make(it)`; False if it is missing or replaced already.

        A function of an object is bound: the argument and the result of `make` take no `self`.
        """
        original = getattr(owner, name, None)
        if not callable(original) or any(original is ours for *_, ours in self._done):
            return False
        self.replace(owner, name, functools.wraps(original)(make(original)))
        return True

    def wrap_in_subclasses(self, base: type, name: str, make: Make) -> None:
        """Replaces a method in the class and in every subclass that overrides it."""
        for cls in _with_subclasses(base):
            if name in vars(cls):
                self.wrap(cls, name, make)

    def undo(self) -> None:
        """Puts everything back, last first."""
        while self._done:
            owner, name, before, ours = self._done.pop()
            if vars(owner).get(name) is not ours:
                continue
            if before is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        while self._last:
            self._last.pop()()


class Argument:
    """Finds an argument of a function by its name, however the caller passed it."""

    def __init__(self, function: Function, name: str) -> None:
        self._name = name
        parameters = inspect.signature(function).parameters
        self._position = list(parameters).index(name) if name in parameters else -1

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Its value; None when it was not passed."""
        if self._name in kwargs:
            return kwargs[self._name]
        return args[self._position] if 0 <= self._position < len(args) else None


def _with_subclasses(base: type) -> list[type]:
    """Each once, where several bases lead to one."""
    found = [base]
    for cls in found:
        derived: list[type] = cls.__subclasses__()
        found += [sub for sub in derived if sub not in found]
    return found
