"""The output of sub-commands: tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from stalloc import _core
from stalloc.errors import StallocError

_WIDE = 1000  # columns; a file has no edge to wrap at
_NARROW = 10  # columns, for text that is wrapped


class DoesNotFit(StallocError):
    """The plan is larger than the capacity that was given."""


def printable(text: str) -> str:
    """The text with escapes for invisible characters.

    Names of files, layers and call sites are foreign, and a terminal obeys control characters.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def print_json(content: Mapping[str, object]) -> None:
    """One line of JSON on stdout.

    Text and line end are one write: print() without a buffer makes two, between which another rank
    may write.
    """
    sys.stdout.write(json.dumps(content, allow_nan=False) + "\n")


def size(count: int) -> str:
    """Bytes for people, and to the byte where that says more."""
    short = _core.format_bytes(count)
    return short if short.endswith(" B") else f"{short} ({count:,} B)"


def print_facts(facts: Mapping[str, str]) -> None:
    """Names and values, one a line."""
    width = max(len(printable(name)) for name in facts)
    for name, value in facts.items():
        print(f"{printable(name):<{width}}  {printable(value)}")


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    text: Collection[str] = (),
) -> None:
    """A table. Its columns are numbers, except the first and those in `text`."""
    console = _console()
    box = SIMPLE_HEAD if console.is_terminal else None
    table = Table(box=box, show_edge=False, pad_edge=False, padding=(0, 1))
    cells = [[printable(cell) for cell in row] for row in rows]
    least = 0
    for index, column in enumerate(columns):
        if index == 0 or column in text:
            # Wrapped if necessary, so that the numbers stay whole.
            table.add_column(column, overflow="fold")
            least += _NARROW
        else:
            table.add_column(column, justify="right", no_wrap=True)
            least += max(map(len, [column, *(row[index] for row in cells)]))
    for row in cells:
        table.add_row(*row)
    console.print()
    console.print(printable(title), style="bold")
    # A terminal that is narrower still breaks the lines itself.
    console.width = max(console.width, least + 3 * len(columns))
    console.print(table)


def print_text(text: str, first: str = "", others: str = "") -> None:
    """A paragraph, in a terminal wrapped between words; its lines begin with `first`, `others`."""
    lines = textwrap.wrap(
        printable(text),
        _console().width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
    print("\n".join(lines))


def print_assumptions(assumptions: Iterable[str]) -> None:
    """Prints the importer's assumptions, a paragraph each."""
    for number, assumption in enumerate(assumptions):
        if number == 0:
            print("\nassumed:")
        print_text(assumption, "  - ", "    ")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leaves a closed output to the command line; rich would exit."""
        raise BrokenPipeError


def _console() -> Console:
    # Names of modules and files are not markup. Without a terminal nothing is cut to its width.
    width = None if sys.stdout.isatty() else _WIDE
    return _Console(
        file=sys.stdout,
        markup=False,
        highlight=False,
        emoji=False,
        width=width,
        color_system=None if os.environ.get("NO_COLOR") else "auto",  # bold is none either
    )
