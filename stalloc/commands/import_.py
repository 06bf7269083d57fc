"""`stalloc import`: traces that others recorded, as traces of stalloc."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from stalloc import importers
from stalloc.commands.inputs import ordinal, read_bytes, read_foreign, repetitions
from stalloc.commands.output import print_assumptions, print_facts, print_json, size
from stalloc.files import check_output
from stalloc.importers import Imported

if TYPE_CHECKING:
    from stalloc.commands import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Adds the sub-command's parser."""
    parser = subparsers.add_parser(
        "import",
        help="make a trace of a PyTorch memory snapshot or a Kineto trace",
        description="Makes a stalloc trace of a PyTorch memory snapshot (the pickle that "
        "torch.cuda.memory._dump_snapshot writes) or of a Kineto trace with [memory] events "
        "(torch.profiler with profile_memory=True), gzipped or not. The assumptions about facts "
        "that the file lacks are printed and kept in the trace. Reading a pickle never executes "
        "its code.",
        epilog="Exit codes: 0 done, 1 bad input, 2 wrong usage.",
    )
    parser.add_argument("input", metavar="IN", type=Path, help="a snapshot or a Kineto trace")
    parser.add_argument(
        "-o", "--output", metavar="OUT", type=Path, required=True, help="the trace file to write"
    )
    add_options(parser)
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of every sub-command that imports."""
    parser.add_argument(
        "--device",
        metavar="N",
        type=ordinal,
        help="import this device (default: the one with the most allocations)",
    )
    parser.add_argument(
        "--repeat",
        metavar="N",
        type=repetitions,
        default=importers.REPETITIONS,
        help="repetitions of the iteration if only one was recorded (default: %(default)s)",
    )


def main(args: argparse.Namespace) -> int:
    """Imports the file, writes the trace, prints the assumptions."""
    check_output(args.output, args.input, overwrite=args.force)
    imported = read_foreign(read_bytes(args.input), args.input, args.device, args.repeat)
    imported.trace.save(args.output, overwrite=args.force)
    if args.json:
        print_json(_report(imported, args.output))
        return 0
    trace = imported.trace
    facts = {
        "imported": f"{args.input}: {imported.kind}, {imported.device}",
        "requests": f"{len(trace.requests):,}",
        "iterations": f"{max(0, len(trace.iterations) - 1)}",
    }
    if imported.torch_reserved is not None:
        facts["torch reserved"] = size(imported.torch_reserved)
    facts["written to"] = str(args.output)
    print_facts(facts)
    print_assumptions(imported.assumptions)
    return 0


def _report(imported: Imported, output: Path) -> dict[str, object]:
    trace = imported.trace
    return {
        "kind": imported.kind,
        "device": imported.device,
        "other_devices": imported.others,
        "requests": len(trace.requests),
        "iterations": max(0, len(trace.iterations) - 1),
        "torch_reserved": imported.torch_reserved,
        "assumptions": list(imported.assumptions),
        "trace": str(output),
        "fingerprint": trace.fingerprint,
    }
