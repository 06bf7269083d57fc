"""Criteria that all frameworks share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import stalloc


def static_hits(stats: Mapping[str, Any]) -> float:
    """The share of static requests that were served at their planned address.

    `hit_rate` counts the scratch space of other threads, too, and whatever the script does beside
    training.
    """
    share: float = stats["hits"] / (stats["hits"] + stats["misses"])
    return share


def assert_tight(plan: stalloc.Plan) -> None:
    """The plan meets its bound, or no plan does. With slots it is at most 1.5 % above."""
    most = 0.015 if len(plan.slots) else 0.0
    assert plan.optimal or plan.gap <= most, f"{plan.gap:.3%} above the bound, without a proof"
