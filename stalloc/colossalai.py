"""Colossal-AI: one call profiles, plans and serves what a Booster trains.

    model, optimizer, *_ = booster.boost(model, optimizer, ...)
    stalloc.colossalai.install(booster, model, optimizer)

Importing this module is harmless; it never imports Colossal-AI, and goes by what the objects have.

With a pipeline, the schedule's own methods are followed, on the one object that the booster uses.
Without, the hooks find forward and backward by themselves. An iteration ends with the optimizer's
step.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from stalloc._frameworks import installed
from stalloc._frameworks.callback import version
from stalloc._frameworks.colossalai import Integration, layout_of
from stalloc.driver import ITERATIONS, SERVE_FROM, WARMUP, Driver
from stalloc.planfile import DEFAULT_TIME_LIMIT
from stalloc.planner import Streams

__all__ = ["install", "uninstall"]

uninstall = installed.uninstall


def install(
    booster: Any,
    model: nn.Module,
    optimizer: Any,
    mode: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    *,
    warmup: int = WARMUP,
    iterations: int = ITERATIONS,
    serve_from: int = SERVE_FROM,
    dynamic: Iterable[str | type] | None = None,
    device: torch.device | str | None = None,
    time_limit: float = DEFAULT_TIME_LIMIT,
    streams: Streams | None = None,
    strict: bool = False,
) -> Driver:
    """Puts stalloc into a boosted training; once, if called again with the same optimizer.

    Args:
        booster: A Booster with any plugin.
        model: What `boost` returned.
        optimizer: What `boost` returned.
        mode: "auto", "profile", "plan" or "off"; None takes `STALLOC_MODE`, or else "auto". See
            `stalloc.driver.Driver`.
        folder: Where each rank's trace and plan are; None takes `STALLOC_DIR`.
        warmup: Iterations to let pass before profiling; Gemini's first has another layout.
        iterations: Iterations to profile.
        serve_from: The iteration that a plan from the folder is first used in.
        dynamic: As for `stalloc.profile`; None takes Colossal-AI's own mixtures of experts.
        device: As for `stalloc.profile`.
        time_limit: Seconds to look for a better plan than the first one.
        streams: Whether streams use the same addresses in turn, "ordered", or keep "separate";
            None takes `STALLOC_STREAMS`. See `stalloc.Trace.plan`.
        strict: Whether what goes wrong is raised, instead of ending in a warning.

    Raises:
        TypeError: The optimizer has no `step`.
        ValueError: As for `stalloc.driver.Driver`.
    """
    if (driver := installed.installed(Integration, optimizer)) is not None:
        return driver
    driver = Driver(
        mode,
        folder,
        layout=lambda: layout_of(booster),
        warmup=warmup,
        iterations=iterations,
        serve_from=serve_from,
        device=device,
        dynamic=dynamic,
        time_limit=time_limit,
        streams=streams,
        strict=strict,
        framework=f"colossalai {version('colossalai')}".strip(),
    )
    return installed.install(Integration(booster, model, optimizer, driver))
