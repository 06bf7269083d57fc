"""The state of `stalloc.auto`, and the lines that describe it to its user."""

from __future__ import annotations

import enum
from typing import NamedTuple, TypedDict

from stalloc import _core

ENDS = (
    "an iteration ends with the first forward after an optimizer's step, or after a backward pass "
    "if there is no optimizer, or with stalloc.step()"
)
"""The end of an iteration, for messages."""

NO_MODULE = (
    "no call of a module with parameters to train was seen outside of compiled code, and an "
    "iteration begins with one; `stalloc run --profile` records other programs, too"
)
"""The reason if nothing was recorded, for messages."""


class Stage(enum.Enum):
    """A stage of `stalloc.auto`; docs/auto.md has a line about each."""

    RECORDING = "recording"
    PLANNING = "planning"
    WAITING = "waiting"
    SERVING = "serving"
    RESTING = "resting"
    OFF = "off"


class Change(TypedDict):
    """A plan went into force, or out of it. Bytes are reserved ones, in one iteration."""

    iteration: int  #: iterations that were complete
    in_force: bool  #: the plan went into force; else out of it
    reason: str  #: why
    before: int  #: bytes of the recorded requests under torch's policy, or as measured if less
    after: int  #: bytes under the plan
    pool: int  #: bytes of the plan's pool


class Requests(NamedTuple):
    """Requests of iterations under a plan."""

    requests: int  #: all of them
    served_as_planned: int  #: of these, served at their planned place
    evaluation: int  #: of all, made by evaluations
    evaluation_served: int  #: of these, served where the layout of evaluations has them


class AutoStatus(TypedDict):
    """The state of `stalloc.auto`, or of the last one that has ended."""

    stage: str  #: recording, planning, waiting, serving, resting, or off
    reason: str  #: why no plan is in force; empty while there is nothing to tell
    iterations: int  #: complete ones
    served: int  #: of these, under a plan
    requests: int  #: of complete iterations under a plan
    served_as_planned: int  #: of these, served at their planned place
    evaluation_requests: int  #: of `requests`, made by evaluations, which no profile has
    evaluation_served_as_planned: int  #: of these, served where an earlier forward was
    changes: list[Change]  #: in order


def nothing() -> AutoStatus:
    """The status before the first `stalloc.auto`."""
    return AutoStatus(
        stage=Stage.OFF.value,
        reason="stalloc.auto() was not called",
        iterations=0,
        served=0,
        requests=0,
        served_as_planned=0,
        evaluation_requests=0,
        evaluation_served_as_planned=0,
        changes=[],
    )


def change_line(change: Change) -> str:
    """One line about a change."""
    head = f"iteration {change['iteration']}"
    if not change["in_force"]:
        return f"{head}: plan out of force: {change['reason']}"
    before, after = change["before"], change["after"]
    return (
        f"{head}: plan in force ({change['reason']}): {_core.format_bytes(after)} instead of "
        f"{_core.format_bytes(before)} reserved, {1 - after / before:.1%} less"
    )


def last_line(status: AutoStatus) -> str:
    """One line at the end of a run."""
    line = f"{status['served']} of {status['iterations']} iterations under a plan"
    evaluation = status["evaluation_requests"]
    evaluation_served = status["evaluation_served_as_planned"]
    if training := status["requests"] - evaluation:
        share = (status["served_as_planned"] - evaluation_served) / training
        whose = "training's requests" if evaluation else "requests"
        line += f", {share:.2%} of {whose} as planned"
    if evaluation:
        line += f", {evaluation_served / evaluation:.2%} of evaluations'"
    return line + (f"; {status['reason']}" if status["reason"] else "")
