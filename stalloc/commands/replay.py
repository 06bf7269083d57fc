"""`stalloc replay`: the memory that each allocator reserves for a trace."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from stalloc import _core
from stalloc.commands import import_
from stalloc.commands.inputs import bytes_of, check_requests, naming, read, read_plan, seconds_of
from stalloc.commands.output import (
    DoesNotFit,
    print_assumptions,
    print_facts,
    print_json,
    print_table,
    print_text,
    size,
)
from stalloc.plans import Plan
from stalloc.replaying import (
    STALLOC,
    UNROLLED,
    Replay,
    other_settings,
    recorded_expandable,
    replay_all,
    unroll,
)
from stalloc.trace import Trace

if TYPE_CHECKING:
    from stalloc.commands import Subparsers

_TIME_LIMIT = 2.0  # seconds; an answer is wanted soon, and is within a per mille by then


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Adds the sub-command's parser."""
    parser = subparsers.add_parser(
        "replay",
        help="compare the memory that torch's allocators and stalloc reserve",
        description="Replays a trace, a plan, a PyTorch memory snapshot or a Kineto trace under "
        "torch's caching allocator, the same with expandable segments, and stalloc with a plan. "
        "Needs no GPU: torch's rows come from a model of its policy. 'load' and 'reserved' are of "
        "the last complete iteration; reserved at the peak counts the warm-up, too.",
        epilog="Exit codes: 0 done, 1 bad input, 2 wrong usage, 3 stalloc does not fit the "
        "capacity.",
    )
    parser.add_argument(
        "input", metavar="IN", type=Path, help="a trace, a plan, a snapshot or a Kineto trace"
    )
    parser.add_argument(
        "--plan", metavar="PLAN", type=Path, help="serve from this plan (default: make one)"
    )
    parser.add_argument(
        "--capacity", metavar="BYTES", type=bytes_of, help="of the device, as in 80GiB"
    )
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=seconds_of,
        default=_TIME_LIMIT,
        help="for planning (default: %(default)g)",
    )
    import_.add_options(parser)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    return parser


def main(args: argparse.Namespace) -> int:
    """Replays the input under every allocator and prints a row for each."""
    given = read(args.input, args.device, args.repeat)
    assumptions = list(given.imported.assumptions) if given.imported is not None else []
    plan = read_plan(args.plan) if args.plan is not None else given.plan
    with naming(args.input):
        if given.trace is not None:
            trace = given.trace
        else:
            assert given.plan is not None
            trace = unroll(given.plan)
            assumptions.append(
                f"a plan has no dynamic requests; the others are replayed for {UNROLLED} iterations"
            )
        check_requests(trace)
        settings = other_settings(trace)
        if settings:
            assumptions.append(f"torch is replayed with the settings it had: {settings}")
        if plan is None:
            plan = trace.plan(time_limit=args.time_limit, progress=sys.stderr.isatty())
        rows = replay_all(trace, plan, capacity=args.capacity)
    base = rows[recorded_expandable(trace)]
    saved = _saved(rows, base)
    if args.json:
        print_json(
            {
                "input": str(args.input),
                "requests": len(trace.requests),
                "iterations": max(0, len(trace.iterations) - 1),
                "capacity": args.capacity,
                "rows": [asdict(row) for row in rows],
                "saved": saved,
                "plan": plan.summary(),
                "assumptions": assumptions,
            }
        )
    else:
        _print(args, trace, plan, rows, base, saved)
        print_assumptions(assumptions)
    stalloc = rows[-1]
    if stalloc.fits is False:
        raise DoesNotFit(
            f"{args.input}: stalloc does not fit {size(args.capacity)} either: "
            f"{_failure(stalloc)}; train with smaller batches, or more recomputation"
        )
    return 0


def _print(
    args: argparse.Namespace,
    trace: Trace,
    plan: Plan,
    rows: Sequence[Replay],
    base: Replay,
    saved: int | None,
) -> None:
    iterations = max(0, len(trace.iterations) - 1)
    print_facts(
        {
            "input": str(args.input),
            "requests": f"{len(trace.requests):,} in {iterations} iterations",
            "plan": f"{_core.format_bytes(plan.pool)}, gap {plan.gap:.3%}",
        }
    )
    columns = ["allocator", "load", "reserved", "efficiency", "peak", "calls"]
    title = "Reserved by each allocator"
    measured = any(row.measured is not None for row in rows)
    if measured:
        columns.append("measured")
    if args.capacity is not None:
        columns.append("fits")
        title += f", of {_core.format_bytes(args.capacity)}"
    print_table(title, columns, (_cells(row, measured) for row in rows))
    for row in rows:
        if row.fits is False and row.allocator != STALLOC:
            print()
            print_text(f"{row.allocator} runs out of memory: {_failure(row)}")
    if saved is not None:
        print()
        print_text(_verdict(saved, base, plan))


def _cells(row: Replay, measured: bool) -> list[str]:
    cells = [
        row.allocator,
        _core.format_bytes(row.load),
        _core.format_bytes(row.reserved),
        "-" if row.efficiency is None else f"{row.efficiency:.4f}",
        _core.format_bytes(row.peak_reserved),
        f"{row.native_calls:,}",
    ]
    if measured:
        cells.append("" if row.measured is None else _core.format_bytes(row.measured))
    if row.fits is not None:
        cells.append("yes" if row.fits else "no")
    return cells


def _held(torch: Replay) -> int:
    """Bytes that torch held: measured if possible, else modelled."""
    return torch.reserved if torch.measured is None else torch.measured


def _saved(rows: Sequence[Replay], torch: Replay) -> int | None:
    """Bytes that stalloc would reserve less than torch does; negative when more.

    None if one of them exceeds the capacity.
    """
    stalloc = rows[-1]
    if torch.fits is False or stalloc.fits is False:
        return None
    return _held(torch) - stalloc.reserved


def _verdict(saved: int, torch: Replay, plan: Plan) -> str:
    held = _held(torch)
    share = abs(saved) / held if held else 0.0
    amount = f"{_core.format_bytes(abs(saved))} ({share:.1%} of what torch holds)"
    if saved >= 0:
        return f"With stalloc you would save {amount}."
    why = "requests that do not repeat lie beside the pool"
    if plan.pool - plan.bound >= -saved:
        why = f"the plan is {plan.gap:.1%} above its bound; try a longer --time-limit"
    return f"stalloc would reserve {amount} more: {why}."


def _failure(row: Replay) -> str:
    return (
        f"request {row.failed_request:,}, of {_core.format_bytes(row.failed_size)}, "
        f"with {_core.format_bytes(row.peak_reserved)} reserved"
    )
