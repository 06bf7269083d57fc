"""Replaces methods, of one object or of a class, and puts them back.

A wrapper has the original's name and signature. When someone else has replaced it since, it stays
below theirs, and has to do nothing but pass calls on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]

_INHERITED = object()


class Methods:
    """What was replaced, to be undone."""

    def __init__(self) -> None:
        self._done: list[tuple[object, str, object, Function]] = []

    def wrap(self, owner: object, name: str, make: Callable[[Function], Function]) -> bool:
        """Replaces `owner.name` by `make(it)`; False if there is none, or it is ours already.

        A function of an object is bound: what `make` gets, and returns, takes no `self`.
        """
        original = getattr(owner, name, None)
        if not callable(original) or any(original is wrapper for *_, wrapper in self._done):
            return False
        wrapper = functools.wraps(original)(make(original))
        self._done.append((owner, name, vars(owner).get(name, _INHERITED), wrapper))
        setattr(owner, name, wrapper)
        return True

    def undo(self) -> None:
        """Puts everything back, last first."""
        while self._done:
            owner, name, before, wrapper = self._done.pop()
            if vars(owner).get(name) is not wrapper:
                continue
            if before is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
