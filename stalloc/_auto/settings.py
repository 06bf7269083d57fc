"""The options of `stalloc.auto`."""

from __future__ import annotations

import os
from dataclasses import dataclass

SWITCH = "STALLOC_AUTO"
"""Environment variable: `0` turns `stalloc.auto` off."""

LEAST_ITERATIONS = 3
"""Iterations to record: a warm-up, and two to compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoOptions:
    """The behaviour of `stalloc.auto`; its docstring describes the fields.

    Raises:
        ValueError: A value is out of range.
    """

    iterations: int = 5
    threads: int = 1
    time_limit: float = 5.0
    exchanges: int = 6
    tolerance: float = 0.05

    def __post_init__(self) -> None:
        """Checks the values."""
        if self.iterations < LEAST_ITERATIONS:
            raise ValueError(
                f"iterations={self.iterations}: at least {LEAST_ITERATIONS} are needed: a warm-up, "
                "and two to compare"
            )
        if self.threads < 1:
            raise ValueError(f"threads={self.threads}: planning needs at least one core")
        if not self.time_limit > 0:
            raise ValueError(f"time_limit={self.time_limit}: give a positive number of seconds")
        if self.exchanges < 0:
            raise ValueError(f"exchanges={self.exchanges}: give a number an hour, from 0")
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance={self.tolerance}: give a share between 0 and 1")


def switched_off() -> bool:
    """True if the environment turns `stalloc.auto` off."""
    return os.environ.get(SWITCH, "") == "0"
