"""The comparison of states with their baselines, and the file of exceptions.

A state has to pass the tests that its baseline passes, and in native mode no others.
exceptions.toml lists each test that differs, with the states and the reason. A difference that is
not listed is an error, and so is one that is listed and no longer there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.states import State

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Outcomes = Mapping[str, Mapping[str, Any]]  # of each test: its outcome, and the last line of it


class ExceptionsError(Exception):
    """The file of exceptions is wrong."""


@dataclass(frozen=True, order=True)
class Difference:
    """A test whose outcome in a state is not that in the state's baseline."""

    state: str
    test: str

    def __str__(self) -> str:
        return f"{self.test} [{self.state}]"


def passing(outcomes: Outcomes) -> set[str]:
    """The tests that pass."""
    return {test for test, answer in outcomes.items() if answer["outcome"] == "passed"}


def differences(state: State, outcomes: Outcomes, baseline: Outcomes) -> set[Difference]:
    """The tests that differ, of those that ran in both."""
    both = outcomes.keys() & baseline.keys()
    here, there = passing(outcomes) & both, passing(baseline) & both
    tests = there - here if state.may_pass_more else there ^ here
    return {Difference(state.name, test) for test in tests}


def load_exceptions(path: Path, states: Iterable[State]) -> dict[Difference, str]:
    """The reason of each exception.

    Raises:
        ExceptionsError: An entry is incomplete, names an unknown state, or is there twice.
    """
    known = {state.name for state in states if state.baseline}
    reasons: dict[Difference, str] = {}
    try:
        entries = tomllib.loads(path.read_text()).get("exception", [])
    except tomllib.TOMLDecodeError as e:
        raise ExceptionsError(f"{path} is no TOML: {e}") from None
    for entry in entries:
        if entry.keys() != {"test", "states", "reason"} or not str(entry["reason"]).strip():
            raise ExceptionsError(f"{path}: an exception has a test, states and a reason: {entry}")
        for state in entry["states"]:
            difference = Difference(state, entry["test"])
            if state not in known:
                raise ExceptionsError(f"{path}: there is no state {state!r} with a baseline")
            if difference in reasons:
                raise ExceptionsError(f"{path}: {difference} is there twice")
            reasons[difference] = entry["reason"].strip()
    return reasons


def problems(
    found: set[Difference], listed: Iterable[Difference], ran: set[Difference]
) -> list[str]:
    """The errors of a run in which the tests of `ran` were compared, in words."""
    listed = set(listed)
    unknown = {d for d in listed if d not in ran and d.state in {other.state for other in ran}}
    return [
        *(f"differs and is not listed: {d}" for d in sorted(found - listed)),
        *(f"is listed and does not differ: {d}" for d in sorted((listed & ran) - found)),
        *(f"is listed and did not run: {d}" for d in sorted(unknown)),
    ]
