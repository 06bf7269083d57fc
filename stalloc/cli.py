"""The command line. Each sub-command is a module in `stalloc.commands`.

Exit codes: 0 done, 1 bad input, 2 wrong usage, 3 does not fit the capacity, 130 interrupted, 141
nobody reads the output any more. An error that the user can correct is one line on stderr; a
traceback is a bug.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence

import stalloc
from stalloc.commands import COMMANDS
from stalloc.commands.output import DoesNotFit, printable
from stalloc.errors import StallocError

BROKEN_PIPE = 141


def make_parser() -> argparse.ArgumentParser:
    """The parser of all sub-commands; each leaves itself and its module's `main` in the args."""
    parser = argparse.ArgumentParser(
        prog="stalloc", description="Plans the address of every tensor of a training iteration."
    )
    parser.add_argument("--version", action="version", version=f"stalloc {stalloc.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = command.add_parser(subparsers)
        subparser.set_defaults(main=command.main, parser=subparser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one sub-command and returns the exit code; a Ctrl-C is the caller's."""
    args, unknown = make_parser().parse_known_args(argv)
    if unknown:  # with the sub-command's usage, not with the usage of all
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code: int = args.main(args)
        sys.stdout.flush()
    except DoesNotFit as error:
        return _fail(args.command, str(error), 3)
    except BrokenPipeError:
        # The reader has seen enough.
        _leave_stdout()
        return BROKEN_PIPE
    except StallocError as error:
        return _fail(args.command, str(error), 1)
    except MemoryError:
        return _fail(args.command, "this machine's memory does not suffice for that input", 1)
    except OSError as error:
        what = error.strerror or str(error)
        if error.filename is None:
            _leave_stdout()
            return _fail(args.command, f"standard output: {what}", 1)
        return _fail(args.command, f"{error.filename}: {what}", 1)
    return code


def _leave_stdout() -> None:
    """Python would complain again when it flushes at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(command: str, message: str, code: int) -> int:
    print(f"stalloc {command}: {printable(' '.join(message.split()))}", file=sys.stderr)
    return code
