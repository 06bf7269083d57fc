"""Criteria that all frameworks share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def static_hits(stats: Mapping[str, Any]) -> float:
    """The share of static requests that were served at their planned address.

    `hit_rate` counts the scratch space of other threads, too, and whatever the script does beside
    training.
    """
    share: float = stats["hits"] / (stats["hits"] + stats["misses"])
    return share
