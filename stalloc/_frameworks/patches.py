"""Replaces attributes of other people's modules and classes, and puts them back.

A wrapper stays transparent: it has the original's name and signature. When someone else has
replaced it since, it is left below theirs, and the wrapper has to do nothing but pass calls on.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]
Make = Callable[[Function], Function]


class Patches:
    """What was replaced, to be undone."""

    def __init__(self) -> None:
        self._done: list[tuple[object, str, Function | None, Function]] = []

    def wrap(self, owner: object, name: str, make: Make) -> bool:
        """Replaces `owner.name`, which has to be its own, by `make(it)`; False if it has none."""
        original = vars(owner).get(name)
        if not callable(original):
            return False
        wrapper = functools.wraps(original)(make(original))
        setattr(owner, name, wrapper)
        self._done.append((owner, name, original, wrapper))
        return True

    def wrap_in_subclasses(self, base: type, name: str, make: Make) -> None:
        """Replaces a method in the class and in every subclass that defines it anew."""
        for cls in _with_subclasses(base):
            self.wrap(cls, name, make)

    def wrap_method(self, instance: object, name: str, make: Make) -> bool:
        """Replaces a method of one object, whose class has it; False if it has none."""
        original = getattr(instance, name, None)
        if not callable(original) or name in vars(instance):
            return False
        wrapper = functools.wraps(original)(make(original))
        setattr(instance, name, wrapper)
        self._done.append((instance, name, None, wrapper))
        return True

    def undo(self) -> None:
        """Puts everything back, last first."""
        while self._done:
            owner, name, original, wrapper = self._done.pop()
            if vars(owner).get(name) is not wrapper:
                continue
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


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
