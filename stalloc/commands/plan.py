"""`stalloc plan`: from a trace to a plan, or from a MiniMalloc CSV to the same with offsets."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stalloc import planner
from stalloc.commands.inputs import bytes_of, check_requests, naming, read_bytes, seconds_of
from stalloc.commands.output import DoesNotFit, print_facts, print_json, size
from stalloc.commands.search import INTERRUPTED, searching
from stalloc.errors import PlanError
from stalloc.files import check_output, named, write_file
from stalloc.importers.kinds import Kind, kind_of, unpacked
from stalloc.plans import DEFAULT_ALIGNMENT
from stalloc.trace import Trace

if TYPE_CHECKING:
    from stalloc.commands import Subparsers

_CSV_SECONDS = 10.0
"""The time limit of a CSV by default: its planners get all the time there is."""


_DIGITS = 18
"""The most digits of an extent: more may exceed 63 bits."""


@dataclass(frozen=True, slots=True)
class Report:
    """The output of `--json`: its keys are documented and stay."""

    buffers: int
    bound: int
    pool: int
    gap: float
    optimal: bool
    algorithm: str
    seconds: float
    validated: bool


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Adds the sub-command's parser."""
    parser = subparsers.add_parser(
        "plan",
        help="give every static request of a trace an address",
        description="Plans a stalloc trace, or a MiniMalloc CSV (id,lower,upper,size[,offset]). "
        "The output is of the same kind: a plan, or the CSV with offsets.",
        epilog="Ctrl-C ends the search with the best plan so far, and a second one without. Exit "
        "codes: 0 done, 1 bad input, 2 wrong usage, 3 no plan fits the capacity, 130 interrupted.",
    )
    parser.add_argument("input", metavar="IN", type=Path, help="a trace or a MiniMalloc CSV")
    parser.add_argument("-o", "--output", metavar="OUT", type=Path, help="the plan file to write")
    parser.add_argument(
        "--alignment",
        metavar="BYTES",
        type=bytes_of,
        help="alignment of every address (default: "
        f"{DEFAULT_ALIGNMENT} for a trace, 1 for a CSV, as MiniMalloc has it)",
    )
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=seconds_of,
        help="time limit of the search, which then takes the best plan (default: for a trace a "
        "fixed number of steps, a few seconds; for a CSV 10)",
    )
    parser.add_argument(
        "--algorithm",
        metavar="NAME",
        choices=planner.algorithms(),
        help="use this planner alone, as in paper or first-fit-size (default: all)",
    )
    parser.add_argument(
        "--streams",
        choices=[streams.value for streams in planner.Streams],
        default=planner.Streams.AUTO.value,
        help="ordered lets the streams of a trace share addresses: a smaller pool, "
        "for which they wait for each other on the device; auto lets them only where the program "
        "orders them itself, and separate never (default: %(default)s)",
    )
    parser.add_argument(
        "--capacity",
        metavar="BYTES",
        type=bytes_of,
        help="fail if the pool is larger, as in 80GiB",
    )
    parser.add_argument(
        "--extent",
        metavar="NAME=VALUE",
        type=_extent,
        action="append",
        default=[],
        dest="extents",
        help="plan a trace for batches of this size, as in ids.1=8192; may be given several "
        "times (default: the largest that the trace has)",
    )
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    return parser


def _extent(text: str) -> tuple[str, int]:
    name, equals, value = text.partition("=")
    if name and re.fullmatch(rf"[0-9]{{{_DIGITS + 1},}}", value):
        raise argparse.ArgumentTypeError(f"{text!r} is too large: at most {_DIGITS} digits")
    if not (name and equals and re.fullmatch(r"[0-9]+", value) and int(value) > 0):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not of the form NAME=VALUE with a VALUE from 1, as in ids.1=8192"
        )
    return name, int(value)


def main(args: argparse.Namespace) -> int:
    """Plans the input, writes the output, prints the report."""
    if args.output is not None:
        check_output(args.output, args.input, overwrite=args.force)
    source = named(args.input)
    content = unpacked(read_bytes(args.input), source)
    kind = kind_of(content, source)
    if kind not in (Kind.TRACE, Kind.CSV):
        remedy = "make one of it with `stalloc import`"
        if kind is Kind.PLAN:
            remedy = "give the trace that the plan was made of"
        raise PlanError(f"{source}: this is {kind.value}, and a trace is needed: {remedy}")
    with naming(args.input):
        plan = _plan_trace if kind is Kind.TRACE else _plan_csv
        report, write, more, interrupted = plan(args, content)
    if args.capacity is not None and report.pool > args.capacity:
        raise DoesNotFit(
            f"{args.input}: {_too_large(report, args.capacity, chosen=args.algorithm is not None)}"
        )
    if args.output is not None:
        write(args.output)
    if args.json:
        print_json(asdict(report))
    else:
        _print(report, more, args.output)
    if interrupted:
        said = f"interrupted: this is the best plan so far, gap {_gap(report)}"
        print(f"stalloc plan: {said}", file=sys.stderr)
        return INTERRUPTED
    return 0


