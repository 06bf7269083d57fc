"""The targets of the evaluation, row by row, and the rows that miss them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from paper.published import MOE, model_of
from paper.rows import EXPANDABLE, GMLAKE, SETTINGS, STALLOC, TORCH, Row, with_setting

Group = dict[str, Row]
"""The rows of one workload, by allocator."""


@dataclass(frozen=True)
class Target:
    """One target.

    Attributes:
        text: Its description.
        applies: True for the workloads of the target that have the necessary rows.
        margin: The distance of a workload above the target; below 0 it misses the target.
        shown: A workload's figure, for the report.
    """

    text: str
    applies: Callable[[Group], bool]
    margin: Callable[[Group], float]
    shown: Callable[[Group], str]


@dataclass(frozen=True)
class Outcome:
    """The result for a target.

    Attributes:
        target: The target.
        groups: The target's workloads.
        missed: The workloads that miss it, the furthest first.
        worst: The workload with the least margin.
    """

    target: Target
    groups: list[Group]
    missed: list[Group]
    worst: Group | None


def groups_of(rows: Iterable[Row]) -> list[Group]:
    """Rows by workload, in the order of the rows."""
    found: dict[str, Group] = {}
    for row in rows:
        found.setdefault(row.name, {})[row.allocator] = row
    return list(found.values())


def outcomes(rows: Iterable[Row]) -> list[Outcome]:
    """Every target's outcome."""
    groups = groups_of(rows)
    result = []
    for target in TARGETS:
        chosen = [group for group in groups if target.applies(group)]
        chosen.sort(key=target.margin)
        missed = [group for group in chosen if target.margin(group) < 0]
        result.append(Outcome(target, chosen, missed, chosen[0] if chosen else None))
    return result


def _dense(group: Group) -> bool:
    return model_of(group[STALLOC].workload) != MOE


def _recomputes(group: Group) -> bool:
    return "r" in group[STALLOC].config


def _efficiency(text: str, least: float, applies: Callable[[Group], bool]) -> Target:
    return Target(
        text,
        applies,
        lambda group: group[STALLOC].efficiency - least,
        lambda group: f"{group[STALLOC].efficiency:.4f}",
    )


def _ahead(peer: str) -> Target:
    return Target(
        f"Reserves less than {peer}",
        lambda group: peer in group,
        lambda group: (group[peer].reserved - 1 - group[STALLOC].reserved) / 2**20,
        lambda group: f"{(group[STALLOC].reserved - group[peer].reserved) / 2**20:+,.0f} MiB",
    )


def tuned(group: Group) -> list[Row]:
    """The rows of torch's other settings."""
    return [group[name] for name in map(with_setting, SETTINGS) if name in group]


def _ahead_of_settings() -> Target:
    def ahead(group: Group) -> float:
        least = min(row.reserved for row in tuned(group) if row.fits)
        return (least - 1 - group[STALLOC].reserved) / 2**20

    return Target(
        "Reserves less than torch with any of its other settings",
        lambda group: any(row.fits for row in tuned(group)),
        ahead,
        lambda group: f"{-ahead(group) - 2**-20:+,.0f} MiB",
    )


def _planning(group: Group) -> float:
    return group[STALLOC].plan_seconds or 0.0


TARGETS = (
    _efficiency("Dense: efficiency at least 0.995", 0.995, _dense),
    _efficiency(
        "Mixture of experts with recomputation: at least 0.98, unseen iterations",
        0.98,
        lambda group: not _dense(group) and _recomputes(group),
    ),
    _efficiency(
        "Mixture of experts without: at least 0.96, unseen iterations",
        0.96,
        lambda group: not _dense(group) and not _recomputes(group),
    ),
    _ahead(TORCH),
    _ahead(EXPANDABLE),
    _ahead(GMLAKE),
    _ahead_of_settings(),
    Target(
        "Planned in under 2 seconds on one core, with the default time limit",
        lambda _: True,
        lambda group: 2.0 - _planning(group),
        lambda group: f"{_planning(group):.2f} s",
    ),
)
