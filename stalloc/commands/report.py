"""`stalloc report`: a trace or a plan as a picture, in one HTML file that opens offline."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stalloc.commands import import_
from stalloc.commands.inputs import Input, check_requests, naming, read, read_plan, seconds_of
from stalloc.commands.output import print_assumptions, print_facts, print_json, printable, size
from stalloc.errors import PlanError
from stalloc.files import check_output, write_file
from stalloc.plans import Plan
from stalloc.replaying import STALLOC
from stalloc.report import Scene, render, scene_of_plan, scene_of_trace

if TYPE_CHECKING:
    from stalloc.commands import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Adds the sub-command's parser."""
    parser = subparsers.add_parser(
        "report",
        help="draw a trace or a plan as one HTML file",
        description="Draws every request over time and addresses, coloured by lifetime, under "
        "torch's allocator and under stalloc, with the live and the reserved bytes. IN is a trace, "
        "a plan, a PyTorch memory snapshot or a Kineto trace; it is planned first, unless it is a "
        "plan or --plan names its plan. The output is one HTML file that opens offline.",
        epilog="Exit codes: 0 done, 1 bad input, 2 wrong usage.",
    )
    parser.add_argument(
        "input", metavar="IN", type=Path, help="a trace, a plan, a snapshot or a Kineto trace"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        type=Path,
        default=Path("report.html"),
        help="the output file (default: %(default)s)",
    )
    parser.add_argument(
        "--plan", metavar="PLAN", type=Path, help="the plan of IN (default: make one)"
    )
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=seconds_of,
        help="time for planning (default: a fixed number of steps, a few seconds)",
    )
    import_.add_options(parser)
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    return parser


def main(args: argparse.Namespace) -> int:
    """Draws the input, writes the page, prints a summary."""
    check_output(args.output, args.input, overwrite=args.force)
    given = read(args.input, args.device, args.repeat)
    assumptions = list(given.imported.assumptions) if given.imported is not None else []
    plan = None if args.plan is None else read_plan(args.plan)
    with naming(args.input):
        scene = _scene(args, given, plan)
    page = render(scene)
    write_file(args.output, page, overwrite=args.force)
    if args.json:
        rows = [
            {
                "allocator": drawing.allocator,
                "load": scene.load,
                "reserved": drawing.reserved,
                "efficiency": scene.load / drawing.reserved if drawing.reserved > 0 else 1.0,
            }
            for drawing in scene.drawings
        ]
        print_json(
            {
                "output": str(args.output),
                "bytes": len(page),
                "requests": len(scene.requests),
                "rows": rows,
                "assumptions": assumptions,
            }
        )
        return 0
    drawn = "of the drawn iteration" if given.plan is None else "of the planned requests"
    facts = {"requests": f"{len(scene.requests):,}", "load": f"{size(scene.load)}, {drawn}"}
    for drawing in scene.drawings:
        # torch's model takes whole pages, and a drawing of the pool ends with its last address.
        rounded = ", not rounded to pages" if drawing.allocator == STALLOC else ""
        facts[drawing.title] = size(drawing.reserved) + rounded
    print_facts(facts | {"written to": f"{args.output}, {size(len(page))}"})
    print_assumptions(assumptions)
    return 0


def _scene(args: argparse.Namespace, given: Input, plan: Plan | None) -> Scene:
    title = printable(args.input.name)
    if given.plan is not None:
        if plan is not None:
            raise PlanError("it is a plan itself: leave --plan out, or give its trace")
        return scene_of_plan(given.plan, title)
    assert given.trace is not None
    check_requests(given.trace)
    if plan is None:
        plan = given.trace.plan(time_limit=args.time_limit, progress=sys.stderr.isatty())
    return scene_of_trace(given.trace, plan, title)