class Planned(NamedTuple):
    """The figures, the function that writes the plan, and further facts."""

    report: Report
    write: Callable[[Path], None]
    more: Mapping[str, str]
    interrupted: bool


def _plan_trace(args: argparse.Namespace, content: bytes) -> Planned:
    trace = Trace.from_json(content, named(args.input))
    check_requests(trace)
    began = time.perf_counter()
    with searching(sys.stderr.isatty()) as search:
        plan = trace.plan(
            algorithm=args.algorithm,
            alignment=DEFAULT_ALIGNMENT if args.alignment is None else args.alignment,
            time_limit=args.time_limit,
            progress=search.progress,
            streams=args.streams,
            extents=dict(args.extents),
        )
    search.check(plan.gap)
    seconds = time.perf_counter() - began
    plan.check()
    report = Report(
        buffers=len(plan.decisions),
        bound=plan.bound,
        pool=plan.pool,
        gap=plan.gap,
        optimal=plan.optimal,
        algorithm=plan.algorithm,
        seconds=seconds,
        validated=True,
    )
    more = {}
    if plan.resident > 0:
        more["resident region"] = (
            f"{size(plan.resident)} above the pool, where the run is served from its start"
        )
    write = partial(plan.save, overwrite=args.force)
    return Planned(report, write, more, search.interrupted)


def _plan_csv(args: argparse.Namespace, content: bytes) -> Planned:
    if args.streams == planner.Streams.ORDERED:
        raise PlanError(f"{args.input}: a CSV names no streams: leave out --streams")
    if args.extents:
        raise PlanError(
            f"{args.input}: the sizes in a CSV are fixed, and follow no extent: leave out --extent"
        )
    csv = planner.parse_csv(content, named(args.input))
    if not csv.ids:
        raise PlanError(f"{args.input}: the CSV holds no buffers: there is nothing to plan")
    alignment = 1 if args.alignment is None else args.alignment
    bound = planner.load_bound(csv.lower, csv.upper, csv.size, alignment=alignment, gaps=csv.gaps)
    try:
        with searching(sys.stderr.isatty()) as search:
            solution = planner.plan(
                csv.lower,
                csv.upper,
                csv.size,
                alignment=alignment,
                gaps=csv.gaps,
                capacity=args.capacity,
                algorithm=args.algorithm,
                time_limit=_CSV_SECONDS if args.time_limit is None else args.time_limit,
                progress=search.progress,
            )
    except PlanError as error:
        # The problem itself is valid: it has a bound.
        if args.capacity is None:
            raise
        raise DoesNotFit(f"{args.input}: {error} (bound: {bound} B)") from error
    search.check(solution.gap)
    planner.validate(
        solution.offsets,
        csv.lower,
        csv.upper,
        csv.size,
        height=solution.height,
        alignment=alignment,
        gaps=csv.gaps,
    )
    report = Report(
        buffers=len(csv.ids),
        bound=solution.bound,
        pool=solution.height,
        gap=solution.gap,
        optimal=solution.optimal,
        algorithm=solution.algorithm,
        seconds=solution.seconds,
        validated=True,
    )

    def write(path: Path) -> None:
        text = planner.format_csv(csv, solution.offsets)
        write_file(path, text.encode(), overwrite=args.force)

    return Planned(report, write, {}, search.interrupted)


def _too_large(report: Report, capacity: int, *, chosen: bool) -> str:
    what = f"the pool takes {size(report.pool)}, and the capacity is {size(capacity)}; "
    if report.bound > capacity or report.optimal:
        return what + f"no plan is below {size(report.bound)}: train with smaller batches"
    what += f"a plan of {size(report.bound)} may exist: "
    if chosen:
        return what + "leave out --algorithm, so that all planners try"
    return what + "give more time with --time-limit"


def _gap(report: Report) -> str:
    return f"{report.gap:.3%}" + (", proven optimal" if report.optimal else "")


def _print(report: Report, more: Mapping[str, str], output: Path | None) -> None:
    facts = {
        "buffers": f"{report.buffers:,}",
        "pool": size(report.pool),
        "bound": size(report.bound),
        "gap": _gap(report),
        **more,
        "algorithm": report.algorithm,
        "time": f"{report.seconds:.2f} s",
    }
    if report.buffers == 0:
        facts["buffers"] = "0: no request repeats from iteration to iteration"
    if output is not None:
        facts["written to"] = str(output)
    print_facts(facts)
