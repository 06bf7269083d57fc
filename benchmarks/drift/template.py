"""The requests of one rank's iteration, with sizes that follow the routing.

A rank makes the same requests in every iteration. The sizes of some of them are in proportion to
the tokens that one of its experts gets, or that all of them get together. So a few recorded
iterations tell the requests of every other iteration, which would take seconds each to record.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from configs import Config
from experts import Routing
from rank import record

import stalloc

Int64s = npt.NDArray[np.int64]

RECORDED = 3
"""Iterations after the warm-up: two for the laws of the sizes, and one that checks them."""

_LAYER = re.compile(r"chunks\.(\d+)\.layers\.(\d+)\.")
_SOURCES = Path(__file__).parents[1] / "workloads"


@dataclass(frozen=True)
class Sizes:
    """Laws of the sizes that follow the routing, a row for each such request of an iteration.

    Attributes:
        row: The request, counted from the iteration's first one.
        site: Row of `Template.sites`: the layer and microbatch whose routing it follows.
        column: The expert on this rank; one past the last for all together.
        unit: Bytes for a token.
    """

    row: Int64s
    site: Int64s
    column: Int64s
    unit: Int64s


@dataclass(frozen=True)
class Template:
    """A recorded trace, and the laws of its sizes.

    Attributes:
        config: The rank.
        trace: Start-up with a warm-up, and `RECORDED` iterations.
        sites: Every pair of a layer and a microbatch of the rank.
        sizes: The laws.
        first: The same for the warm-up: its own rows of the requests.
    """

    config: Config
    trace: stalloc.Trace
    sites: list[tuple[int, int]]
    sizes: Sizes
    first: Int64s

    def tokens(self, routing: Routing, iteration: int) -> Int64s:
        """Tokens by site, of each expert of the rank and of all together."""
        routing.iteration = iteration
        return _tokens(self.config, routing, self.sites)


def make(config: Config, folder: Path) -> Template:
    """Records a rank, unless that was done before, and finds the laws.

    Raises:
        ValueError: A size follows no law.
    """
    file = folder / f"{config.name}.{_key(config)}.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        record(config, RECORDED).save(file)
    return _fitted(config, stalloc.Trace.load(file))


def _fitted(config: Config, trace: stalloc.Trace) -> Template:
    requests = trace.requests
    ends = np.searchsorted(requests.lower, trace.iterations)
    rows = [np.arange(ends[i], ends[i + 1]) for i in range(1, RECORDED + 1)]
    if len({len(each) for each in rows}) > 1:
        raise ValueError(f"{config.name}: the iterations have different numbers of requests")
    sizes = np.stack([requests.size[each] for each in rows])
    varying = np.flatnonzero((sizes != sizes[0]).any(axis=0))
    sites, site = _sites(config, trace, rows[0][varying])
    routing = Routing(config.seed, config.skew, config.drift)
    tokens = []
    for iteration in range(1, RECORDED + 1):
        routing.iteration = iteration
        tokens.append(_tokens(config, routing, sites))
    column, unit = _laws(config, sizes[:, varying], np.stack(tokens)[:, site])
    return Template(
        config,
        trace,
        sites,
        Sizes(varying, site, column, unit),
        _first(trace, rows[0], varying, ends),
    )


def _laws(config: Config, sizes: Int64s, tokens: Int64s) -> tuple[Int64s, Int64s]:
    """Finds the column of `tokens` that each size follows, and its unit.

    Args:
        config: The rank.
        sizes: By iteration and request.
        tokens: By iteration, request and column.
    """
    fits = (sizes[0, :, None] * tokens == sizes[:, :, None] * tokens[0]).all(axis=0)
    fits &= (tokens > 0).all(axis=0)
    column = fits.argmax(axis=1)
    unit, rest = np.divmod(sizes[0], np.take_along_axis(tokens[0], column[:, None], 1)[:, 0])
    odd = ~fits.any(axis=1) | (rest > 0)
    if odd.any():
        raise ValueError(f"{config.name}: {odd.sum()} sizes do not follow the routing")
    return column, unit


def _sites(
    config: Config, trace: stalloc.Trace, rows: Int64s
) -> tuple[list[tuple[int, int]], Int64s]:
    """The layers and microbatches of requests, and each request's."""
    layers = np.array([_layer(config, name) for name in trace.layers] + [-1])
    layer = layers[trace.requests.layer_begin[rows]]
    microbatch = trace.phases.microbatch[trace.requests.phase_begin[rows]]
    if (layer < 0).any() or (microbatch < 0).any():
        raise ValueError(f"{config.name}: a size varies outside of the layers")
    pairs, site = np.unique(np.stack([layer, microbatch]), axis=1, return_inverse=True)
    return [(int(a), int(b)) for a, b in pairs.T], site.reshape(-1)


def _layer(config: Config, module: str) -> int:
    """The number of the layer in the whole model; -1 for other modules."""
    found = _LAYER.match(module)
    if not found:
        return -1
    chunk, index = map(int, found.groups())
    slots = config.parallelism.pipeline * config.parallelism.chunks
    each = config.model.layers // slots
    return (chunk * config.parallelism.pipeline + config.stage) * each + index


def _first(trace: stalloc.Trace, rows: Int64s, varying: Int64s, ends: Int64s) -> Int64s:
    """Rows of the warm-up that correspond to those of `varying`.

    The warm-up makes more static requests; the dynamic ones have the same order.
    """
    warm_up = np.arange(ends[0], ends[1])
    requests = trace.requests
    dynamic = rows[requests.dynamic[rows]]
    of_warm_up = warm_up[requests.dynamic[warm_up]]
    if len(dynamic) != len(of_warm_up):
        raise ValueError("the warm-up makes other dynamic requests")
    position = np.full(len(rows), -1)
    position[dynamic - rows[0]] = of_warm_up
    if (position[varying] < 0).any():
        raise ValueError("a size varies that is not dynamic")
    result: Int64s = position[varying]
    return result


def _tokens(config: Config, routing: Routing, sites: list[tuple[int, int]]) -> Int64s:
    experts = config.model.experts
    assert experts is not None
    parallelism, model = config.parallelism, config.model
    choices = parallelism.microbatch * model.sequence // parallelism.tensor * experts.top_k
    local = experts.count // parallelism.expert
    result = np.empty((len(sites), local + 1), np.int64)
    for row, (layer, microbatch) in enumerate(sites):
        routing.microbatch = microbatch
        counts = routing.counts(layer, parallelism.expert, choices, experts.count)
        result[row, :local] = np.asarray(counts)[:, :local].sum(axis=0)
    result[:, local] = result[:, :local].sum(axis=1)
    return result


@cache
def _sources() -> bytes:
    digest = hashlib.sha256(torch.__version__.encode())
    for source in sorted(_SOURCES.glob("*.py")):
        if source.name not in ("configs.py", "__main__.py"):
            digest.update(source.read_bytes())
    return digest.digest()


def _key(config: Config) -> str:
    digest = hashlib.sha256(f"{config!r} {RECORDED}".encode())
    digest.update(_sources())
    return digest.hexdigest()[:12]
