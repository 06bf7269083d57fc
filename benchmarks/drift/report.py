"""The report on drift, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from drift.evaluation import Row

LEAST_EFFICIENCY = 0.97
_GIB = 1 << 30
_COLUMNS = (
    "workload",
    "drift",
    "seed",
    "iterations",
    "load",
    "torch",
    "expandable segments",
    "stalloc",
    "efficiency",
    "less than expandable segments",
)

_HEAD = """# Mixtures of experts whose router drifts

Written by `python benchmarks/drift`. GiB at the peak over the whole run: start-up, the warm-up, the
profiled iterations and the drifted ones. stalloc's plan is made of iterations 1 to 3, and in force
from the beginning. torch's columns come from the model of its policy.

The popularity of each expert drifts over 50 iterations: `walk` is a random walk that reaches the
skew of the start, `turn` ends in an independent popularity, `skew` grows threefold.
"""


def render(rows: Iterable[Row]) -> str:
    """The report."""
    rows = sorted(rows, key=lambda row: (row.workload, row.drift, row.iterations, row.seed))
    ahead = [row for row in rows if row.stalloc < row.expandable]
    enough = [row for row in rows if row.efficiency >= LEAST_EFFICIENCY]
    worst = min(rows, key=lambda row: row.efficiency)
    lines = [
        _HEAD,
        "| target | runs that meet it |",
        "|---|---|",
        f"| Reserves less than expandable segments | {len(ahead)} of {len(rows)} |",
        f"| Efficiency at least {LEAST_EFFICIENCY} | {len(enough)} of {len(rows)}; the lowest is "
        f"{worst.efficiency:.4f} ({worst.workload}, {worst.drift}, seed {worst.seed}) |",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        f"|{'---|' * len(_COLUMNS)}",
        *(line(row) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def line(row: Row) -> str:
    """A row of the table."""
    sizes = (row.load, row.torch, row.expandable, row.stalloc)
    cells = [
        row.workload,
        row.drift,
        str(row.seed),
        str(row.iterations),
        *(f"{size / _GIB:.2f}" for size in sizes),
        f"{row.efficiency:.4f}",
        f"{(row.expandable - row.stalloc) / _GIB:+.2f}",
    ]
    return f"| {' | '.join(cells)} |"
