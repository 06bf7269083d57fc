"""Runs a script, or a module, as `python` would."""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import pkgutil
import runpy
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType, TracebackType

_OWN_FRAMES = (__file__, runpy.__file__)


class Enough(BaseException):
    """Ends a script once its iterations are recorded. No `except Exception` stops it."""


@dataclass(frozen=True, slots=True)
class Guess:
    """A value that a script read, and that was not computed.

    Attributes:
        line: The script's line, as in `train.py:57`.
        read: What was read.
        value: The answer.
        times: How often.
    """

    line: str
    read: str
    value: str
    times: int


def run_as_main(script: str, *, module: bool) -> None:
    """Runs it as the module `__main__`, which a file stays; raises what it raises.

    Args:
        script: The path of a Python file, of a folder or of an archive; or a module's name.
        module: It is a module's name.
    """
    if module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    elif script.endswith(".pyc") or pkgutil.get_importer(script) is not None:
        runpy.run_path(script, run_name="__main__")
    else:
        _run_file(script)


@contextlib.contextmanager
def main_restored(*, waits: bool) -> Iterator[None]:
    """Ends the block with the `__main__` that there was.

    Args:
        waits: For the threads that the block has started, as Python does at its end. They go on
            once an error has been shown.
    """
    threads = set(threading.enumerate())
    before = sys.modules["__main__"]
    try:
        yield
    finally:
        for thread in set(threading.enumerate()) - threads:
            if waits and not thread.daemon:
                thread.join()
        sys.modules["__main__"] = before


def _run_file(script: str) -> None:
    path = os.path.abspath(script)  # the script may change the folder
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    code = loader.source_to_code(loader.get_data(path), path)
    main = ModuleType("__main__")
    main.__dict__.update(__file__=path, __loader__=loader, __cached__=None)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def show_error(error: BaseException) -> None:
    """Shows what ended the script as Python does: by the script's own hook, if it has one."""
    error = error.with_traceback(_of_script(error.__traceback__))
    sys.excepthook(type(error), error, error.__traceback__)


def _of_script(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's first frame on."""
    inside = False
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        is_own = file in _OWN_FRAMES or file.startswith("<frozen ")
        if inside and not is_own:
            return trace
        inside = inside or is_own
        trace = trace.tb_next
    return None
