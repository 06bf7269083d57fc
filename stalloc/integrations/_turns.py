"""Workers of reinforcement learning, whose methods say when the engine's turn begins and ends."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from stalloc.errors import StallocError
from stalloc.phases import phase

_Step = Callable[..., None]
"""Gets the arguments of the method."""


def _nothing(*_: Any, **__: Any) -> None:
    pass


def take_turns(
    worker: Any,
    *,
    begins: tuple[str, ...],
    ends: tuple[str, ...],
    wakes: bool,
    kind: str,
    trains: bool = False,
    shares_device: Callable[..., bool] | None = None,
) -> None:
    """Makes the time between these methods of a worker a phase "rollout". Again, it does nothing.

    Args:
        worker: The trainer's worker, in its own process.
        begins: The methods with which the engine's turn begins, all of which it has. A second call
            in a row changes nothing.
        ends: Those with which it ends; the worker has some of them.
        wakes: The first ones wake the engine, so the pool goes before them. Otherwise it goes
            after them, when more tensors have left it.
        kind: The worker, for a message.
        trains: The last ones train, so the pool comes back before them. Otherwise it comes back
            after them, when the engine has given its memory back.
        shares_device: Tells by the arguments of a first method if the engine's turn begins with
            it. None: always.

    Raises:
        StallocError: The worker lacks these methods.
    """
    present = [name for name in ends if callable(getattr(worker, name, None))]
    missing = [name for name in begins if not callable(getattr(worker, name, None))]
    if missing or not present:
        lacking = ", ".join(f"{name}()" for name in missing or ends)
        raise StallocError(
            f"{type(worker).__name__} is no {kind}: it lacks {lacking}; use "
            "stalloc.phase('rollout') around the engine's work"
        )
    if hasattr(getattr(worker, begins[0]), "__stalloc__"):
        return
    rollout = phase("rollout")
    is_open = False

    def begin(*args: Any, **kwargs: Any) -> None:
        nonlocal is_open
        if not is_open and (shares_device is None or shares_device(*args, **kwargs)):
            rollout.__enter__()
            is_open = True

    def leave(*exception: Any) -> None:
        nonlocal is_open
        if is_open:
            is_open = False
            rollout.__exit__(*exception)

    def end(*_: Any, **__: Any) -> None:
        leave(None, None, None)

    def fail(*_: Any, **__: Any) -> None:
        leave(*sys.exc_info())

    for name in begins:
        first, last = (begin, _nothing) if wakes else (_nothing, begin)
        setattr(worker, name, _wrapped(getattr(worker, name), first, last, fails=fail))
    for name in present:
        first, last = (end, _nothing) if trains else (_nothing, end)
        setattr(worker, name, _wrapped(getattr(worker, name), first, last, fails=_nothing))


def _wrapped(method: Callable[..., Any], first: _Step, last: _Step, fails: _Step) -> Any:
    """The method between two steps, or with `fails` if it raises."""
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            first(*args, **kwargs)
            try:
                result = await method(*args, **kwargs)
            except BaseException:
                fails(*args, **kwargs)
                raise
            last(*args, **kwargs)
            return result

        awaited.__stalloc__ = True  # type: ignore[attr-defined]
        return awaited

    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        first(*args, **kwargs)
        try:
            result = method(*args, **kwargs)
        except BaseException:
            fails(*args, **kwargs)
            raise
        last(*args, **kwargs)
        return result

    called.__stalloc__ = True  # type: ignore[attr-defined]
    return called
