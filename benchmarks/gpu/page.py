"""The results of a GPU in Markdown: `results/gpu.md`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TORCHS = ("torch", "expandable")
ALLOCATORS = ("torch", "expandable", "stalloc", "auto")
TITLES = {
    "torch": "torch",
    "expandable": "expandable segments",
    "stalloc": "stalloc, plan",
    "auto": "stalloc.auto",
    "again": "torch again",
}
PROGRAM_SIDES = ("torch", "expandable", "auto", "again")
GIB = 1 << 30

Row = list[str]


def report(results: Path) -> str:
    """The report of `gpu.json` and `gpu-test.json` in a folder."""
    bench = json.loads((results / "gpu.json").read_text())
    test = json.loads((results / "gpu-test.json").read_text())
    found = bench["results"]
    about = [
        f"{bench['device']}, {bench['memory'] / GIB:.1f} GiB, driver {bench['driver']}, "
        f"torch {bench['torch']}, commit {bench['commit'][:9]}. A star: measured at an earlier "
        "commit, which `gpu.json` and `gpu-test.json` name. A plus: with a pool of plain memory "
        "(`keep_addresses=False`), which cannot grow in place; the default was not measured.",
        "",
        "Runs: `benchmarks/gpu/cases.py`. `python benchmarks/gpu report` writes this page.",
    ]
    speeds = [row for row in found if row["name"].startswith("speed, ")]
    searches = [row for row in found if "growth" in row]
    now = bench["commit"]
    parts = [
        ["# On a real GPU", "", *about],
        ["## Memory of whole runs", "", *_memory([row for row in found if "runs" in row], now)],
        ["## Programs of users", "", *_programs(found, now, bench.get("programs_note"))],
        ["## In the memory that stalloc needs", "", *_squeezed(found, now)],
        ["## Time of a step", "", *_speed(speeds, now)],
        ["## What calls cost", "", *_calls(found)],
        ["## The largest batch", "", *_largest(searches)],
        ["## Checks", "", *_checks(test["results"], now)],
    ]
    return "\n".join("\n".join(part) + "\n" for part in parts)


def _star(allocator: str, result: dict[str, Any] | None, now: str) -> str:
    """Marks what an earlier commit has measured, and a pool of plain memory.

    torch's own allocators do not depend on the commit.
    """
    earlier = result is not None and result.get("commit", now) != now
    plain = result is not None and result.get("plain", False)
    return ("*" if earlier and allocator not in TORCHS else "") + ("+" if plain else "")


def _table(head: Row, rows: list[Row]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def _memory(found: list[dict[str, Any]], now: str) -> list[str]:
    rows = []
    for row in found:
        runs = row["runs"]
        load = max((r["load"] for r in runs.values() if "load" in r), default=0)
        rows.append(
            [
                row["name"],
                f"{load / GIB:.2f}",
                *(_reserved(runs.get(a)) + _star(a, runs.get(a), now) for a in ALLOCATORS),
            ]
        )
    return [
        "GiB reserved at the peak of the run, start-up and first iterations included (load / "
        "reserved; calls of cudaMalloc or cuMemCreate after the warm-up). `stalloc, plan` serves "
        "from its start with the plan of another run; `stalloc.auto` plans as it runs.",
        "",
        *_table(["program", "load", *(TITLES[a] for a in ALLOCATORS)], rows),
    ]


def _programs(found: list[dict[str, Any]], now: str, note: str | None) -> list[str]:
    rows = []
    for row in [row["program"] | {"name": row["name"]} for row in found if "program" in row]:
        sides = {side: row.get(side, {}) for side in PROGRAM_SIDES}
        load = max((r["load"] for r in sides.values() if "load" in r), default=0)
        cells = [
            f"{r['reserved'] / GIB:.2f} ({load / r['reserved']:.3f})" + _star(side, r, now)
            if "reserved" in r
            else "not measured"
            for side, r in sides.items()
        ]
        rows.append([row["name"], f"{load / GIB:.2f}", *cells])
    return [
        "`benchmarks/gpu/programs`, unchanged, of transformers, peft, timm and torch_geometric: "
        "GiB reserved at the peak of the run (load / reserved). Batches change their shapes, and "
        "evaluations run in between. `stalloc run` plans as the program runs; its second run finds "
        "the plans of the first.",
        "",
        *([note, ""] if note else []),
        *_table(
            ["program", "load", "torch", TITLES["expandable"], "stalloc run", "its second run"],
            rows,
        ),
    ]


def _reserved(run: dict[str, Any] | None) -> str:
    if run is None or "peak_reserved" not in run:
        return _failure(run)
    reserved, calls = run["peak_reserved"] / GIB, run["device_allocations"]
    return f"{reserved:.2f} ({run['efficiency']:.4f}; {calls})"


def _failure(run: dict[str, Any] | None) -> str:
    if run is None:
        return "-"
    return "out of memory" if "out_of_memory" in run else "not measured"


def _squeezed(found: list[dict[str, Any]], now: str) -> list[str]:
    rows = []
    for row in found:
        for key, runs in row.items():
            if key.startswith("runs in ") and any("failed" not in r for r in runs.values()):
                outcomes = [_outcome(runs.get(a)) + _star(a, runs.get(a), now) for a in ALLOCATORS]
                rows.append([row["name"], key.removeprefix("runs in "), *outcomes])
    return [
        "The same runs as if the GPU held 64 MiB more than stalloc's plan needs. Without a mark "
        "the allocator needs no more, and was not tried.",
        "",
        *_table(["program", "memory", *(TITLES[a] for a in ALLOCATORS)], rows),
    ]


def _outcome(run: dict[str, Any] | None) -> str:
    if run is None or "peak_reserved" not in run:
        return _failure(run)
    return f"trains, memory ran out {run['retries']} times" if run["retries"] else "trains"


def _speed(found: list[dict[str, Any]], now: str) -> list[str]:
    sides = ("stalloc", "expandable", "again")
    rows = []
    for row in found:
        if "ratio" not in row:
            rows.append([row["name"].removeprefix("speed, "), *["not measured"] * 5])
            continue
        ratios = [row["ratio"][side] for side in sides]
        rows.append(
            [
                row["name"].removeprefix("speed, ") + _star("", row, now),
                f"{1000 * row['step_seconds']['torch']:.1f}",
                *(f"{r['median']:.4f} ({r['low']:.4f} to {r['high']:.4f})" for r in ratios),
                str(row["rounds"]),
            ]
        )
    head = ["program", "torch, ms", *(TITLES[side] for side in sides), "turns"]
    return [
        "Ratios to torch's step, in turns in one process: the median of the turns, and the "
        "quartiles. `torch again` shows the noise.",
        "",
        *_table(head, rows),
    ]


def _calls(found: list[dict[str, Any]]) -> list[str]:
    costs = next((row for row in found if row["name"] == "calls"), None)
    if costs is None:
        return ["Not measured."]
    virtual = costs["virtual_us"]
    calls = list(next(iter(virtual.values())))
    rows = [[size, *(f"{of[call]:.1f}" for call in calls)] for size, of in virtual.items()]
    plain = [
        [size, *(f"{us:.0f}" for us in of.values())]
        for size, of in costs.get("plain_us", {}).items()
    ]
    pool, request = costs["pool_ms"], costs["request_ns"]
    by_hand = [f"These are {costs['by_hand']}.", ""] if "by_hand" in costs else []
    return [
        *by_hand,
        "Microseconds of the driver's calls for a chunk of virtual memory, of each size:",
        "",
        *_table(["chunk", *calls], rows),
        "",
        "and for a block of plain memory:",
        "",
        *_table(["block", "cudaMalloc", "cudaFree"], plain),
        "",
        f"A pool of {pool['bytes'] / GIB:.1f} GiB: {pool['enable']:.0f} ms for `enable`, "
        f"{pool['release_pool']:.0f} for `release_pool`, {pool['acquire_pool']:.0f} for "
        "`acquire_pool`. A request with `torch.empty` and its free, from Python: "
        f"{request['torch']} ns under torch, {request['stalloc']} under stalloc.",
    ]


def _largest(found: list[dict[str, Any]]) -> list[str]:
    rows = [[row["name"], *(_tries(row.get(f"tried, {a}")) for a in ALLOCATORS)] for row in found]
    return [
        "Sequences of 1,024 tokens in a microbatch.",
        "",
        *_table(["program", *(TITLES[a] for a in ALLOCATORS)], rows),
    ]


def _tries(tried: dict[str, bool] | None) -> str:
    trains = [int(batch) for batch, does in (tried or {}).items() if does]
    fails = [int(batch) for batch, does in (tried or {}).items() if not does]
    if not trains:
        return "not measured"
    return f"{max(trains)} trains" + (f", {min(fails)} does not" if fails else "")


def _checks(found: list[dict[str, Any]], now: str) -> list[str]:
    words = {True: "passed", False: "FAILED", None: "not run"}
    rows = [
        [row["check"], words[row["passed"]] + _star("", row, now), row["said"]] for row in found
    ]
    return [
        "Losses and weights to the bit, with deterministic kernels, without stalloc and with it.",
        "",
        *_table(["check", "result", "said"], sorted(rows)),
    ]
