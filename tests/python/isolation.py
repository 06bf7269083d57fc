"""Runs a test's body in a process of its own.

torch has one allocator a process, and a test that swaps it must not be felt by the next. The
processes are forked from a server that has imported torch and done nothing else, so that one costs
a fraction of a second.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

# Worker threads that wait for work must not burn the cores that other tests need.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torch._dynamo", "numpy", "stalloc"])


def _child(connection: Connection, body: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        connection.send((None, body(*args)))
    except BaseException:
        connection.send((traceback.format_exc(), None))


def run_isolated(body: Callable[..., Any], *args: Any) -> Any:
    """The result of `body(*args)`, a function of a module, called in a fresh process."""
    ours, theirs = _context.Pipe()
    process = _context.Process(target=_child, args=(theirs, body, args))
    process.start()
    theirs.close()
    try:
        failure, result = ours.recv()
    except EOFError:
        process.join()
        raise AssertionError(f"the process died with exit code {process.exitcode}") from None
    process.join()
    assert failure is None, f"in a process of its own:\n{failure}"
    assert process.exitcode == 0, f"the process ended with exit code {process.exitcode}"
    return result


def isolated(test: Callable[..., None]) -> Callable[..., None]:
    """Decorates a test that takes only picklable parameters."""

    @functools.wraps(test)
    def wrapper(**kwargs: Any) -> None:
        run_isolated(_call, test.__module__, test.__name__, kwargs)

    return wrapper


def _call(module: str, name: str, kwargs: dict[str, Any]) -> None:
    import importlib

    getattr(importlib.import_module(module), name).__wrapped__(**kwargs)
