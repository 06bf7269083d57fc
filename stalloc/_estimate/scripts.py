"""Runs an unchanged script on the pretended GPU."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import NoReturn

from stalloc._estimate.pipelines import AsksFirstStage
from stalloc._estimate.recording import Recording
from stalloc._estimate.values import Unanswerable, line_of
from stalloc._frameworks.patches import Patches
from stalloc._script import main_restored, run_as_main
from stalloc.errors import StallocError

_WRONG_USAGE = 2
_LEAST = 2
"""Complete iterations that answer for the rest, although the script failed later."""


def run_script(recording: Recording, script: str, *, module: bool) -> str:
    """Runs a script, or a module, until it has been recorded for long enough.

    Its output goes to stderr.

    Returns:
        The reason why it ended early, if there are enough iterations all the same; or nothing.

    Raises:
        Unanswerable: It failed, or cannot be answered; the message has the script's line.
    """
    problem = ""
    try:
        with (
            contextlib.redirect_stdout(sys.stderr),
            _exits_seen(),
            main_restored(waits=False),
            recording.running(),
        ):
            run_as_main(script, module=module)
    except SystemExit as end:
        if end.code not in (None, 0):
            text = f" with exit code {end.code}" if isinstance(end.code, int) else f": {end.code}"
            where = _where(end.__traceback__)
            problem = f"{where}: the script ended{text}" if where else f"the script ended{text}"
    except AsksFirstStage:
        raise
    except Unanswerable as error:
        problem = str(error)
    except StallocError as error:
        raise Unanswerable(str(error)) from error
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "CheckpointException":
            raise  # the user's interruption; torch's error of checkpoints is no Exception
        text = " ".join(traceback.format_exception_only(error)[-1].split())
        where = _where(error.__traceback__)
        if isinstance(error, SyntaxError) and error.lineno is not None:
            where = line_of(error.filename or "", error.lineno) or where
        problem = f"{where or script}: the script failed here: {text}"
    if problem and recording.complete_iterations < _LEAST:
        raise Unanswerable(problem)
    return problem


@contextlib.contextmanager
def _exits_seen() -> Iterator[None]:
    """Makes an exit without clean-up one like others: the answer would be lost with the process."""
    own, leave = os.getpid(), os._exit

    def left(status: int) -> NoReturn:
        if os.getpid() != own:
            leave(status)  # a process that the script has forked
        sys.exit(status)

    patches = Patches()
    patches.replace(os, "_exit", left)
    try:
        yield
    finally:
        patches.undo()


def _where(trace: TracebackType | None) -> str:
    """The innermost line of the script itself in a traceback, or of a library without one."""
    found = library = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        line = line_of(file, trace.tb_lineno)
        if line and "site-packages" not in file:
            found = line
        library = line or library
        trace = trace.tb_next
    return found or library
