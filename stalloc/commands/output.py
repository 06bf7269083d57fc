"""How sub-commands answer: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from stalloc import _core
from stalloc.errors import StallocError

_WIDE = 1000  # columns; a file has no edge to wrap at


class DoesNotFit(StallocError):
    """The plan is larger than the capacity that was given."""


def printable(text: str) -> str:
    """The text with escapes for whatever is no visible character.

    Names of files, layers and call sites are somebody else's, and a terminal obeys what it is sent.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def print_json(content: Mapping[str, object]) -> None:
    """One line of JSON on stdout."""
    print(json.dumps(content, allow_nan=False))


def size(count: int) -> str:
    """Bytes for people, and to the byte where that says more."""
    short = _core.format_bytes(count)
    return short if short.endswith(" B") else f"{short} ({count:,} B)"


def print_facts(facts: Mapping[str, str]) -> None:
    """Names and what they stand for, one a line."""
    width = max(len(printable(name)) for name in facts)
    for name, value in facts.items():
        print(f"{printable(name):<{width}}  {printable(value)}")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table whose first column is text and whose others are numbers."""
    console = _console()
    table = Table(box=SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, padding=(0, 2))
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    for row in rows:
        table.add_row(*map(printable, row))
    console.print()
    console.print(printable(title), style="bold")
    console.print(table)


def print_assumptions(assumptions: Iterable[str]) -> None:
    """What was taken for granted, one a line."""
    for number, text in enumerate(assumptions):
        print(("" if number else "\nassumed:\n") + f"  - {printable(text)}")


def _console() -> Console:
    # Names of modules and files are not markup. Without a terminal nothing is cut to its width.
    width = None if sys.stdout.isatty() else _WIDE
    return Console(file=sys.stdout, markup=False, highlight=False, emoji=False, width=width)
