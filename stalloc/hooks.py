"""Phases of a training loop: found by `TrainingHooks`, or stated by the functions here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from stalloc._hooks.phases import Scope
from stalloc._hooks.signatures import input_signature, model_signature
from stalloc._hooks.sink import Phase, PhaseKind, PhaseSink
from stalloc._hooks.training import TrainingHooks, attached

__all__ = [
    "Phase",
    "PhaseKind",
    "PhaseSink",
    "TrainingHooks",
    "enter_dynamic",
    "input_signature",
    "leave_dynamic",
    "model_signature",
    "phase",
    "tell_inputs",
    "unplanned",
]


@contextlib.contextmanager
def phase(
    kind: PhaseKind | int | str,
    microbatch: int | None = None,
    chunk: int = 0,
    inputs: Mapping[str, object] | None = None,
) -> Iterator[None]:
    """States the phase of the code inside, for custom schedules.

    Nothing else changes the phase while it is open; phases nest. It does nothing without attached
    hooks and on other threads than theirs. `microbatch` defaults to 0, and is ignored for kinds
    without microbatches. Kind UNPLANNED is the same as `unplanned()`. `inputs` are those of a
    forward that the model gets besides its arguments, such as what a stage of a pipeline receives.

    Raises:
        ValueError: There is no such kind, or the numbers are negative.
    """
    with _scope(_explicit_phase(kind, microbatch, chunk), inputs):
        yield


@contextlib.contextmanager
def unplanned() -> Iterator[None]:
    """States that the code inside does not repeat. Afterwards the interrupted phase goes on.

    Inside, the phase does not change, and an optimizer's step does not end the iteration.
    """
    with _scope(None):
        yield


def tell_inputs(**inputs: object) -> None:
    """Reports the inputs of the microbatch whose explicit forward phase is open.

    This is for loops that do not call the model itself. The sizes of the inputs are the extents of
    the microbatch, as those of the model's arguments are. The first call in a phase counts.
    """
    for hooks in attached():
        hooks.tell_inputs(inputs)


def enter_dynamic(name: str) -> None:
    """States that the sizes of requests from here on depend on the data.

    This is for code that is no module, such as the span from the dispatch of tokens to experts to
    their combination; `dynamic=` names modules. The backward of that code is dynamic, too.

    Args:
        name: The name of the span in traces.
    """
    for hooks in attached():
        hooks.enter_span(name)


def leave_dynamic(name: str) -> None:
    """Ends the span of `enter_dynamic`. The end of an iteration ends it, too."""
    for hooks in attached():
        hooks.leave_span(name)


@contextlib.contextmanager
def _scope(explicit: Phase | None, inputs: Mapping[str, object] | None = None) -> Iterator[None]:
    scope = Scope(explicit, inputs or {})
    entered = [hooks for hooks in attached() if hooks.open(scope)]
    try:
        yield
    finally:
        for hooks in reversed(entered):
            hooks.close(scope)


def _explicit_phase(
    kind: PhaseKind | int | str, microbatch: int | None, chunk: int
) -> Phase | None:
    try:
        known = PhaseKind[kind.upper()] if isinstance(kind, str) else PhaseKind(kind)
    except (KeyError, ValueError):
        names = ", ".join(known.name.lower() for known in PhaseKind)
        raise ValueError(f"there is no phase {kind!r}; choose one of {names}") from None
    if known is PhaseKind.UNPLANNED:
        return None
    if (microbatch is not None and microbatch < 0) or chunk < 0:
        raise ValueError(
            f"phase {known.name.lower()} of microbatch {microbatch}, chunk {chunk}: "
            "both count from 0"
        )
    if microbatch is None:
        microbatch = 0 if known in (PhaseKind.FORWARD, PhaseKind.BACKWARD) else -1
    return Phase(known, microbatch, chunk)
