"""The command line, as `stalloc` and as `python -m stalloc`.

Nothing but the standard library is imported before somebody is there to catch a Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Runs one sub-command and returns the exit code."""
    _open_streams()
    _leave_path()
    try:
        from stalloc import cli

        return cli.main()
    except ImportError as error:
        if error.name != "stalloc._core":
            raise
        print(f"stalloc: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # who presses twice means the same
        print("stalloc: interrupted", file=sys.stderr)
        return 130


def _leave_path() -> None:
    """Takes the folder off the path that Python has put there for this command.

    It is the current one or that of the command's file. A script that runs would find modules
    there which it does not find without stalloc.
    """
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]


def _open_streams() -> None:
    """Makes stdout and stderr take any text; without a descriptor Python leaves them None."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        else:
            # A file's name need not be text, and a layer's not in the terminal's encoding.
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
