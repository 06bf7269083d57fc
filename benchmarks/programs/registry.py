"""The list of programs, and how one is recorded."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

import stalloc

PROFILED = 5
"""Iterations that a plan is made of."""


class Run:
    """One run of a program, which loops over it: `for iteration in run`.

    Attributes:
        rng: The source of all sizes that depend on data. A program draws from it in the order of
            its iterations, so that a short run is the beginning of a long one.
    """

    def __init__(self, seed: int, iterations: int, end_iteration: Callable[[], None]) -> None:
        self.rng = np.random.default_rng(seed)
        self._iterations = iterations
        self._end_iteration = end_iteration

    def __iter__(self) -> Iterator[int]:
        for iteration in range(self._iterations):
            yield iteration
            self._end_iteration()

    def between(self, low: int, high: int) -> int:
        """An even draw; `high` is possible."""
        return int(self.rng.integers(low, high + 1))

    def length(self, typical: float, longest: int, spread: float = 0.5) -> int:
        """A draw from a log-normal distribution, as lengths of texts and sounds have it."""
        drawn = self.rng.lognormal(np.log(typical), spread)
        return int(np.clip(drawn, min(8, longest), longest))

    def lengths(self, count: int, typical: float, longest: int, spread: float = 0.5) -> list[int]:
        """Several of these."""
        return [self.length(typical, longest, spread) for _ in range(count)]

    def chance(self, probability: float) -> bool:
        """True with that probability."""
        return bool(self.rng.random() < probability)


@dataclass(frozen=True)
class Program:
    """A training program.

    Attributes:
        name: Words with hyphens.
        description: A sentence.
        train: Builds the model and trains it.
    """

    name: str
    description: str
    train: Callable[[Run], None]


PROGRAMS: list[Program] = []
"""All programs, once the modules of their fields are imported."""


def program(description: str) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Registers a function as a program, by the function's name.

    Args:
        description: A sentence.
    """

    def register(train: Callable[[Run], None]) -> Callable[[Run], None]:
        name = train.__name__.strip("_").replace("_", "-")
        PROGRAMS.append(Program(name, description, train))
        return train

    return register


def chosen(patterns: Iterable[str]) -> list[Program]:
    """The programs whose name matches one of the patterns."""
    wanted = list(patterns)
    return [p for p in PROGRAMS if any(fnmatch.fnmatch(p.name, pattern) for pattern in wanted)]


def record(case: Program, seed: int, iterations: int) -> stalloc.Trace:
    """The trace of so many iterations of a program, start-up included, on the meta device."""
    torch.manual_seed(seed)
    with stalloc.profile(device="meta", dynamic=()) as prof, torch.device("meta"):
        case.train(Run(seed, iterations, prof.step))
    return prof.trace
