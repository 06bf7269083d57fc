"""`stalloc inspect`: the content of a trace or a plan."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stalloc import _core, liveness
from stalloc.commands import curve, import_
from stalloc.commands.inputs import naming, positive, read, tick_of
from stalloc.commands.output import print_assumptions, print_facts, print_json, print_table, size
from stalloc.errors import TraceError
from stalloc.notes import listed, readable
from stalloc.planner import Streams
from stalloc.plans import Plan
from stalloc.tables import LIFETIME_CLASSES, Int32s, Int64s, Phases
from stalloc.trace import IterationProfile, Trace

if TYPE_CHECKING:
    from stalloc.commands import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Adds the sub-command's parser."""
    parser = subparsers.add_parser(
        "inspect",
        help="show the content of a trace or a plan",
        description="Shows sizes, phases and lifetimes in a trace or a plan, the live curve, "
        "and the call sites that allocate most (modules if no stacks were recorded). Memory "
        "snapshots and Kineto traces are imported first.",
        epilog="Exit codes: 0 done, 1 bad input, 2 wrong usage.",
    )
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="a trace, a plan, a snapshot or a Kineto trace"
    )
    parser.add_argument(
        "--at",
        metavar="TICK",
        type=tick_of,
        default="peak",
        help="show the live requests at this tick of the iteration (default: the peak)",
    )
    parser.add_argument(
        "--top",
        metavar="N",
        type=positive,
        default=10,
        help="rows of each table to show (default: %(default)s)",
    )
    import_.add_options(parser)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    return parser


def main(args: argparse.Namespace) -> int:
    """Prints the facts about the file."""
    given = read(args.file, args.device, args.repeat)
    with naming(args.file):
        if given.plan is not None:
            _inspect_plan(given.plan, args)
        elif given.trace is not None:
            _inspect_trace(given.trace, args)
    return 0


def _inspect_plan(plan: Plan, args: argparse.Namespace) -> None:
    decisions = plan.decisions
    phases = _by_phase(plan.phases, decisions.phase, decisions.size)
    live = liveness.of_plan(plan)
    tick = curve.moment(live, args.at, str(args.file))
    if args.json:
        figures = plan.summary() | {"streams": _distinct(decisions.stream)}
        details = {"per_phase": phases, "live": curve.summary(live, tick, args.top)}
        laws = {"extents": plan.extents, "seen": plan.seen, "laws": _law_counts(plan)}
        print_json({"kind": "plan", "info": plan.info, **figures, **laws, **details})
        return
    info, assumptions = readable(plan.info)
    print_facts(
        {
            "plan": str(args.file),
            **info,
            "decisions": f"{len(decisions):,}",
            "streams": f"{_distinct(decisions.stream)}"
            + (", which share addresses" if plan.streams is Streams.ORDERED else ""),
            "pool": size(plan.pool),
            "bound": size(plan.bound),
            "gap": f"{plan.gap:.3%}" + (", proven optimal" if plan.optimal else ""),
            **_resident_facts(plan),
            "largest load": f"{size(plan.load_bytes)}, planned or not",
            **_dynamic_facts(plan),
            **_law_facts(plan),
            "algorithm": plan.algorithm,
            "alignment": size(plan.alignment),
            "trace": plan.fingerprint,
        }
    )
    _print_phases("Decisions by phase", phases, args.top)
    curve.show(live, tick, args.top)
    print_assumptions(assumptions)


def _resident_facts(plan: Plan) -> dict[str, str]:
    if len(plan.startup) == 0:
        return {}
    return {"resident region": f"{size(plan.resident)} above the pool"}


def _law_counts(plan: Plan) -> dict[str, int]:
    """The number of decisions that follow a law of each kind; `fixed` ones follow none."""
    law = plan.decisions.law
    kinds = np.array([*plan.law_kinds, "fixed"])[law]  # the last for -1
    return {
        str(kind): int(n) for kind, n in zip(*np.unique(kinds, return_counts=True), strict=True)
    }


def _law_facts(plan: Plan) -> dict[str, str]:
    if not plan.extents:
        return {}
    serves = plan.serves()
    return {
        "extents": ", ".join(f"{name} up to {value:,}" for name, value in plan.extents.items())
        + f"; {len(plan.seen):,} distinct profiled",
        "sizes of decisions": ", ".join(f"{n:,} {kind}" for kind, n in _law_counts(plan).items()),
        "worst efficiency": f"{serves['worst_efficiency']:.4f} of the profiled extents",
    }


def _dynamic_facts(plan: Plan) -> dict[str, str]:
    groups, reusable = plan.groups, plan.reusable
    if len(groups) == 0:
        return {}
    idle = np.bincount(
        reusable.group, weights=reusable.end - reusable.begin, minlength=len(groups)
    ).astype(np.int64)
    served = (groups.size > 0) | (idle > 0)  # the others have the role kept, and no addresses
    idle = idle[served] if served.any() else idle
    facts = {
        "dynamic groups": f"{len(groups):,}",
        "regions": f"{size(int(groups.size.sum()))}, the largest {size(int(groups.size.max()))}",
        "reusable by a group": f"{size(int(idle.min()))} to {size(int(idle.max()))}",
        "head room": f"{plan.headroom} %, costs {size(plan.headroom_cost)}, "
        f"saves {size(plan.headroom_saves)}",
    }
    if plan.dynamic:
        facts["found dynamic"] = listed(plan.dynamic)
    return facts


