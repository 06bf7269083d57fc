"""Traces that others recorded, as traces of stalloc.

`read` takes a file of any known kind and states its assumptions. Every importer
turns its format into a `history.History`; the common part begins there.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from stalloc.errors import TraceError
from stalloc.files import named
from stalloc.importers.chrome import trace_events
from stalloc.importers.extents import find_extents
from stalloc.importers.history import (
    LARGEST,
    History,
    add_startup,
    pair,
    repeat,
)
from stalloc.importers.kinds import Kind, kind_of, unpacked
from stalloc.importers.kineto import KinetoTrace
from stalloc.importers.phases import find_iterations, find_runs, number
from stalloc.importers.pickles import load_plain
from stalloc.importers.snapshot import Snapshot
from stalloc.importers.traces import make_trace
from stalloc.progress import Progress, part
from stalloc.trace import Trace

REPETITIONS = 5
"""Iterations that are made of a single one: by then the runtime trusts its plan."""

REPEATED = "repeated"
"""The key of a trace's `info` for how often the importer has repeated the only iteration."""
LIVE_BEFORE = "live_before"
"""The key for the bytes that were live before the first event."""

SNAPSHOT = "pytorch snapshot"
"""The name of a memory snapshot in `Imported.kind`."""
KINETO = "kineto trace"
"""The name of a trace of torch's profiler there."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A trace, and how it came about.

    Attributes:
        trace: The trace; its `info` has the other fields as text.
        kind: `pytorch snapshot` or `kineto trace`.
        device: As torch names it.
        others: Devices that were recorded too, with the number of their allocations.
        assumptions: Facts that the file lacks and the importer assumed.
        torch_reserved: The most bytes that torch held, if the file has it.
    """

    trace: Trace
    kind: str
    device: str
    others: dict[str, int]
    assumptions: tuple[str, ...]
    torch_reserved: int | None


def read(
    path: str | PathLike[str],
    device: int | None = None,
    repetitions: int = REPETITIONS,
    progress: Progress | None = None,
) -> Imported:
    """Reads a memory snapshot (pickle) or a Kineto trace (JSON); either may be gzipped.

    Args:
        path: The file.
        device: Number of the device. By default the one with the most allocations.
        repetitions: How often to repeat the iteration if there is only one. Requests that live on
            into the next iteration can be planned only then.
        progress: Told the fraction that is done.

    Raises:
        TraceError: The file is damaged, or of a kind that is not known, or says nothing of
            allocations; the message says where and what to do.
        OSError: It cannot be read.
    """
    return from_bytes(Path(path).read_bytes(), named(path), device, repetitions, progress)


def from_bytes(
    content: bytes,
    source: str,
    device: int | None = None,
    repetitions: int = REPETITIONS,
    progress: Progress | None = None,
) -> Imported:
    """Does what `read` does, for the content of a file; `source` is its name in messages."""
    content = unpacked(content, source)
    kind = kind_of(content, source)
    if kind is Kind.KINETO:
        kineto = KinetoTrace(trace_events(content, source, part(progress, 0.0, 0.9)), source)
        names = {kineto.name(d): d for d in kineto.devices}
        counts = {kineto.name(d): n for d, n in kineto.devices.items()}
        chosen = _choose(counts, device, source)
        history, marks = kineto.history(names[chosen])
        return _build(history, marks, KINETO, chosen, counts, source, repetitions)
    if kind is not Kind.SNAPSHOT:
        raise TraceError(
            f"{source}: {kind.value}: nothing to import; a memory snapshot or a Kineto trace is "
            "expected"
        )
    # Reading the pickle takes about twice as long as the rest.
    snapshot = Snapshot(load_plain(content, source, part(progress, 0.0, 0.7)), source)
    counts = {f"cuda:{d}": n for d, n in snapshot.devices.items()}
    chosen = _choose(counts, device, source)
    history, marks = snapshot.history(int(chosen.partition(":")[2]), part(progress, 0.7, 1.0))
    return _build(history, marks, SNAPSHOT, chosen, counts, source, repetitions)


def _build(
    history: History,
    marks: list[int],
    kind: str,
    device: str,
    counts: dict[str, int],
    source: str,
    repetitions: int,
) -> Imported:
    others = {name: count for name, count in counts.items() if name != device}
    if others:
        listed = ", ".join(f"{name} ({count:,})" for name, count in others.items())
        history.assumptions.insert(
            0, f"{device} is imported; allocations of others are left out: {listed} (--device)"
        )
    lifetimes = pair(history)
    if lifetimes.before:
        earlier = sum(lifetimes.size[lifetimes.born < 0].tolist())
        history.info[LIVE_BEFORE] = str(min(earlier, LARGEST))
    said = history.assumptions
    runs = find_runs(history.hints, history.allocates, said)
    boundaries = find_iterations(runs, marks, history.allocates, history.sizes, history.sites, said)
    if len(boundaries) == 2 and repetitions > 1:
        boundaries = repeat(history, lifetimes, boundaries[0], boundaries[1], repetitions)
        history.info[REPEATED] = str(repetitions)
        history.assumptions = []  # the same once more
        lifetimes = pair(history)
        runs = find_runs(history.hints, history.allocates, history.assumptions)
        history.assumptions = said
    boundaries = add_startup(runs, boundaries, lifetimes.before)
    spans = number(runs, boundaries, len(history))
    extents = find_extents(lifetimes, spans, history.names, history.assumptions)
    reserved = history.info.get("torch_reserved")
    history.info |= {"source": kind, "device": device.partition(":")[0]}
    if history.assumptions:
        history.info["assumptions"] = "\n".join(history.assumptions)
    history.info = {
        name: text.encode(errors="replace").decode() for name, text in history.info.items()
    }
    try:
        trace = Trace(make_trace(history, lifetimes, spans, extents))
    except TraceError as error:
        raise TraceError(f"{source}: {error}") from None
    return Imported(
        trace=trace,
        kind=kind,
        device=device,
        others=others,
        assumptions=tuple(history.assumptions),
        torch_reserved=None if reserved is None else int(reserved),
    )


def _choose(counts: dict[str, int], device: int | None, source: str) -> str:
    if device is None:
        # The CPU's own requests are of interest when there is nothing else.
        return max(counts, key=lambda name: (name != "cpu", counts[name]))
    for name in counts:
        if name.endswith(f":{device}"):
            return name
    known = ", ".join(f"{name} ({count:,})" for name, count in counts.items())
    raise TraceError(f"{source}: no allocations of device {device} are recorded; there are {known}")
