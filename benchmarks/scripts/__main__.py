"""Runs public training scripts, unchanged, under `stalloc run`, and writes results/scripts.md.

    python benchmarks/scripts --sources DIR --machine cpu [--only NAME ...] [-o FILE]
    python benchmarks/scripts --sources DIR --machine fits -o benchmarks/results/fits-scripts.md

DIR has a checkout of each public repository; `--list` names them. Each row is written as soon as
it is measured, and rows that are there are not measured again: delete a file to repeat it. A page
shows the rows of both machines. The third machine is none: `stalloc fits` answers for each script
that runs on a GPU, and these answers have a page of their own.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from commit import last_change

from scripts import answers
from scripts.catalogue import SCRIPTS, chosen
from scripts.figures import Row
from scripts.report import render, summary
from scripts.runs import WAYS, measure

_ROOT = Path(__file__).resolve().parents[2]
_FITS = "fits"
_MACHINES = "cpu, or gpu: a pretended one, or fits: none, for the answers of stalloc fits"


def main() -> int:
    """The command line."""
    args = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # runs end, too
    if args.list:
        for script in SCRIPTS:
            print(f"{script.name}: {script.repository}, {script.path}")
        return 0
    args.rows.mkdir(parents=True, exist_ok=True)
    if args.sources is not None:
        for script in chosen(args.only):
            if script.runs_on(args.machine):
                _row(script.name, args)
                _write(args)
    _write(args)
    if args.machine == _FITS:
        print(*answers.summary(_rows(args.rows, _FITS)), sep="\n")
        return 0
    for machine in WAYS:
        for line in summary(machine, _rows(args.rows, machine)):
            print(line)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/scripts", description=__doc__)
    add = parser.add_argument
    add("--sources", type=Path, metavar="DIR", help="the checkouts; without: write the page")
    add("--machine", choices=[*WAYS, _FITS], default="cpu", help=_MACHINES)
    add("--only", nargs="+", default=["*"], metavar="NAME", help="scripts, by name or pattern")
    add("--list", action="store_true", help="print the scripts; measure nothing")
    add("--timeout", type=int, default=400, metavar="SECONDS", help="that a run may take")
    add("--rows", type=Path, default=_ROOT / "build" / "scripts", metavar="DIR", help="of the rows")
    add("-o", "--output", type=Path, metavar="FILE", help="write the page there, in Markdown")
    return parser


def _row(name: str, args: argparse.Namespace) -> None:
    """Measures a script, unless that was done."""
    path = args.rows / f"{name}.{args.machine}.json"
    if path.exists():
        return
    (script,) = chosen([name])
    sources, work = args.sources.resolve(), args.rows.resolve() / "work"
    if not (sources / script.checkout).is_dir():
        print(f"{name}: there is no checkout {sources / script.checkout}", flush=True)
        return
    measured = last_change("csrc", "stalloc")
    if args.machine == _FITS:
        row = answers.ask(script, sources, work, args.timeout)
        failed = [row["error"]] if "error" in row else []
    else:
        row = measure(script, sources, args.machine, work, args.timeout)
        failed = [run["error"] for run in row["runs"].values() if "error" in run]
    path.write_text(json.dumps({**row, "measured": measured}, indent=1) + "\n")
    print(f"{name}: {failed[0] if failed else 'measured'}", flush=True)


def _rows(folder: Path, machine: str) -> list[Row]:
    paths = [folder / f"{script.name}.{machine}.json" for script in SCRIPTS]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def _write(args: argparse.Namespace) -> None:
    if args.output and args.machine == _FITS:
        args.output.write_text(answers.render(_rows(args.rows, _FITS), version("torch")))
    elif args.output:
        rows = {machine: _rows(args.rows, machine) for machine in WAYS}
        args.output.write_text(render(rows))


if __name__ == "__main__":
    sys.exit(main())
