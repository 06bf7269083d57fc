"""The trace of a whole run whose router drifts, from the template of its rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from configs import Config
from experts import Routing

import stalloc
from drift.template import Int64s, Template
from stalloc import _core
from stalloc.tables import NEVER


def trace_of(template: Template, config: Config, iterations: Sequence[int]) -> stalloc.Trace:
    """A run that makes these iterations, after start-up with the warm-up.

    Args:
        template: Of the rank.
        config: The same rank, with the run's seed and drift.
        iterations: Their numbers, ascending from 1.
    """
    routing = Routing(config.seed, config.skew, config.drift)
    parts = _Parts(template)
    sizes = [parts.sizes(parts.first, template.first, template.tokens(routing, 0))]
    for iteration in iterations:
        tokens = template.tokens(routing, iteration)
        sizes.append(parts.sizes(parts.repeated, template.sizes.row + parts.begin, tokens))
    return parts.joined(np.concatenate(sizes), len(iterations))


class _Parts:
    """The rows of a template: start-up with the warm-up, then an iteration that is repeated."""

    def __init__(self, template: Template) -> None:
        trace = self._trace = template.trace
        self._template = template
        self._ticks = trace.iterations[1:3]
        rows = np.searchsorted(trace.requests.lower, self._ticks)
        self.begin = int(rows[0])
        self.first, self.repeated = slice(0, rows[0]), slice(rows[0], rows[1])
        spans = np.searchsorted(trace.phases.begin, self._ticks)
        self._spans = slice(0, spans[0]), slice(spans[0], spans[1])

    def sizes(self, rows: slice, varying: Int64s, tokens: Int64s) -> Int64s:
        """Sizes of the requests in `rows`, of which `varying` follow the routing."""
        laws = self._template.sizes
        sizes = self._trace.requests.size[: rows.stop].copy()
        sizes[varying] = laws.unit * tokens[laws.site, laws.column]
        result: Int64s = sizes[rows]
        return result

    def joined(self, sizes: Int64s, iterations: int) -> stalloc.Trace:
        """The trace of so many iterations after the warm-up, with these sizes."""
        trace, (begin, end) = self._trace, self._ticks
        period, spans = end - begin, self._spans[1].stop - self._spans[1].start
        steps = {
            "ticks": np.arange(iterations) * period,
            "spans": np.arange(iterations) * spans,
            "iterations": np.arange(iterations),
        }
        requests = self._repeated(
            trace.requests,
            (self.first, self.repeated),
            {"lower": steps["ticks"], "upper": steps["ticks"]}
            | {"phase_begin": steps["spans"], "phase_end": steps["spans"]},
        )
        requests["size"] = sizes
        requests["layer_begin"] = requests["layer_end"] = np.full(len(sizes), -1)
        phases = self._repeated(
            trace.phases,
            self._spans,
            {"begin": steps["ticks"], "end": steps["ticks"], "iteration": steps["iterations"]},
        )
        # An expert without a token makes no requests.
        made = sizes > 0
        info = {**trace.info, "source": "benchmarks/drift"}
        return stalloc.Trace(
            _core.make_trace(
                info=info,
                end=begin + iterations * period,
                iterations=[0, *(begin + np.arange(iterations + 1) * period).tolist()],
                layers=[],
                phases=phases,
                requests={name: column[made] for name, column in requests.items()},
            )
        )

    @staticmethod
    def _repeated(
        table: Any, parts: tuple[slice, slice], steps: dict[str, Int64s]
    ) -> dict[str, Int64s]:
        """Columns of the first part, then of the second one as often as there are steps."""
        first, second = parts
        repetitions = len(next(iter(steps.values())))
        columns = {}
        for field in fields(table):
            column = np.asarray(getattr(table, field.name), np.int64)
            many = np.tile(column[second], (repetitions, 1))
            if field.name in steps:
                keeps = (many == NEVER) | (many < 0)
                many = np.where(keeps, many, many + steps[field.name][:, None])
            columns[field.name] = np.concatenate([column[first], many.reshape(-1)])
        return columns
