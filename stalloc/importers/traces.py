"""The trace that a recording's lifetimes, phases and extents make."""

from __future__ import annotations

from typing import Any

import numpy as np

from stalloc import _core
from stalloc.errors import TraceError
from stalloc.importers.extents import Extents
from stalloc.importers.history import History, Lifetimes
from stalloc.importers.phases import Hint, Spans
from stalloc.tables import NEVER, Int64s


def make_trace(
    history: History, lifetimes: Lifetimes, spans: Spans, extents: Extents | None = None
) -> _core.Trace:
    """Puts requests, phases, iterations and extents together, on one clock of ticks."""
    before = lifetimes.before
    kept = np.array(lifetimes.kept, dtype=bool)
    # The tick of each event, and behind the last one, of the end.
    ticks = before + np.concatenate(([0], np.cumsum(kept, dtype=np.int64)))
    born, freed = lifetimes.born, lifetimes.freed
    lower = np.where(born < 0, before + born, ticks[np.maximum(born, 0)])
    # The next allocation at the address stands for a missing free, and has its tick.
    upper = np.where(freed < 0, NEVER, ticks[np.maximum(freed, 0)])
    end = int(ticks[-1])
    begins = ticks[spans.begin]
    phases = {
        "kind": spans.kind,
        "microbatch": spans.microbatch,
        "chunk": np.zeros_like(spans.kind),
        "occurrence": spans.occurrence,
        "begin": begins,
        "end": np.concatenate((begins[1:], [end])),
        "iteration": spans.iteration,
    }
    if before:
        phases = _with_startup(phases)
    told = {} if extents is None else _told(extents, len(phases["kind"]) - len(spans.kind))
    starts = np.asarray(phases["begin"])

    def span_at(moments: Int64s) -> Int64s:
        return np.asarray(np.searchsorted(starts, moments, side="right") - 1, np.int64)

    requests = {
        "size": lifetimes.size,
        "lower": lower,
        "upper": upper,
        "phase_begin": span_at(lower),
        "phase_end": np.where(freed < 0, -1, span_at(upper)),
        "layer_begin": lifetimes.site,
        "layer_end": np.full_like(born, -1),
        "stream": lifetimes.stream,
        "thread": np.zeros_like(born),
        "dynamic": np.zeros_like(born),
    }
    try:
        return _core.make_trace(
            info=history.info,
            end=end,
            iterations=[0, *ticks[spans.boundaries[1:]].tolist()],
            layers=history.names,
            phases={name: _column(rows) for name, rows in phases.items()},
            requests={name: _column(rows) for name, rows in requests.items()},
            **told,
        )
    except TraceError as error:
        raise TraceError(f"the recording is no valid trace: {error}") from error


def _with_startup(phases: dict[str, Int64s]) -> dict[str, Int64s]:
    """Adds start-up, which makes the blocks that were live before the first event.

    Start-up is a phase of kind "other", as in a trace of stalloc's own. If the recording begins
    with such a phase, start-up is a part of it. Otherwise the iteration's other such phases count
    from one.
    """
    phases = {name: rows.copy() for name, rows in phases.items()}
    opening = phases["iteration"] == 0
    others = opening & (phases["kind"] == Hint.OTHER)
    if others[0]:
        phases["begin"][0] = 0
        return phases
    phases["occurrence"][others] += 1
    first = {"kind": int(Hint.OTHER), "microbatch": -1, "chunk": 0, "occurrence": 0, "begin": 0}
    first |= {"end": int(phases["begin"][0]), "iteration": 0}
    return {name: np.concatenate(([first[name]], rows)) for name, rows in phases.items()}


def _told(extents: Extents, shift: int) -> dict[str, Any]:
    """The extents of the forwards; `shift` phases were put in front of the spans."""
    return {
        "extent_names": extents.names,
        "extent_phases": [span + shift for span in extents.spans],
        "extents": extents.values,
    }


def _column(values: Int64s) -> Int64s:
    return np.ascontiguousarray(values, dtype=np.int64)
