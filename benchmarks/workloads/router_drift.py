"""Routers that change while they are trained.

Popularity is in logarithms, in units of the skew. All three kinds of drift may come together; they
are complete after `ITERATIONS` iterations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ITERATIONS = 50
"""Iterations of a run that drifts."""

_WALK, _TURN = 1 << 20, 1 << 21  # of the seeds; beyond all iterations
Popularity = NDArray[np.float64]


@dataclass(frozen=True)
class Drift:
    """The change of the experts' popularity over a run.

    Attributes:
        walk: Standard deviation that a random walk of each expert's popularity reaches.
        turn: Share of a quarter turn from the popularity at the start to an independent one.
        growth: Factor that the skew reaches, linearly.
    """

    walk: float = 0.0
    turn: float = 0.0
    growth: float = 1.0

    def apply(self, popularity: Popularity, seed: int, layer: int, iteration: int) -> Popularity:
        """The popularity of a layer's experts in an iteration, from that at the start."""
        done = iteration / ITERATIONS
        if self.turn:
            other = np.random.default_rng((seed, layer, _TURN)).standard_normal(len(popularity))
            angle = self.turn * done * math.pi / 2
            popularity = math.cos(angle) * popularity + math.sin(angle) * other
        if self.walk:
            steps = np.random.default_rng((seed, layer, _WALK))
            walked = steps.standard_normal((iteration, len(popularity))).sum(axis=0)
            popularity = popularity + self.walk / math.sqrt(ITERATIONS) * walked
        return (1 + (self.growth - 1) * done) * popularity


NONE = Drift()
DRIFTS = {
    "walk": Drift(walk=1.0),
    "turn": Drift(turn=1.0),
    "skew": Drift(growth=3.0),
    "walk+skew": Drift(walk=1.0, growth=3.0),
    "turn+skew": Drift(turn=1.0, growth=3.0),
}
"""The kinds of drift that are measured, by name."""
