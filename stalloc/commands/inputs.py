"""The inputs of sub-commands: traces, plans, and recordings of other programs."""

from __future__ import annotations

import argparse
import contextlib
import errno
import math
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from stalloc import importers
from stalloc.errors import PlanError, TraceError
from stalloc.files import named
from stalloc.importers import Imported
from stalloc.importers.kinds import Kind, kind_of, unpacked
from stalloc.plans import Plan
from stalloc.progress import shown
from stalloc.trace import Trace

_MOST_REPETITIONS = 1000
_REMEDIES = {
    errno.ENOENT: "check the name",
    errno.ENOTDIR: "check the name",
    errno.ELOOP: "check the name",
    errno.ENAMETOOLONG: "check the name",
    errno.EACCES: "allow this user to read it",
}
_PLAN_OF = {
    Kind.TRACE: "make one of it with `stalloc plan`",
    Kind.CSV: "make one of a trace with `stalloc plan`",
}
_PLANNED = "make a trace of it with `stalloc import`, and a plan of that with `stalloc plan`"
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True, slots=True)
class Input:
    """A file's content: a trace or a plan, and facts about its import.

    Attributes:
        trace: The trace, or None.
        plan: The plan, or None.
        imported: Set if the trace comes from another program's file.
    """

    trace: Trace | None = None
    plan: Plan | None = None
    imported: Imported | None = None


def read(path: Path, device: int | None = None, repetitions: int = importers.REPETITIONS) -> Input:
    """Reads a trace, a plan, a memory snapshot or a Kineto trace, gzipped or not.

    Raises:
        TraceError: It is damaged, or of no kind that is known.
        PlanError: A plan that is damaged or not sound.
        OSError: It cannot be read.
    """
    source = named(path)
    content = unpacked(read_bytes(path), source)
    kind = kind_of(content, source)
    if kind is Kind.PLAN:
        return Input(plan=Plan.from_json(content, source))
    if kind is Kind.TRACE:
        return Input(trace=Trace.from_json(content, source))
    if kind is Kind.CSV:
        raise TraceError(f"{source}: {kind.value}: only `stalloc plan` reads it")
    imported = read_foreign(content, path, device, repetitions)
    return Input(trace=imported.trace, imported=imported)


def read_plan(path: Path) -> Plan:
    """Reads a plan, gzipped or not.

    Raises:
        TraceError, PlanError: It is something else, damaged or not sound.
        OSError: It cannot be read.
    """
    source = named(path)
    content = unpacked(read_bytes(path), source)
    kind = kind_of(content, source)
    if kind is not Kind.PLAN:
        raise PlanError(
            f"{source}: this is {kind.value}, and a plan is needed: {_PLAN_OF.get(kind, _PLANNED)}"
        )
    return Plan.from_json(content, source)


def read_bytes(path: Path) -> bytes:
    """Reads the content of a file.

    Raises:
        OSError: It cannot be read, or is a device; it has the file's name and a remedy.
    """
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISDIR(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
            return path.read_bytes()
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "copy it to another folder first")
        what = f"{error.strerror or error}: {remedy}"
        raise OSError(error.errno, what, str(path)) from None
    except ValueError as error:  # a name with a zero in it
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder: name a file in it", str(path))
    raise OSError(errno.EINVAL, "is a device: name a file", str(path))


def read_foreign(content: bytes, path: Path, device: int | None, repetitions: int) -> Imported:
    """Imports a file's content, with a bar when it takes long."""
    with shown(sys.stderr.isatty(), "importing") as progress:
        return importers.from_bytes(content, named(path), device, repetitions, progress)


def check_requests(trace: Trace) -> None:
    """Refuses an empty trace: any result would look like a success.

    Raises:
        TraceError: It has no requests.
    """
    if len(trace.requests) == 0:
        raise TraceError("the trace holds no requests: was the right device recorded?")


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds the name of the file to errors about its content."""
    try:
        yield
    except (TraceError, PlanError) as error:
        if str(error).startswith(f"{named(path)}: "):
            raise
        raise type(error)(f"{named(path)}: {error}") from None


def bytes_of(text: str) -> int:
    """A number of bytes on the command line, such as 512, 80GiB or 79.2GiB."""
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9}(?=\s*[KMGT]))?)\s*(|[KMGT]iB)", text)
    value = int(Decimal(match[1]) * _UNITS[match[2]]) if match else 0
    if not 0 < value < 1 << 63:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes, such as 512 or 80GiB")
    return value


def seconds_of(text: str) -> float:
    """A number of seconds on the command line."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of seconds from 0 up")
    return seconds


def positive(text: str) -> int:
    """A positive number on the command line."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


def repetitions(text: str) -> int:
    """The number of repetitions on the command line; each takes memory."""
    count = positive(text)
    if count > _MOST_REPETITIONS:
        raise argparse.ArgumentTypeError(f"{count} is more than {_MOST_REPETITIONS}")
    return count


def device_of(text: str) -> str:
    """A device on the command line that stalloc serves or profiles."""
    if not re.fullmatch(r"(?:cpu|cuda)(?::[0-9]{1,3})?|meta", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no device that stalloc serves: give cpu, cuda or cuda:1; or meta to "
            "profile without memory"
        )
    return text


def tick_of(text: str) -> str:
    """A tick on the command line: `peak`, or a number from 0."""
    if text != "peak" and not re.fullmatch(r"[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no tick: give a number from 0, or peak")
    return text


def ordinal(text: str) -> int:
    """A number from 0 on the command line."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return int(text)
