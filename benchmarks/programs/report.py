"""The results as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from programs.measure import Row
from programs.registry import PROGRAMS

TOLERANCE = 1.02
"""Multiple of the load above which the summary counts a row."""

_GIB = 1 << 30
_HEAD = """# Programs whose memory changes from iteration to iteration

Written by `python benchmarks/programs` at {commit}. GiB at the peak over the whole run of
{iterations} iterations, start-up included, and what they are as a multiple of the load. stalloc's
plan is made of the first five iterations; {fallback} allocator serves the requests outside the
pool. torch's columns come from the model of its policy. The excess is what stalloc reserves above
the better of torch's two, as a share of the load. A wait is one for the device, where memory moves.

"""
_COLUMNS = (
    "program",
    "seed",
    "load",
    "torch",
    "expandable segments",
    "stalloc",
    "excess",
    "waits",
    "calls",
)


def render(rows: Sequence[Row], *, commit: str, fallback: str) -> str:
    """A summary, the table, and a sentence on each program."""
    names = {row.program for row in rows}
    iterations = ", ".join(map(str, sorted({row.iterations for row in rows})))
    owner = "stalloc's own" if fallback == "stalloc" else "torch's"
    lines = [
        *(f"| {text} | {value} |" for text, value in summary(rows)),
        "",
        f"| {' | '.join(_COLUMNS)} |",
        f"|{'---|' * len(_COLUMNS)}",
        *map(line, rows),
        "",
        "## The programs",
        "",
        *(f"- **{p.name}**: {p.description}" for p in PROGRAMS if p.name in names),
    ]
    head = _HEAD.format(commit=commit, iterations=iterations, fallback=owner)
    return head + "| summary | |\n|---|---|\n" + "\n".join(lines) + "\n"


def summary(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """The figures over all rows, each with its meaning."""
    above = [row for row in rows if row.stalloc > row.best]
    loose = [row for row in rows if row.ratio > TOLERANCE]

    def a_run(values: Sequence[int]) -> str:
        return f"{sum(values) / len(values):,.0f}"

    return [
        ("Rows above the better of torch's allocators", f"{len(above)} of {len(rows)}"),
        ("Sum of their excess", f"{sum(row.excess for row in above):.3f} times the load"),
        (f"Rows above {TOLERANCE} times the load", f"{len(loose)} of {len(rows)}"),
        ("Waits a run", a_run([row.waits for row in rows])),
        ("Calls of the driver a run", a_run([row.calls for row in rows])),
        ("The same of torch's allocator", a_run([row.torch_calls for row in rows])),
        ("The same of expandable segments", a_run([row.expandable_calls for row in rows])),
    ]


def line(row: Row) -> str:
    """A row of the table."""
    sizes = (row.torch, row.expandable, row.stalloc)
    cells = [
        row.program,
        str(row.seed),
        f"{row.load / _GIB:.2f}",
        *(f"{size / _GIB:.2f} ({size / row.load:.3f})" for size in sizes),
        f"{row.excess:+.3f}",
        f"{row.waits:,}",
        f"{row.calls:,}",
    ]
    return f"| {' | '.join(cells)} |"
