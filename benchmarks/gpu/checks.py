"""Are results the same, to the bit, with and without stalloc?"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed

from report import Report
from runs import Result, planned, start
from training import Run

SECONDS = 240.0  # that one process may take
# Messages of compute-sanitizer on a machine where it cannot work.
REFUSALS = ("Device not supported", "Unable to find injection")


def checks(device: str) -> dict[str, Run]:
    """The comparisons by name; those after "automatic" need a GPU."""

    def small(model: str = "tiny", **options: object) -> Run:
        run = Run(model, "stalloc", device=device, steps=6, deterministic=True)
        return dataclasses.replace(run, **options)  # type: ignore[arg-type]

    result = {
        "training": small(),
        "recomputation": small(recompute=True),
        "experts": small("tiny-moe"),
        "lengths": small(lengths=True, steps=20),
        "automatic": small(allocator="auto", steps=20),
        "growing": small("small", growing=True, steps=20),
        "automatic-growing": small("small", allocator="auto", growing=True, steps=20),
        "exchanges": small("tiny-proxy"),
        "streams": small(extras="streams"),
        "separate-streams": small(extras="streams", streams="separate"),
        "ordered-streams": small(extras="streams", streams="ordered"),
        "graph": small(extras="graph"),
        "out-of-memory": small(extras="memory"),
        "shared-tensors": small(extras="shared"),
        "released-pool": small(release=True),
        "compat": small(compat=True, extras="streams,graph,memory"),
        "compiled": small(compiled=True),
        "sharded": small(sharded=True, fused=True),
        "automatic-streams": small(
            "tiny-proxy", allocator="auto", extras="streams,graph,memory", steps=20, lengths=True
        ),
    }
    return result if device.startswith("cuda") else dict(list(result.items())[:5])


def compare(run: Run) -> Result:
    """The report of one: "passed" and the reason."""
    plain = start(dataclasses.replace(run, allocator="torch"), SECONDS)
    served = (planned if run.allocator == "stalloc" else start)(run, SECONDS)
    for r in (plain, served):
        if "losses" not in r:
            return {"passed": False, "said": r.get("failed") or r.get("out_of_memory")}
    differs = [key for key in ("losses", "weights") if plain[key] != served[key]]
    if differs:
        again = start(dataclasses.replace(run, allocator="torch"), SECONDS)
        if any(plain[key] != again.get(key) for key in differs):
            return {"passed": False, "said": "differs from run to run without stalloc, too"}
        return {"passed": False, "said": f"{' and '.join(differs)} differ", "served": served}
    if run.allocator == "auto":
        keys = ("stage", "reason", "served", "requests", "served_as_planned")
        share = served["served_as_planned"] / max(served["requests"], 1)
        said = f"identical, {served['stage']}, {served['served']} iterations, {share:.4f} planned"
    else:
        keys = ("hit_rate", "conflicts", "stream_waits", "moves")
        said = f"identical, hit rate {served['hit_rate']:.4f}"
        if served["moves"]:
            said += f", memory moved {served['moves']} times"
    return {"passed": True, "said": said, **{key: served[key] for key in keys}}


def sanitize(run: Run, *options: str) -> Result:
    """One served run under compute-sanitizer, which finds accesses to what is not allocated.

    Where that tool cannot work, nothing has passed and nothing failed: "passed" is None.
    """
    sanitizer = shutil.which("compute-sanitizer")
    if not sanitizer:
        return {"passed": None, "said": "it is not installed"}
    # Errors of calls are not meant: torch asks for what may not be there.
    always = ("--error-exitcode=1", "--report-api-errors=no", "--target-processes=all")
    done = planned(run, SECONDS, sanitizer, *always, *options)
    if "losses" in done:
        return {"passed": True, "said": "no error"}
    said = str(done.get("failed") or done.get("out_of_memory"))
    refused = any(text in done.get("log", "") for text in REFUSALS)
    log = {"log": done["log"]} if "log" in done else {}
    return {"passed": None if refused else False, "said": said, **log}


def racecheck(run: Run) -> Result:
    """The same for races within a kernel's shared memory."""
    return sanitize(run, "--tool=racecheck")


def check(device: str, names: list[str], jobs: int, report: Report) -> int:
    """Runs the named checks, all where none is named; returns the exit code."""
    everything = checks(device)
    tasks: dict[str, tuple[Callable[[Run], Result], Run]] = {
        name: (compare, run) for name, run in everything.items()
    }
    if device.startswith("cuda"):
        short = Run("tiny", "stalloc", steps=2, warmup=2)
        tasks |= {"sanitizer": (sanitize, short), "racecheck": (racecheck, short)}
    wanted = names or list(tasks)
    if unknown := [name for name in wanted if name not in tasks]:
        raise SystemExit(f"there is no check {unknown[0]}; there are {', '.join(tasks)}")
    passed = True
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(function, run): n for n in wanted for function, run in [tasks[n]]}
        for future in as_completed(running):
            result = {"check": running[future], **future.result()}
            passed = passed and result["passed"] is not False
            word = {True: "ok", False: "FAILED", None: "not run"}[result["passed"]]
            print(f"{result['check']:<16} {word:<7} {result['said']}", flush=True)
            report.put("check", result)
    return 0 if passed else 1
