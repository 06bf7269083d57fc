"""Colossal-AI: one call profiles, plans and serves the training of a Booster.

    model, optimizer, *_ = booster.boost(model, optimizer, ...)
    stalloc.colossalai.install(booster, model, optimizer)

Importing this module does not import Colossal-AI; stalloc looks at the attributes of the objects.

With a pipeline, stalloc wraps the methods of the booster's schedule. Without one, the hooks find
forward and backward. An iteration ends with the optimizer's step.
"""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from stalloc._frameworks import installed
from stalloc._frameworks.callback import version
from stalloc._frameworks.colossalai import Integration, parallelism_of
from stalloc.driver import Driver
from stalloc.options import Options

__all__ = ["install", "uninstall"]

uninstall = installed.uninstall


def install(
    booster: Any,
    model: nn.Module,
    optimizer: Any,
    mode: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Driver:
    """Puts stalloc into a boosted training; once, if called again with the same optimizer.

    Args:
        booster: A Booster with any plugin.
        model: The model from `boost`.
        optimizer: The optimizer from `boost`.
        mode: As for `stalloc.options.Options`.
        folder: As for `stalloc.options.Options`.
        **options: The other fields of `stalloc.options.Options`. A `dynamic` of None means
            Colossal-AI's own mixtures of experts.

    Raises:
        TypeError: The optimizer has no `step`.
        ValueError: As for `stalloc.options.Options`.
    """
    if (driver := installed.installed(Integration, optimizer)) is not None:
        return driver
    driver = Driver(
        Options(mode, folder, **options),
        parallelism=lambda: parallelism_of(booster),
        framework=f"colossalai {version('colossalai')}".strip(),
    )
    return installed.install(Integration(booster, model, optimizer, driver))
