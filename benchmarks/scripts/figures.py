"""The figures of a row, as they are compared and shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Run = dict[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """One rank of a run of stalloc.

    Attributes:
        in_force: Complete iterations before the first plan; None if there was none.
        iterations: All complete ones.
        hits: The share of training's requests served as planned; None without a plan.
        efficiency: Live over reserved memory at the peak since then; None without a plan.
    """

    in_force: int | None
    iterations: int
    hits: float | None
    efficiency: float | None


def stages(row: Row, way: str) -> list[Stage]:
    """Each rank of a run of stalloc."""
    run = row["runs"][way]
    return [_stage(*pair) for pair in zip(run["status"], run["stats"], strict=True)]


def reserved(row: Row, way: str) -> int:
    """The most bytes of the device; of a GPU that does not count them, those that torch counts."""
    run = row["runs"][way]
    return int(run["device"] if "device" in run else run["reserved"])


def identical(row: Row) -> bool:
    """True if all runs made the same steps with the same parameters, and saved the same tensors."""
    runs = row["runs"].values()
    return len({(run["steps"], run["digest"], run["saved"]) for run in runs}) == 1


def failure(row: Row) -> str:
    """The message of the first run that failed, or empty."""
    for way, run in row["runs"].items():
        if "error" in run or "torch" not in run:
            return f"{way}: {run.get('error', 'no figures')}"
    return ""


def least(values: Iterable[float | None]) -> float | None:
    """The least of the values; None if there is none."""
    return min((value for value in values if value is not None), default=None)


def _stage(status: Row, stats: Row) -> Stage:
    begins = [change["iteration"] for change in status["changes"] if change["in_force"]]
    training = status["requests"] - status["evaluation_requests"]
    served = status["served_as_planned"] - status["evaluation_served_as_planned"]
    return Stage(
        in_force=begins[0] if begins else None,
        iterations=status["iterations"],
        hits=served / training if begins and training else None,
        efficiency=stats["run_efficiency"] if begins else None,
    )
