"""Four ways to plan state that each iteration replaces, compared.

Such a request lives longer than an iteration, so its successor cannot have its address:

- *beside*: no address in the plan; the caching fallback serves it.
- a period of 2 or 4 iterations, in which each request has an address of its own.
- *slots*: a period of one iteration, and any free slot of a size class.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import adamw
import numpy as np

from stalloc import importers
from stalloc.plans import Plan
from stalloc.recordings import changed
from stalloc.replaying import replay_stalloc
from stalloc.trace import Trace

RECORDED = ("gpt_medium_ctx128_train", "gpt_small_compile_train")
PERIODS = (2, 4)
REPETITIONS = 17  # the first one alone, then four times four
HEAD = (
    "| workload | bound | beside | period 2 | period 4 | slots | slots above the bound "
    "| seconds of planning |\n|---|---:|---:|---:|---:|---:|---:|---|"
)


def beside(trace: Trace) -> Trace:
    """The same requests, of which the replaced state is never planned."""
    requests = trace.requests
    period = trace.iterations[-1] - trace.iterations[-2]
    lifetime = requests.upper - requests.lower
    replaced = (lifetime > period) & (requests.upper < trace.end)
    return changed(trace, requests={"thread": np.where(replaced, 1, requests.thread)})


def joined(trace: Trace, period: int) -> Trace:
    """The same requests with so many iterations taken for one; the first one stays alone."""
    count = len(trace.iterations) - 1
    iterations = [0, *trace.iterations[1 + (count - 1) % period :: period]]
    phases = trace.phases
    iteration = np.searchsorted(iterations, phases.begin, side="right") - 1
    microbatch, occurrence = phases.microbatch.tolist(), list[int]()
    spans: Counter[tuple[int, int]] = Counter()
    seen: Counter[tuple[int, int, int]] = Counter()
    for row, (kind, at) in enumerate(zip(phases.kind.tolist(), iteration.tolist(), strict=True)):
        if microbatch[row] >= 0:
            microbatch[row] = spans[at, kind]
            spans[at, kind] += 1
        key = (at, kind, microbatch[row])
        occurrence.append(seen[key])
        seen[key] += 1
    return changed(
        trace,
        info=trace.info,
        end=trace.end,
        iterations=iterations,
        phases={"microbatch": microbatch, "occurrence": occurrence, "iteration": iteration},
        requests={},
    )


def line_of(name: str, content: bytes) -> str:
    """A workload's line of the table.

    MiB of the plan, pool and resident region; `beside` has the replay's peak, because the fallback
    holds the state.
    """
    trace = importers.from_bytes(content, name, repetitions=REPETITIONS).trace
    seconds = []

    def planned(served: Trace) -> Plan:
        begin = time.monotonic()
        plan = served.plan()
        seconds.append(f"{time.monotonic() - begin:.1f}")
        return plan

    unplanned = beside(trace)
    fallback = replay_stalloc(unplanned, planned(unplanned)).peak_reserved
    plans = [planned(joined(trace, period)) for period in PERIODS]
    slots = planned(trace)
    figures = [slots.bound + slots.resident, fallback]
    figures += [plan.pool + plan.resident for plan in (*plans, slots)]
    cells = [*map(_mib, figures), f"{slots.pool / slots.bound - 1:.2%}", ", ".join(seconds)]
    return f"| {name} | {' | '.join(cells)} |"


def table(folder: Path) -> str:
    """The table as Markdown, over the recordings that are in the folder and the synthetic ones."""
    lines = []
    for name in RECORDED:
        path = folder / f"{name}.snapshot.pickle"
        if path.exists():
            lines.append(line_of(name, path.read_bytes()))
    lines += [
        line_of(f"functional AdamW, {order}", adamw.recording(order)) for order in adamw.ORDERS
    ]
    return f"{HEAD}\n" + "\n".join(lines) + "\n"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}"
