"""Compares requests of real runs with those that `stalloc.estimate` records without a GPU.

The snapshots are those that `traces` has left. The same program runs on the pretended GPU; one
iteration of each is compared, request by request. Differences come as a table with the line of the
program, or of torch, that made a request on the real GPU. An estimate does not compile, and
routes evenly to experts: of such programs the memory is compared alone.
"""

from __future__ import annotations

import difflib
import gzip
import json
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from models import MODELS
from training import GIB, Run

import stalloc

CARD = "H200"
HIDDEN = ("losses", "snapshot")
TOKENS = "gpu/training.py:"


@dataclass(frozen=True)
class Difference:
    """Requests of one size that only the GPU makes (`real`), or only the estimate."""

    real: bool
    place: str
    size: int
    count: int


@dataclass(frozen=True)
class Comparison:
    """One program, estimated and real: bytes, requests of one iteration, differences."""

    name: str
    load: tuple[int, int]
    torch: tuple[int, int]
    requests: tuple[int, int]
    differences: list[Difference]


def compare(path: Path) -> Comparison:
    """Compares the run whose figures lie in `path` and whose snapshot beside it.

    Raises:
        StallocError: The program cannot run on a pretended GPU.
    """
    facts = json.loads(path.read_text())
    run = Run(**{k: v for k, v in facts["program"].items() if k not in HIDDEN})
    snapshot = pickle.loads(gzip.decompress(path.with_suffix(".pickle.gz").read_bytes()))
    estimate = stalloc.estimate(
        _program(run), gpu=CARD, iterations=run.warmup + run.steps, plan=False
    )
    estimated = _estimated(estimate.trace)
    events = [e for e in snapshot["device_traces"][0] if e["action"] == "alloc"]
    # An iteration begins with the tokens of its first microbatch.
    tokens = [i for i, e in enumerate(events) if _place(e["frames"]).startswith(TOKENS)]
    last = events[tokens[-run.microbatches] :]
    # Where data or a compiler decide on the requests, two iterations have nothing to compare.
    other = run.compiled or MODELS[run.model].experts
    real = [] if other else [(_place(e["frames"]), e["size"]) for e in last]
    return Comparison(
        path.stem,
        (estimate.load, facts["measured"]["load"]),
        (estimate.need().reserved, facts["measured"]["peak_reserved"]),
        (len(estimated), len(last)),
        _differences(estimated, real) if real else [],
    )


def _program(run: Run) -> Callable[[], Callable[[], None]]:
    def build() -> Callable[[], None]:
        model, optimizer = run.make()
        done = 0

        def step() -> None:
            nonlocal done
            run.step(model, optimizer, done if done < run.warmup else 1000 + done - run.warmup)
            done += 1

        return step

    return build


def _estimated(trace: stalloc.Trace) -> list[tuple[str, int]]:
    """The modules and sizes of the last iteration's requests."""
    table = trace.requests
    first, last = trace.iterations[-2:]
    chosen = np.flatnonzero((table.lower >= first) & (table.lower < last))
    layers = table.layer_begin[chosen].tolist()
    names = [trace.layers[layer] if layer >= 0 else "" for layer in layers]
    return list(zip(names, table.size[chosen].tolist(), strict=True))


def _place(frames: list[dict[str, Any]]) -> str:
    if not frames:
        return "autograd"
    name = Path(frames[0]["filename"])
    return f"{name.parent.name}/{name.name}:{frames[0]['line']}"


def _differences(estimated: list[tuple[str, int]], real: list[tuple[str, int]]) -> list[Difference]:
    matcher = difflib.SequenceMatcher(
        None, [size for _, size in estimated], [size for _, size in real], autojunk=False
    )
    found: Counter[tuple[bool, str, int]] = Counter()
    for tag, i, i_end, j, j_end in matcher.get_opcodes():
        if tag != "equal":
            found.update(
                (False, layer.rpartition(".")[2], size) for layer, size in estimated[i:i_end]
            )
            for place, size in real[j:j_end]:
                found[True, place, size] += 1
    largest = sorted(found.items(), key=lambda item: -item[1] * item[0][2])
    return [Difference(*key, count) for key, count in largest]


def table(comparisons: list[Comparison]) -> str:
    """The comparisons in Markdown."""
    lines = [
        "| program | load, GiB: estimated | real | torch reserves: estimated | real "
        "| requests of an iteration: estimated | real |",
        "|---|---|---|---|---|---|---|",
    ]
    for c in comparisons:
        memory = [f"{n / GIB:.3f}" for n in (*c.load, *c.torch)]
        lines.append(f"| {c.name} | {' | '.join(memory)} | {c.requests[0]:,} | {c.requests[1]:,} |")
    lines += [
        "",
        "| program | only | where | bytes | times in an iteration |",
        "|---|---|---|---|---|",
    ]
    for c in comparisons:
        for d in c.differences:
            only = "real" if d.real else "estimated"
            lines.append(f"| {c.name} | {only} | {d.place or '-'} | {d.size:,} | {d.count} |")
    return "\n".join(lines) + "\n"
