"""`stalloc replay`: the memory that each allocator reserves for a trace."""

from __future__ import annotations

import argparse
import sys
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
from stalloc.recordings import PlannedRecording, plan_recording
from stalloc.replaying import (
    STALLOC,
    UNROLLED,
    Replay,
    other_settings,
    recorded_expandable,
    replay_both_torch,
    replay_stalloc,
    unroll,
)
from stalloc.torch_settings import applied, parse
from stalloc.trace import Trace
from stalloc.verdicts import Comparison, failure

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
        "Needs no GPU: torch's rows come from a model of its policy. All figures are peaks of the "
        "whole replay.",
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
        "--startup",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the plan is in force from the start of the process, as under `stalloc run --plan` "
        "(default), or comes into force after start-up, as by `stalloc.enable`",
    )
    parser.add_argument(
        "--torch-settings",
        metavar="SETTINGS",
        type=_settings_of,
        help="of torch's allocator, as in PYTORCH_CUDA_ALLOC_CONF (default: what was recorded)",
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


def _settings_of(text: str) -> dict[str, str]:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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
        if args.torch_settings is not None:
            trace = applied(trace, args.torch_settings)
        settings = other_settings(trace)
        if settings:
            had = "it had" if args.torch_settings is None else "given"
            assumptions.append(f"torch is replayed with the settings {had}: {settings}")
        ours = _planned(args, trace, plan)
        comparison = Comparison.of(
            trace,
            ours,
            replay_both_torch(trace, capacity=args.capacity),
            recorded_expandable(trace),
        )
    if args.json:
        print_json(
            {
                "input": str(args.input),
                "requests": len(trace.requests),
                "iterations": max(0, len(trace.iterations) - 1),
                "capacity": args.capacity,
                "rows": [asdict(row) for row in comparison.rows],
                "saved": comparison.saved,
                "best": comparison.best,
                "verdict": comparison.verdict,
                "notes": comparison.notes,
                "plan": ours.plan.summary(),
                "assumptions": assumptions,
            }
        )
    else:
        _print(args, trace, comparison)
        print_assumptions(assumptions)
    if ours.row.fits is False:
        raise DoesNotFit(
            f"{args.input}: stalloc does not fit {size(args.capacity)} either: "
            f"{failure(ours.row)}; train with smaller batches, or more recomputation"
        )
    return 0


def _planned(args: argparse.Namespace, trace: Trace, plan: Plan | None) -> PlannedRecording:
    if plan is not None:
        row = replay_stalloc(trace, plan, capacity=args.capacity, startup=args.startup)
        return PlannedRecording(plan, trace, row)
    return plan_recording(
        trace,
        time_limit=args.time_limit,
        startup=args.startup,
        capacity=args.capacity,
        progress=sys.stderr.isatty(),
    )


def _print(args: argparse.Namespace, trace: Trace, comparison: Comparison) -> None:
    plan = comparison.plan
    iterations = max(0, len(trace.iterations) - 1)
    resident = f" and {_core.format_bytes(plan.resident)} resident" if plan.resident else ""
    proven = ", proven optimal" if plan.optimal else ""
    print_facts(
        {
            "input": str(args.input),
            "requests": f"{len(trace.requests):,} in {iterations} iterations",
            "plan": f"{_core.format_bytes(plan.pool)}{resident}, gap {plan.gap:.3%}" + proven,
            "covers": comparison.coverage,
        }
    )
    columns = ["allocator", "load", "reserved", "efficiency", "calls"]
    title = "Reserved by each allocator at its peak"
    measured = any(row.measured is not None for row in comparison.rows)
    if measured:
        columns.append("measured")
    if args.capacity is not None:
        columns.append("fits")
        title += f", of {_core.format_bytes(args.capacity)}"
    print_table(title, columns, (_cells(row, measured) for row in comparison.rows))
    for row in comparison.rows:
        if row.fits is False and row.allocator != STALLOC:
            print()
            print_text(f"{row.allocator} runs out of memory: {failure(row)}")
    if comparison.verdict:
        print()
        print_text(comparison.verdict)
    for note in comparison.notes:
        print()
        print_text(note)


def _cells(row: Replay, measured: bool) -> list[str]:
    cells = [
        row.allocator,
        _core.format_bytes(row.peak_load),
        _core.format_bytes(row.peak_reserved),
        "-" if row.peak_efficiency is None else f"{row.peak_efficiency:.4f}",
        f"{row.native_calls:,}",
    ]
    if measured:
        cells.append("" if row.measured is None else _core.format_bytes(row.measured))
    if row.fits is not None:
        cells.append("yes" if row.fits else "no")
    return cells
