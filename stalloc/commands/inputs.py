"""What sub-commands take: traces and plans of stalloc, and what others recorded."""

from __future__ import annotations

import argparse
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from stalloc import importers
from stalloc.importers import Imported
from stalloc.planfile import Plan
from stalloc.progress import shown
from stalloc.trace import Trace

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
# Only a guess, which the reader then checks. The key comes first in what stalloc writes, but may
# come anywhere.
_PLAN = re.compile(rb'"format"\s*:\s*"stalloc-plan"')


@dataclass(frozen=True, slots=True)
class Input:
    """A file's content: a trace or a plan, and where it was imported, how.

    Attributes:
        trace: The trace, or None.
        plan: The plan, or None.
        imported: Where the trace comes from another program's file.
    """

    trace: Trace | None = None
    plan: Plan | None = None
    imported: Imported | None = None


def read(path: Path, device: int | None = None, turns: int = importers.TURNS) -> Input:
    """Reads a trace, a plan, a memory snapshot or a Kineto trace.

    Raises:
        TraceError: It is damaged, or of no kind that is known.
        PlanError: A plan that is damaged or not sound.
        OSError: It cannot be read.
    """
    content = path.read_bytes()
    if importers.is_foreign(content):
        imported = read_foreign(content, path, device, turns)
        return Input(trace=imported.trace, imported=imported)
    if _PLAN.search(content):
        return Input(plan=Plan.from_json(content, str(path)))
    return Input(trace=Trace.from_json(content, str(path)))


def read_foreign(content: bytes, path: Path, device: int | None, turns: int) -> Imported:
    """Imports a file's content, with a bar when it takes long."""
    with shown(sys.stderr.isatty(), "importing") as progress:
        return importers.from_bytes(content, str(path), device, turns, progress)


def bytes_of(text: str) -> int:
    """A number of bytes on the command line, such as 512 or 80GiB."""
    match = re.fullmatch(r"(\d{1,18})\s*(|[KMGT]iB)", text)
    value = int(match[1]) * _UNITS[match[2]] if match else 0
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
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


def positive(text: str) -> int:
    """A positive number on the command line."""
    if not re.fullmatch(r"\d{1,9}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


def ordinal(text: str) -> int:
    """A number from 0 on the command line."""
    if not re.fullmatch(r"\d{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return int(text)
