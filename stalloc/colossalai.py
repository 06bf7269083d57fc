"""Colossal-AI: marks iterations, microbatches and phases in the Booster's schedules.

Not supported yet. Importing this module is harmless; it never imports Colossal-AI.
"""

from __future__ import annotations

from typing import NoReturn

from stalloc.errors import NotSupportedError


def install() -> NoReturn:
    """Puts stalloc's phase marks into Colossal-AI's schedules.

    Raises:
        NotSupportedError: always, in this version.
    """
    raise NotSupportedError(
        "stalloc does not hook itself into Colossal-AI yet. Until it does, mark the phases "
        "yourself: run the scheduler's forward_step and backward_step inside "
        "`with stalloc.hooks.phase(...)`, and call stalloc.step() after each optimizer step."
    )