def _inspect_trace(trace: Trace, args: argparse.Namespace) -> None:
    figures: dict[str, object] = {
        "requests": len(trace.requests),
        "iterations": max(0, len(trace.iterations) - 1),
        "layers": len(trace.layers),
        "streams": _distinct(trace.requests.stream),
        "threads": _distinct(trace.requests.thread),
        "bytes": int(trace.requests.size.sum()),
        "fingerprint": trace.fingerprint,
    }
    live = liveness.of_trace(trace)
    tick = curve.moment(live, args.at, str(args.file))
    profile: IterationProfile | None = None
    problem = ""
    try:
        profile = trace.profile()
    except TraceError as error:
        problem = str(error)
    if args.json:
        details = {
            "profile": None if profile is None else _profile_summary(profile),
            "live": curve.summary(live, tick, args.top),
        }
        print_json({"kind": "trace", "info": trace.info, **figures, **details})
        return
    info, assumptions = readable(trace.info)
    facts = {"trace": str(args.file), **info}
    for name in ("requests", "iterations", "layers", "streams", "threads"):
        facts[name] = f"{figures[name]:,}"
    facts["fingerprint"] = trace.fingerprint
    if profile is None:
        facts["profile"] = f"none: {problem}"
    else:
        facts["profile"] = f"iteration {profile.iteration}, compared with {profile.compared} more"
        facts["largest load"] = f"{size(profile.load_bytes)} of the compared iterations"
    print_facts(facts)
    if profile is not None:
        _print_profile(profile, args.top)
    curve.show(live, tick, args.top)
    print_assumptions(assumptions)


def _profile_summary(profile: IterationProfile) -> dict[str, object]:
    requests = profile.requests
    return {
        "iteration": profile.iteration,
        "compared": profile.compared,
        "period": profile.period,
        "load": profile.load_bytes,
        "tallies": {
            name: {"requests": tally.requests, "bytes": tally.bytes}
            for name, tally in profile.tallies().items()
        },
        "per_phase": _by_phase(profile.phases, requests.phase_begin, requests.size),
        "dynamic": _dynamic_sites(profile),
    }


def _print_profile(profile: IterationProfile, top: int) -> None:
    tallies = profile.tallies()
    names = {"static": "static", **{name: f"  {name}" for name in LIFETIME_CLASSES}}
    names |= {"dynamic": "dynamic", "unplanned": "unplanned", "plannable": "plannable"}
    print_table(
        "Requests of one iteration",
        ("kind", "requests", "bytes"),
        (
            (shown, f"{tallies[name].requests:,}", _core.format_bytes(tallies[name].bytes))
            for name, shown in names.items()
        ),
    )
    requests = profile.requests
    phases = _by_phase(profile.phases, requests.phase_begin, requests.size)
    _print_phases("Requests by phase", phases, top)
    sites = _dynamic_sites(profile)
    if sites:
        print_table(
            "Dynamic requests, the most of an iteration",
            ("asked for in", "freed in", "groups", "requests", "bytes"),
            (
                (
                    str(p["phase"]),
                    str(p["phase_end"]),
                    f"{p['groups']:,}",
                    f"{p['requests']:,}",
                    _core.format_bytes(int(p["bytes"])),
                )
                for p in sites[:top]
            ),
            text={"freed in"},
        )
        _print_rest(sites[top:])


def _dynamic_sites(profile: IterationProfile) -> list[Mapping[str, int | str]]:
    """The number and bytes of dynamic requests, by phases of allocation and free."""
    sites = profile.sites
    result: list[Mapping[str, int | str]] = []
    ends = zip(sites.phase.tolist(), sites.phase_end.tolist(), strict=True)
    for phase, phase_end in sorted(set(ends)):
        rows = (sites.phase == phase) & (sites.phase_end == phase_end)
        result.append(
            {
                "phase": profile.phases.name(phase),
                "phase_end": profile.phases.name(phase_end),
                "groups": int(np.count_nonzero(rows)),
                "requests": int(sites.requests[rows].sum()),
                "bytes": int(sites.bytes[rows].sum()),
            }
        )
    return result


def _by_phase(phases: Phases, phase: Int32s, sizes: Int64s) -> list[Mapping[str, int | str]]:
    """Number and bytes of the rows of each phase that has any."""
    counts = np.bincount(phase, minlength=len(phases))
    totals = np.zeros(len(counts), np.int64)
    np.add.at(totals, phase, sizes)  # bincount would add floating-point numbers
    return [
        {"phase": phases.name(row), "requests": int(counts[row]), "bytes": int(totals[row])}
        for row in np.flatnonzero(counts).tolist()
    ]


def _print_phases(title: str, phases: list[Mapping[str, int | str]], top: int) -> None:
    print_table(
        title,
        ("phase", "requests", "bytes"),
        (
            (str(p["phase"]), f"{p['requests']:,}", _core.format_bytes(int(p["bytes"])))
            for p in phases[:top]
        ),
    )
    _print_rest(phases[top:])


def _print_rest(rows: list[Mapping[str, int | str]]) -> None:
    if rows:
        total = _core.format_bytes(sum(int(row["bytes"]) for row in rows))
        print(f"and {len(rows):,} more, of {total} (--top)")


def _distinct(numbers: Int32s) -> int:
    return len(np.unique(numbers))
