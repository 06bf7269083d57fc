"""`stalloc cache`: the plans that `stalloc.auto` keeps for later runs."""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import TYPE_CHECKING, Any

from stalloc import _core
from stalloc.commands.output import print_facts, print_json, print_table, size
from stalloc.errors import PlanError, StallocError
from stalloc.files import named

if TYPE_CHECKING:
    from stalloc._auto.cache import File, PlanCache
    from stalloc.commands import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Adds the sub-command's parser."""
    parser = subparsers.add_parser(
        "cache",
        help="list, show or delete the plans that stalloc.auto() keeps",
        description="Lists the plans that stalloc.auto() and `stalloc run` keep for later runs, "
        "the one that was used last first; shows one; or deletes one or all.",
        epilog="The folder is STALLOC_CACHE, else $XDG_CACHE_HOME/stalloc, else ~/.cache/stalloc. "
        "Exit codes: 0 done; 1 there is no cache or no such plan; 2 wrong usage.",
    )
    parser.add_argument(
        "action", choices=_ACTIONS, metavar="list | show | clear", help="the action"
    )
    parser.add_argument(
        "name", metavar="PLAN", nargs="?", help="a file of the list, or the beginning of its name"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    return parser


def main(args: argparse.Namespace) -> int:
    """Lists, shows or deletes."""
    from stalloc._auto.cache import PlanCache, cache_folder  # which imports torch

    if args.action == "show" and args.name is None:
        args.parser.error("show needs the name of a plan, as `stalloc cache list` prints it")
    folder = cache_folder()
    if folder is None:
        raise StallocError("the cache is off: STALLOC_CACHE is empty or 0, or there is no home")
    cache = PlanCache(folder)
    files = cache.files()
    if args.name is not None:
        files = [file for file in files if file.path.name.startswith(args.name)]
        if not files:
            raise StallocError(f"{named(folder)}: no plan has a name that begins so: {args.name}")
    _ACTIONS[args.action](args, cache, files)
    return 0


def _list(args: argparse.Namespace, cache: PlanCache, files: list[File]) -> None:
    rows = [_described(cache, file) for file in files]
    total = sum(file.size for file in files)
    if args.json:
        print_json({"folder": str(cache.folder), "bytes": total, "plans": rows})
        return
    print_facts({"folder": named(cache.folder), "plans": f"{len(files):,}, {size(total)}"})
    if rows:
        print_table(
            "Plans",
            ("file", "used", "bytes", "torch", "planned", "rank", "model"),
            (
                (
                    row["file"],
                    _time(row["used"]),
                    _bytes(row["bytes"]),
                    _bytes(row["before"]),
                    _bytes(row["after"]),
                    row["program"].get("rank", ""),
                    row["problem"] or row["program"].get("model", ""),
                )
                for row in rows
            ),
            text={"used", "rank", "model"},
        )


def _show(args: argparse.Namespace, cache: PlanCache, files: list[File]) -> None:
    if len(files) > 1:
        found = ", ".join(file.path.name for file in files)
        raise StallocError(f"{args.name}: several plans have names that begin so: {found}")
    row = _described(cache, files[0])
    if args.json:
        print_json(row)
        return
    facts = {
        "file": named(files[0].path),
        "used": _time(files[0].used),
        "problem": row["problem"],
        "inputs": row["inputs"],
        **row["program"],
        "reserved by torch": _bytes(row["before"]),
        "under the plan": _bytes(row["after"]),
        "pool": _bytes(row["pool"]),
    }
    print_facts({name: fact for name, fact in facts.items() if fact})


def _clear(args: argparse.Namespace, cache: PlanCache, files: list[File]) -> None:
    for file in files:
        file.path.unlink(missing_ok=True)
    if args.json:
        print_json({"folder": str(cache.folder), "deleted": len(files)})
    else:
        print(f"{len(files):,} plans deleted")


_ACTIONS = {"list": _list, "show": _show, "clear": _clear}


def _described(cache: PlanCache, file: File) -> dict[str, Any]:
    from stalloc._auto.cache import program_of

    row: dict[str, Any] = {
        "file": file.path.name,
        "bytes": file.size,
        "used": file.used,
        "problem": None,
        "inputs": None,
        "program": {},
        "before": None,
        "after": None,
        "pool": None,
    }
    try:
        proposal = cache.load(file)
    except (PlanError, OSError) as error:
        return row | {"problem": " ".join(str(error).split())}
    return row | {
        "inputs": proposal.plan.info.get("inputs", ""),
        "program": program_of(proposal.plan),
        "before": proposal.before,
        "after": proposal.after,
        "pool": proposal.plan.pool,
    }


def _bytes(count: int | None) -> str:
    return "" if count is None else _core.format_bytes(count)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
