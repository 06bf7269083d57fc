"""Engines that give their memory back while a trainer works: vLLM, SGLang, torch_memory_saver.

They are known by the methods that their documentation names, so none is imported:

    vLLM's LLM (enable_sleep_mode=True)        wake_up(), sleep(level=...)
    SGLang's Engine (enable_memory_saver=True) resume_memory_occupation(),
                                               release_memory_occupation()
    torch_memory_saver                         resume(), pause()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

_METHODS = (
    ("wake_up", "sleep"),
    ("resume_memory_occupation", "release_memory_occupation"),
    ("resume", "pause"),
)


@dataclass(frozen=True)
class Engine:
    """An engine's two switches.

    Attributes:
        subject: The engine itself.
        wake: Takes its memory.
        sleep: Gives it back.
    """

    subject: object
    wake: Callable[[], object]
    sleep: Callable[[], object]

    def is_of(self, other: Engine) -> bool:
        """True if both are switches of one engine."""
        return self.subject is other.subject


def engine_of(subject: Any, **sleep: Any) -> Engine:
    """The switches of an engine.

    Args:
        subject: vLLM's LLM, SGLang's Engine, torch_memory_saver, or an `Engine`.
        sleep: Arguments of the method that gives the memory back, such as vLLM's `level=2`.

    Raises:
        TypeError: It has none of these methods.
    """
    if isinstance(subject, Engine):
        return subject
    for wake, rest in _METHODS:
        if callable(getattr(subject, wake, None)) and callable(getattr(subject, rest, None)):
            put_to_sleep = partial(getattr(subject, rest), **sleep)
            return Engine(subject, getattr(subject, wake), put_to_sleep)
    known = ", ".join(f"{wake}() and {rest}()" for wake, rest in _METHODS)
    raise TypeError(
        f"{type(subject).__name__} is no engine that can give back its memory: it has neither of "
        f"{known}. Pass stalloc.engines.Engine(subject, wake, sleep) instead"
    )
