"""`stalloc replay`: the memory that each allocator reserves for a trace."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from stalloc import _core
from stalloc.commands import import_
from stalloc.commands.inputs import (
    Input,
    bytes_of,
    check_requests,
    naming,
    read,
    read_plan,
    seconds_of,
)
from stalloc.commands.output import (
    DoesNotFit,
    print_assumptions,
    print_facts,
    print_json,
    print_table,
    print_text,
    size,
)
from stalloc.files import check_output
from stalloc.importers.history import REPETITION
from stalloc.plans import Plan
from stalloc.recordings import (
    PlannedRecording,
    is_repeated,
    is_whole,
    plan_recording,
    replayed,
)
from stalloc.replaying import (
    PAGE,
    STALLOC,
    TORCH,
    UNROLLED,
    Replay,
    in_pages,
    other_settings,
    recorded_expandable,
    replay_both_torch,
    unroll,
)
from stalloc.torch_settings import applied, parse
from stalloc.trace import Trace
from stalloc.verdicts import Comparison, failure

if TYPE_CHECKING:
    from stalloc.commands import Subparsers

_MIB = 1 << 20


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
        "-o",
        "--output",
        metavar="PLAN",
        type=Path,
        help="write the plan that stalloc is replayed with",
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
        "--fallback",
        choices=(TORCH, STALLOC),
        help="the allocator of the requests outside stalloc's pool: torch's with its settings, as "
        "in native mode (default for CUDA), or stalloc's own, as in compat mode",
    )
    parser.add_argument(
        "--capacity", metavar="BYTES", type=bytes_of, help="of the device, as in 80GiB"
    )
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=seconds_of,
        help="for all plans together (default: a fixed number of steps for each layout)",
    )
    import_.add_options(parser)
    parser.add_argument("--force", action="store_true", help="replace PLAN if it is there")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    return parser


def _settings_of(text: str) -> dict[str, str]:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(args: argparse.Namespace) -> int:
    """Replays the input under every allocator and prints a row for each."""
    if args.output is not None:
        check_output(args.output, args.input, overwrite=args.force)
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
        trace = _with_settings(args, trace)
        settings = other_settings(trace)
        if settings:
            had = "it had" if args.torch_settings is None else "given"
            assumptions.append(f"torch is replayed with the settings {had}: {settings}")
        ours = _planned(args, given, trace, plan)
        if is_repeated(trace) and not is_repeated(ours.trace):
            assumptions = [text for text in assumptions if not text.startswith(REPETITION)]
        trace = ours.trace
        comparison = Comparison.of(
            trace,
            ours,
            replay_both_torch(trace, capacity=args.capacity),
            recorded_expandable(trace),
        )
    if args.output is not None:
        ours.plan.save(args.output, overwrite=args.force)
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
                "repeated": None if ours.repeated is None else asdict(ours.repeated),
                "output": None if args.output is None else str(args.output),
                "assumptions": assumptions,
            }
        )
    else:
        _print(args, ours, comparison)
        print_assumptions(assumptions)
    if ours.row.fits is False:
        raise DoesNotFit(
            f"{args.input}: stalloc does not fit {size(args.capacity)}: {_failure(ours)}; use an "
            "allocator that fits, or train with smaller batches or more recomputation"
        )
    return 0


def _failure(ours: PlannedRecording) -> str:
    row = ours.row
    if row.failed_request >= 0:
        return failure(row)
    takes = "takes" if row.failed_size == in_pages(ours.plan.pool) else "and resident region take"
    return f"the plan's pool {takes} {size(row.failed_size)} in pages of {_core.format_bytes(PAGE)}"


def _with_settings(args: argparse.Namespace, trace: Trace) -> Trace:
    return trace if args.torch_settings is None else applied(trace, args.torch_settings)


def _planned(
    args: argparse.Namespace, given: Input, trace: Trace, plan: Plan | None
) -> PlannedRecording:
    def once() -> Trace:
        alone = read(args.input, args.device, 1).trace
        assert alone is not None
        return _with_settings(args, alone)

    again = once if given.imported is not None and is_repeated(trace) else None
    if plan is not None:
        if again is not None and is_whole(plan.info):
            trace = again()
        return replayed(
            trace,
            plan,
            startup=args.startup,
            capacity=args.capacity,
            fallback=args.fallback,
            given=True,
        )
    return plan_recording(
        trace,
        time_limit=args.time_limit,
        startup=args.startup,
        capacity=args.capacity,
        once=again,
        fallback=args.fallback,
        progress=sys.stderr.isatty(),
    )


def _print(args: argparse.Namespace, ours: PlannedRecording, comparison: Comparison) -> None:
    plan = ours.plan
    # A plan that comes into force after start-up has no resident region.
    has_resident = plan.resident and ours.startup
    resident = f" and {_core.format_bytes(plan.resident)} resident" if has_resident else ""
    proven = ", proven optimal" if plan.optimal else ""
    facts = {
        "input": str(args.input),
        "requests": _requests(ours.trace),
        "plan": f"{_core.format_bytes(plan.pool)}{resident}, gap {plan.gap:.3%}{proven}",
        "covers": comparison.coverage,
        "fallback": _fallback(ours.row),
    }
    if args.output is not None:
        facts["written to"] = str(args.output)
    print_facts(facts)
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


def _fallback(row: Replay) -> str:
    if row.fallback == TORCH:
        return "torch's allocator, as in native mode"
    return "stalloc's own, as in compat mode"


def _requests(trace: Trace) -> str:
    count = f"{len(trace.requests):,}"
    iterations = max(0, len(trace.iterations) - 1)
    if is_repeated(trace):
        return f"{count}: one iteration was recorded, and is repeated {iterations} times"
    if is_whole(trace.info):
        return f"{count} in one pass"
    return f"{count} in {iterations} iteration{'' if iterations == 1 else 's'}"


def _mib(size: int) -> str:
    """Bytes for a comparison, where small differences count."""
    if size < _MIB:
        return _core.format_bytes(size)
    return f"{size / _MIB:,.1f} MiB"


def _cells(row: Replay, measured: bool) -> list[str]:
    cells = [
        row.allocator,
        _mib(row.peak_load),
        _mib(row.peak_reserved),
        "-" if row.peak_efficiency is None else f"{row.peak_efficiency:.4f}",
        f"{row.native_calls:,}",
    ]
    if measured:
        cells.append("" if row.measured is None else _mib(row.measured))
    if row.fits is not None:
        cells.append("yes" if row.fits else "no")
    return cells
