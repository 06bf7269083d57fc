"""Joins recordings of one program, so that a plan knows the batches of all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from stalloc import _core
from stalloc.tables import NEVER, Flags, Int64s
from stalloc.trace import Trace

_INPUTS = "inputs"
_SHARED = "shared"

Columns = dict[str, Int64s]


@dataclass
class _Part:
    """Complete iterations of a trace, with ticks and rows that count from 0."""

    end: int
    iterations: list[int]
    requests: Columns
    phases: Columns
    layers: list[str]
    extent_names: list[str]
    extent_phases: Int64s
    extents: Int64s


def without_first_iterations(trace: Trace, number: int, info: Mapping[str, str]) -> Trace:
    """The complete iterations after the first ones, and their requests."""
    return _joined([_part(trace, first=number)], info)


def joined(traces: Sequence[Trace]) -> Trace:
    """The complete iterations of all traces, one after another, as if they were one recording.

    The first iteration of an earlier recording is left out: it may be the start of the run.

    A request that outlives its recording is freed at the end of that recording, since what became
    of it is not known. Those of the last recording live on.
    """
    info = dict(traces[-1].info)
    inputs = {name for trace in traces for name in json.loads(trace.info.get(_INPUTS, "[]"))}
    info[_INPUTS] = json.dumps(sorted(inputs))
    for trace in traces:
        if _SHARED in trace.info:
            info[_SHARED] = trace.info[_SHARED]
    earlier = [_part(trace, first=1) for trace in traces[:-1] if len(trace.iterations) > 2]
    return _joined([*map(_closed, earlier), _part(traces[-1])], info)


def _part(trace: Trace, first: int = 0) -> _Part:
    begin, end = trace.iterations[first], trace.iterations[-1]
    requests, phases = columns_of(trace.requests), columns_of(trace.phases)
    spans = np.flatnonzero((phases["iteration"] >= first) & (phases["begin"] <= end))
    spans = spans[phases["iteration"][spans] < len(trace.iterations) - 1]
    low, high = (int(spans[0]), int(spans[-1]) + 1) if len(spans) else (0, 0)
    made: Flags = (requests["lower"] >= begin) & (requests["lower"] < end)
    requests = {name: column[made] for name, column in requests.items()}
    later = requests["upper"] >= end
    requests["upper"] = np.where(later, NEVER, requests["upper"] - begin)
    requests["lower"] = requests["lower"] - begin
    for name in ("phase_begin", "phase_end"):
        requests[name] = np.where(requests[name] < 0, -1, requests[name] - low)
    requests["phase_end"][later] = -1
    requests["layer_end"][later] = -1
    phases = {name: column[low:high] for name, column in phases.items()}
    phases["iteration"] = phases["iteration"] - first
    for name in ("begin", "end"):
        phases[name] = np.clip(phases[name], begin, end) - begin
    of_part = (trace.extents.phase >= low) & (trace.extents.phase < high)
    return _Part(
        end=end - begin,
        iterations=[tick - begin for tick in trace.iterations[first:]],
        requests=requests,
        phases=phases,
        layers=trace.layers,
        extent_names=trace.extent_names,
        extent_phases=trace.extents.phase[of_part].astype(np.int64) - low,
        extents=trace.extents.values[of_part].astype(np.int64),
    )


def _closed(part: _Part) -> _Part:
    """The part with all requests freed, in the last phase."""
    live = np.flatnonzero(part.requests["upper"] == NEVER)
    part.requests["upper"][live] = part.end + np.arange(len(live))
    part.requests["phase_end"][live] = len(part.phases["end"]) - 1
    part.end += len(live)
    part.iterations[-1] = part.end
    part.phases["end"][-1:] = part.end
    return part


def _joined(parts: Sequence[_Part], info: Mapping[str, str]) -> Trace:
    layers = list(dict.fromkeys(name for part in parts for name in part.layers))
    names = list(dict.fromkeys(name for part in parts for name in part.extent_names))
    tick = span = iteration = 0
    iterations, requests, phases = [0], [], []
    extent_phases: list[int] = []
    extents: list[list[int]] = []
    for part in parts:
        rows = part.requests
        for name in ("lower", "upper"):
            rows[name] = np.where(rows[name] == NEVER, NEVER, rows[name] + tick)
        for name in ("phase_begin", "phase_end"):
            rows[name] = np.where(rows[name] < 0, -1, rows[name] + span)
        number = np.array([layers.index(name) for name in part.layers] + [-1])
        for name in ("layer_begin", "layer_end"):
            rows[name] = number[rows[name]]
        requests.append(rows)
        spans = part.phases
        phases.append(
            {
                **spans,
                "begin": spans["begin"] + tick,
                "end": spans["end"] + tick,
                "iteration": spans["iteration"] + iteration,
            }
        )
        values = np.full((len(part.extents), len(names)), -1)
        values[:, [names.index(name) for name in part.extent_names]] = part.extents
        extents += values.tolist()
        extent_phases += (part.extent_phases + span).tolist()
        iterations += [end + tick for end in part.iterations[1:]]
        tick += part.end
        span += len(spans["begin"])
        iteration += len(part.iterations) - 1
    return Trace(
        _core.make_trace(
            info=dict(info),
            end=tick,
            iterations=iterations,
            layers=layers,
            phases=_concatenated(phases),
            requests=_concatenated(requests),
            extent_names=names,
            extent_phases=extent_phases,
            extents=extents,
        )
    )


def columns_of(table: Any) -> Columns:
    """The columns of a table of a trace, by name."""
    return {field.name: np.array(getattr(table, field.name), np.int64) for field in fields(table)}


def _concatenated(tables: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
