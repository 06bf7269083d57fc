"""Megatron-LM: one call profiles, plans and serves its training.

    import stalloc.megatron

    stalloc.megatron.install()

before `pretrain(...)`, or before the training loop of any other program on megatron-core. Importing
this module does not import Megatron.

All of Megatron's schedules look up `forward_step` and `backward_step` in the module `schedules`, so
stalloc replaces those two. It tests for features, not for version numbers. An iteration ends with
`train_step`; in other loops, with the first schedule that trains after the optimizer's step.
"""

from __future__ import annotations

import os
from typing import Any

from stalloc._frameworks import installed
from stalloc._frameworks.megatron import TARGET, Integration
from stalloc.driver import Driver
from stalloc.options import Options

__all__ = ["install", "uninstall"]

uninstall = installed.uninstall


def install(
    mode: str | None = None, folder: str | os.PathLike[str] | None = None, **options: Any
) -> Driver:
    """Puts stalloc into Megatron's training. An existing installation stays as it is.

    Iterations of batch-size ramp-up count neither as warm-up nor as profile. Combined 1F1B
    (overlapped expert communication) and CUDA graphs of whole iterations cannot be planned: a
    warning says so, and training goes on unplanned.

    Args:
        mode: As for `stalloc.options.Options`.
        folder: As for `stalloc.options.Options`.
        **options: The other fields of `stalloc.options.Options`. A `dynamic` of None means
            Megatron's own experts, and nothing if experts are padded to their capacity.

    Raises:
        StallocError: megatron-core can't be imported.
        ValueError: As for `stalloc.options.Options`.
    """
    if (driver := installed.installed(Integration, TARGET)) is not None:
        return driver
    return installed.install(Integration(Options(mode, folder, **options)))
