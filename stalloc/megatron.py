"""Megatron-LM: marks iterations, microbatches and phases in Megatron's own schedules.

Not supported yet. Importing this module is harmless; it never imports Megatron.
"""

from __future__ import annotations

from typing import NoReturn

from stalloc.errors import NotSupportedError


def install() -> NoReturn:
    """Puts stalloc's phase marks into Megatron's schedules.

    Raises:
        NotSupportedError: always, in this version.
    """
    raise NotSupportedError(
        "stalloc does not hook itself into Megatron-LM yet. Until it does, mark the phases "
        "yourself: run forward_step and backward_step inside `with stalloc.hooks.phase(...)`, and "
        "call stalloc.step() after each train_step."
    )
