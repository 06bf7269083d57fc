"""`stalloc diff`: the changes between two traces or plans."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from stalloc import _core
from stalloc.commands import import_
from stalloc.commands.inputs import check_requests, naming, positive, read
from stalloc.commands.output import print_facts, print_json, print_table, print_text
from stalloc.comparison import Change, Comparison, Run, compare, run_of
from stalloc.trace import Trace

if TYPE_CHECKING:
    from stalloc.commands import Subparsers

_LONGEST = 60  # characters of a value in the table of notes


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Adds the sub-command's parser."""
    parser = subparsers.add_parser(
        "diff",
        help="list the changes between two traces or plans",
        description="Compares the planned requests of two traces, plans, snapshots or Kineto "
        "traces, phase by phase: requests that are new, gone, resized or reordered, the largest "
        "first. With a plan and a newer trace it shows why the plan no longer fits. Two plans of "
        "batches that change are compared by their size laws, too.",
        epilog="Exit codes: 0 done, with or without changes; 1 bad input; 2 wrong usage.",
    )
    parser.add_argument("a", metavar="A", type=Path, help="before: a trace, a plan, a snapshot")
    parser.add_argument("b", metavar="B", type=Path, help="after")
    parser.add_argument(
        "--top",
        metavar="N",
        type=positive,
        default=20,
        help="number of changes to show (default: %(default)s)",
    )
    import_.add_options(parser)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    return parser


def main(args: argparse.Namespace) -> int:
    """Compares the two and prints the changes."""
    a, b = _read(args, args.a), _read(args, args.b)
    found = compare(a, b)
    if args.json:
        print_json(
            {
                "a": _figures(args.a, a),
                "b": _figures(args.b, b),
                "same": found.same,
                "fits": found.fits,
                "changes": [asdict(change) for change in found.changes],
                "laws": [asdict(change) for change in found.laws],
                "info": found.info,
            }
        )
    else:
        _print(args, a, b, found)
    return 0


def _read(args: argparse.Namespace, path: Path) -> Run:
    given = read(path, args.device, args.repeat)
    content = given.trace if given.plan is None else given.plan
    assert content is not None
    with naming(path):
        if isinstance(content, Trace):
            check_requests(content)
        return run_of(content)


def _figures(path: Path, run: Run) -> dict[str, object]:
    return {
        "file": str(path),
        "kind": run.kind,
        "fingerprint": run.fingerprint,
        "phases": len(run.planned),
        "requests": sum(map(len, run.planned.values())),
        "bytes": sum(size for shapes in run.planned.values() for size, _ in shapes),
        "load": run.load,
        "pool": run.pool,
    }


def _print(args: argparse.Namespace, a: Run, b: Run, found: Comparison) -> None:
    facts = {}
    for name, path, run in (("a", args.a, a), ("b", args.b, b)):
        figures = _figures(path, run)
        facts[name] = (
            f"{path}: {run.kind}, {figures['requests']:,} planned requests in "
            f"{figures['phases']} phases, load {_core.format_bytes(run.load)}"
        )
        if run.pool is not None:
            facts[name] += f", pool {_core.format_bytes(run.pool)}"
    print_facts(facts)
    if found.info:
        print_table(
            "Noted differently",
            ("name", "a", "b"),
            ((name, _short(x), _short(y)) for name, (x, y) in found.info.items()),
            text={"a", "b"},
        )
    if found.same:
        print()
        print_text("The planned requests are the same: a plan of a fits b.")
        return
    if found.changes:
        _print_changes(args, found)
    if found.laws:
        print_table(
            "Laws",
            ("phase", "requests", "a", "b"),
            (
                (change.phase, f"{change.requests:,}", change.a or "none", change.b or "none")
                for change in found.laws[: args.top]
            ),
            text={"a", "b"},
        )
        if rest := len(found.laws[args.top :]):
            print(f"and {rest:,} more laws (--top)")
    print()
    print_text(_verdict(a, b, found))


def _print_changes(args: argparse.Namespace, found: Comparison) -> None:
    named = any(change.site for change in found.changes)
    columns = ("phase", "change", "requests", "each", "bytes", *(("site",) if named else ()))
    print_table(
        "Changes",
        columns,
        (_cells(change, named) for change in found.changes[: args.top]),
        text={"change", "each", "site"},
    )
    rest: Sequence[Change] = found.changes[args.top :]
    if rest:
        total = sum(change.bytes for change in rest)
        print(f"and {len(rest):,} more changes, {_signed(total)} in all (--top)")


def _cells(change: Change, named: bool) -> tuple[str, ...]:
    sizes = [_core.format_bytes(size) for size in (change.size_a, change.size_b) if size]
    cells = (
        change.phase,
        change.what,
        f"{change.requests:,}",
        " -> ".join(dict.fromkeys(sizes)),
        _signed(change.bytes),
    )
    return (*cells, change.site) if named else cells


def _verdict(a: Run, b: Run, found: Comparison) -> str:
    share = f"{found.fits:.1%} of b's planned requests are in a, too."
    what = {change.what for change in found.changes}
    if not what:
        return (
            f"{share} Their sizes are equal at the largest extents. Below, they follow other laws: "
            "requests that a plan of a does not foresee take idle space."
        )
    if what == {"order"}:
        return f"{share} They come in another order: the runtime looks for them, and misses some."
    if what == {"dynamic"}:
        return f"{share} Only dynamic requests differ: a plan of a serves b."
    if what <= {"shorter", "dynamic"}:
        return f"{share} They are freed no later: a plan of a fits b."
    if what <= {"longer", "shorter", "dynamic"}:
        return (
            f"{share} Some are freed later: a plan of a serves them, and the next requests at "
            "their addresses fall back. Profile again."
        )
    if found.fits >= 0.99:
        return f"{share} A plan of a serves them, and leaves the rest to the fallback."
    return (
        f"{share} A plan of a no longer fits: new and resized requests fall back, and their old "
        "addresses stay empty. Profile again."
    )


def _signed(count: int) -> str:
    text = _core.format_bytes(abs(count))
    return f"+{text}" if count > 0 else f"-{text}" if count < 0 else text


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
