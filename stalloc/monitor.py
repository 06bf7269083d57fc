"""Logs the statistics of the plan every few iterations, to the run's own loggers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from torch.optim.optimizer import register_optimizer_step_post_hook

from stalloc import _core
from stalloc.session import current_session
from stalloc.statistics import MemoryStats, memory_stats


class ScalarWriter(Protocol):
    """The part of TensorBoard's `SummaryWriter` that is used."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> Any:
        """Adds a value."""


class StatsLogger:
    """Logs hit rate, load and reserved bytes every so many iterations; made by `log_stats`."""

    def __init__(
        self,
        every: int,
        device: str | None,
        logger: logging.Logger | None,
        tensorboard: ScalarWriter | None,
    ) -> None:
        if every < 1:
            raise ValueError(f"every={every}: a number of iterations from 1 is needed")
        self._every = every
        self._device = device
        self._logger = logger or logging.getLogger("stalloc")
        self._tensorboard = tensorboard
        self._last: MemoryStats | None = None
        self._hook = register_optimizer_step_post_hook(lambda *_: self.check())

    def __enter__(self) -> StatsLogger:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def check(self) -> None:
        """Logs if it is time. Called after each step of an optimizer; may be called at will."""
        session = current_session()
        device = self._device or (session.plan.info.get("device", "cpu") if session else "cpu")
        stats = memory_stats(device)
        last = self._last
        if last is None or stats["iterations"] < last["iterations"]:  # another plan
            last = self._last = stats
            if stats["iterations"] < self._every:
                return
            last = None
        elif stats["iterations"] - last["iterations"] < self._every:
            return
        self._last = stats
        self._log(_figures(stats, last), stats)

    def stop(self) -> None:
        """Logs nothing more."""
        self._hook.remove()

    def _log(self, figures: Mapping[str, float], stats: MemoryStats) -> None:
        self._logger.info(
            "iteration %d: %d of %d requests served as planned (%.2f %%), "
            "%s reserved at the run's peak for a load of %s, efficiency %.4f",
            stats["iterations"],
            figures["served_as_planned"],
            figures["requests"],
            100 * figures["hit_rate"],
            _core.format_bytes(stats["run_peak_reserved"]),
            _core.format_bytes(stats["run_peak_allocated"]),
            stats["run_efficiency"],
        )
        if self._tensorboard is not None:
            for name, value in figures.items():
                self._tensorboard.add_scalar(f"stalloc/{name}", value, stats["iterations"])
        wandb = sys.modules.get("wandb")
        if wandb is not None and getattr(wandb, "run", None) is not None:
            # With the run's own next row, so that its step numbers stay the same.
            wandb.log({f"stalloc/{name}": value for name, value in figures.items()}, commit=False)


def log_stats(
    every: int = 100,
    *,
    device: str | None = None,
    logger: logging.Logger | None = None,
    tensorboard: ScalarWriter | None = None,
) -> StatsLogger:
    """Logs hit rate, load and reserved bytes every `every` iterations, until stopped.

    To `logging` at level INFO, to TensorBoard if a writer is given, and to Weights & Biases
    if the program has an open run. Requests count from the last time,
    bytes over the whole run.

    Args:
        every: Iterations.
        device: The device; by default that of the plan in force.
        logger: The logger; by default `stalloc`.
        tensorboard: A `torch.utils.tensorboard.SummaryWriter`, or any object with its `add_scalar`.

    Returns:
        The running logger. Call `stop()`, or use it as a context manager.

    Raises:
        ValueError: `every` is less than 1.
    """
    return StatsLogger(every, device, logger, tensorboard)


def _figures(stats: MemoryStats, last: MemoryStats | None) -> dict[str, float]:
    served, requests = (
        stats[key] - (last[key] if last else 0) for key in ("served_as_planned", "requests")
    )
    return {
        "hits": stats["hits"] - (last["hits"] if last else 0),
        "misses": stats["misses"] - (last["misses"] if last else 0),
        "served_as_planned": served,
        "requests": requests,
        "hit_rate": served / requests if requests else 1.0,
        "efficiency": stats["efficiency"],
        "reserved": stats["reserved"],
        "allocated": stats["allocated"],
        "run_peak_reserved": stats["run_peak_reserved"],
        "run_peak_allocated": stats["run_peak_allocated"],
    }
