"""Megatron-LM: one call profiles, plans and serves its training.

    import stalloc.megatron

    stalloc.megatron.install()

before `pretrain(...)`, or before the training loop of whatever else is built on megatron-core.
Importing this module is harmless; it never imports Megatron.

All of Megatron's schedules call `forward_step` and `backward_step` by their names in the module
`schedules`, and so are followed by replacing those two. What is there is found by its features, not
by a version number. An iteration ends with `train_step`; in loops of one's own, with the first
schedule that trains after the optimizer's step.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch

from stalloc._frameworks import installed
from stalloc._frameworks.megatron import TARGET, Integration
from stalloc.driver import ITERATIONS, SERVE_FROM, WARMUP, Driver
from stalloc.planfile import DEFAULT_TIME_LIMIT
from stalloc.planner import Streams

__all__ = ["install", "uninstall"]

uninstall = installed.uninstall


def install(
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
    """Puts stalloc into Megatron's training. If it is there already, that stays as it is.

    Iterations of batch-size ramp-up count as none: neither warm-up nor profile. Combined 1F1B
    (overlapped expert communication) and CUDA graphs of whole iterations can't be planned: then a
    warning says so, and training goes on without.

    Args:
        mode: "auto", "profile", "plan" or "off"; None takes `STALLOC_MODE`, or else "auto". See
            `stalloc.driver.Driver`.
        folder: Where each rank's trace and plan are; None takes `STALLOC_DIR`.
        warmup: Iterations to let pass before profiling. Choose more where more of the first ones
            are special: while CUDA graphs of layers are captured, or offloading warms up.
        iterations: Iterations to profile.
        serve_from: The iteration that a plan from the folder is first used in.
        dynamic: As for `stalloc.profile`; None takes Megatron's own experts, and with capacity
            padding nothing.
        device: As for `stalloc.profile`.
        time_limit: Seconds to look for a better plan than the first one.
        streams: Whether streams use the same addresses in turn, "ordered", or keep "separate";
            None takes `STALLOC_STREAMS`. See `stalloc.Trace.plan`.
        strict: Whether what goes wrong is raised, instead of ending in a warning.

    Raises:
        StallocError: megatron-core can't be imported.
        ValueError: As for `stalloc.driver.Driver`.
    """
    if (driver := installed.installed(Integration, TARGET)) is not None:
        return driver
    return installed.install(
        Integration(
            mode,
            folder,
            warmup=warmup,
            iterations=iterations,
            serve_from=serve_from,
            dynamic=dynamic,
            device=device,
            time_limit=time_limit,
            streams=streams,
            strict=strict,
        )
    )
