"""Phases: where a training loop is, found by `TrainingHooks` or stated by the functions here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

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
    "unplanned",
]


@contextlib.contextmanager
def phase(
    kind: PhaseKind | int | str, microbatch: int | None = None, chunk: int = 0
) -> Iterator[None]:
    """Says what the loop is doing inside, for schedules of one's own.

    While open, nothing else changes the phase; another one nests. Without attached hooks, and on
    threads other than theirs, it does nothing. `microbatch` is 0 if not given, and none at all for
    kinds that have none. Kind UNPLANNED is the same as `unplanned()`.

    Raises:
        ValueError: There is no such kind, or the numbers are negative.
    """
    with _scope(_explicit_phase(kind, microbatch, chunk)):
        yield


@contextlib.contextmanager
def unplanned() -> Iterator[None]:
    """Says that what runs inside does not repeat; then the interrupted phase goes on.

    No phase changes inside, and no optimizer step there ends an iteration.
    """
    with _scope(None):
        yield


def enter_dynamic(name: str) -> None:
    """Says that the sizes of what is requested from here on depend on the data.

    For stretches that are no module, such as from the dispatch of tokens to experts to their
    combination; `dynamic=` names modules. Also holds for the backward of what is done inside.

    Args:
        name: What traces call the stretch.
    """
    for hooks in attached():
        hooks.enter_span(name)


def leave_dynamic(name: str) -> None:
    """Ends what `enter_dynamic` began; nothing if that is over, as it is when an iteration ends."""
    for hooks in attached():
        hooks.leave_span(name)


@contextlib.contextmanager
def _scope(explicit: Phase | None) -> Iterator[None]:
    scope = Scope(explicit)
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
