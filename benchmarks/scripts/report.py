"""The page: the targets, and a table for each machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from scripts.catalogue import SCRIPTS, Script
from scripts.figures import Row, failure, identical, least, reserved, stages

_MIB = 1 << 20
_IN_FORCE = 10  # iterations
_HITS = 0.99
_EFFICIENCY = {False: 0.99, True: 0.98}  # by changing shapes

_HEAD = """# Public training scripts, unchanged

Written by `python benchmarks/scripts`. Each script is that of a public repository, as it is, and
runs under `stalloc run SCRIPT`: no plan is given, so it is `stalloc.auto`. The second run finds the
plan of the first one. Arguments keep runs short, and on the CPU models small. There is no network:
the files that a script would download have random content.

On the **CPU** everything is computed, on one core. Results are identical if the parameters after
each step of an optimizer, and all tensors that are saved, have the same bytes under torch and in
both runs of stalloc, in all ranks; the generators of Python and NumPy get a seed, which some
scripts give torch's alone. On the **pretended GPU** nothing is computed; memory is
accounted as on a GPU, cuDNN is off, and gloo stands for NCCL. The table has MiB of the device at
the peak of the whole run, start-up included. The load is the most that is requested at once, under
torch's allocator.

"In force" is the number of complete iterations before the first plan. Hits are the share of
training's requests that a plan served as planned, in complete iterations from then on; efficiency
is live over reserved memory at the peak, from then on. For several ranks, the table has the largest
memory, and the worst of the other figures. On the CPU, gloo's threads request copies of their own
at times that vary, which no plan has. Scripts with `~` have shapes that change from iteration to
iteration.

"""

Check = Callable[[Script, Row], bool | None]
"""True if a row meets a target; None if it does not apply."""


def render(rows: Mapping[str, Sequence[Row]]) -> str:
    """The page about the rows of each machine."""
    lines: list[str] = []
    for machine, title in (("cpu", "CPU"), ("gpu", "Pretended GPU")):
        if not rows[machine]:
            continue
        versions = sorted({run["torch"] for row in rows[machine] for run in _complete(row)})
        commits = sorted({row["measured"] for row in rows[machine]})
        lines += [f"## {title}", ""]
        lines += [f"torch {', '.join(versions)}; measured at {', '.join(commits)}.", ""]
        lines += [*summary(machine, rows[machine]), "", *_table(machine, rows[machine]), ""]
    checkouts = {row["script"]: row["commit"] for each in rows.values() for row in each}
    lines += ["## The scripts", ""]
    lines += [_about(s, checkouts[s.name]) for s in SCRIPTS if s.name in checkouts]
    return _HEAD + "\n".join(lines) + "\n"


def summary(machine: str, rows: Sequence[Row]) -> list[str]:
    """The targets and the rows that meet them, as a table."""
    lines = ["| target | rows that meet it | others |", "|---|---|---|"]
    for title, check in _targets(machine):
        verdicts = [(row["script"], check(_script(row), row)) for row in rows if not failure(row)]
        applied = [(name, verdict) for name, verdict in verdicts if verdict is not None]
        missed = [name for name, verdict in applied if not verdict]
        met = len(applied) - len(missed)
        lines.append(f"| {title} | {met} of {len(applied)} | {', '.join(missed)} |")
    return lines


def _targets(machine: str) -> list[tuple[str, Check]]:
    shared: list[tuple[str, Check]] = [
        (f"in force within {_IN_FORCE} iterations", _soon),
        (f"hits of the first run at least {_HITS:.0%}", lambda _, row: _hits(row, "first")),
        (f"hits of the second run at least {_HITS:.0%}", lambda _, row: _hits(row, "second")),
        (
            f"efficiency of the first run at least {_EFFICIENCY[False]}, with changing shapes "
            f"{_EFFICIENCY[True]}",
            lambda script, row: _efficient(script, row, "first"),
        ),
        ("the same of the second run", lambda script, row: _efficient(script, row, "second")),
    ]
    if machine == "cpu":
        return [("results identical to the bit", lambda _, row: identical(row)), *shared]
    return [
        *shared,
        ("peak of the first run at most torch's", lambda _, row: _below(row, "first", "torch")),
        ("the same of the second run", lambda _, row: _below(row, "second", "torch")),
        (
            "peak of the first run at most that of expandable segments",
            lambda _, row: _below(row, "first", "expandable"),
        ),
        ("the same of the second run", lambda _, row: _below(row, "second", "expandable")),
    ]


def _soon(_: Script, row: Row) -> bool:
    begins = [stage.in_force for stage in stages(row, "first")]
    return all(begin is not None and begin <= _IN_FORCE for begin in begins)


def _hits(row: Row, way: str) -> bool | None:
    worst = least(stage.hits for stage in stages(row, way))
    return None if worst is None else worst >= _HITS


def _efficient(script: Script, row: Row, way: str) -> bool | None:
    worst = least(stage.efficiency for stage in stages(row, way))
    return None if worst is None else worst >= _EFFICIENCY[script.changing]


def _below(row: Row, way: str, other: str) -> bool:
    return reserved(row, way) <= reserved(row, other)


def _table(machine: str, rows: Sequence[Row]) -> list[str]:
    memory = machine == "gpu"
    columns = ["script"]
    columns += ["load", "torch", "expandable", "run 1", "run 2"] if memory else ["identical"]
    columns += ["in force", "hits", "of run 2", "efficiency", "of run 2", "iterations"]
    cells = [_cells(_script(row), row, memory) for row in rows]
    return ["| " + " | ".join(c) + " |" for c in (columns, ["---"] * len(columns), *cells)]


def _cells(script: Script, row: Row, memory: bool) -> list[str]:
    name = script.name + " ~" * script.changing
    if message := failure(row):
        return [name, f"failed: {message}".replace("|", "/")]
    cells = [name]
    if memory:
        cells.append(f"{row['runs']['torch']['load'] / _MIB:,.1f}")
        cells += [f"{reserved(row, way) / _MIB:,.1f}" for way in row["runs"]]
    else:
        cells.append("yes" if identical(row) else "**no**")
    first, second = stages(row, "first"), stages(row, "second")
    begins = [stage.in_force for stage in first]
    cells.append("never" if None in begins else str(max(b for b in begins if b is not None)))
    cells += [_share(least(s.hits for s in each), ".2%") for each in (first, second)]
    cells += [_share(least(s.efficiency for s in each), ".4f") for each in (first, second)]
    return [*cells, str(min(stage.iterations for stage in first))]


def _share(value: float | None, style: str) -> str:
    return "-" if value is None else format(value, style)


def _complete(row: Row) -> list[Row]:
    return [run for run in row["runs"].values() if "torch" in run]


def _script(row: Row) -> Script:
    return next(script for script in SCRIPTS if script.name == row["script"])


def _about(script: Script, commit: str) -> str:
    text = f"- **{script.name}**: {script.repository} at {commit}, `{script.path}`"
    text += "".join(
        f"; {title}: `{arguments}`"
        for title, arguments in (("CPU", script.cpu), ("GPU", script.gpu))
        if arguments
    )
    return text + (f". Here: {script.note}." if script.note else ".")
