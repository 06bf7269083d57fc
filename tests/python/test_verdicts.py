"""The sentences that conclude a replay, for each outcome."""

from __future__ import annotations

from dataclasses import replace

import pytest
from snapshot_documents import FORWARD, SnapshotWriter, dump, last_step

from stalloc import importers, recordings, replaying
from stalloc.trace import Trace
from stalloc.verdicts import Comparison

MIB = 1 << 20
EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
TRACE = importers.from_bytes(dump(last_step()), "snapshot.pickle").trace
OURS = recordings.plan_recording(TRACE, time_limit=1.0)
TORCH = replaying.replay_both_torch(TRACE)


def row(of: replaying.Replay, mib: float | None) -> replaying.Replay:
    """A row that reserves so much, or does not fit."""
    if mib is None:
        return replace(of, peak_efficiency=None, fits=False)
    return replace(of, peak_reserved=int(mib * MIB), peak_efficiency=0.5)


def compared(
    torch: float | None,
    expandable: float | None,
    stalloc: float | None,
    *,
    trace: Trace = TRACE,
    has_expandable: bool = False,
    **ours: bool,
) -> Comparison:
    rivals = [
        replace(row(TORCH[0], torch), measured=None),
        replace(row(TORCH[1], expandable), measured=None),
    ]
    planned = replace(OURS, row=row(OURS.row, stalloc), **ours)
    return Comparison.of(trace, planned, rivals, has_expandable)


def test_names_what_stalloc_saves_and_what_the_better_rival_does() -> None:
    given = compared(1000, 900, 800)
    assert given.verdict == (
        "With stalloc you would save 200.0 MiB (20.0% of what torch reserves). Expandable segments "
        "alone would save 100.0 MiB."
    )
    assert (given.best, given.saved) == ("stalloc", 200 * MIB)
    assert compared(900, 1000, 800).verdict == (
        "With stalloc you would save 100.0 MiB (11.1% of what torch reserves)."
    )


def test_says_that_plain_torch_saves_where_expandable_segments_were_on() -> None:
    assert compared(900, 1000, 800, has_expandable=True).verdict == (
        "With stalloc you would save 200.0 MiB (20.0% of what torch with expandable segments "
        "reserves). Turning expandable segments off alone would save 100.0 MiB."
    )


@pytest.mark.parametrize("stalloc", [1000.0, 999.9, 1000.1])
def test_a_tie_says_so(stalloc: float) -> None:
    given = compared(1000, 1200, stalloc)
    assert given.verdict == (
        "stalloc would not save anything: torch's allocator reserves as little here; stay with "
        "torch's allocator."
    )
    assert compared(1000, 1000, 1000).best == "torch"
    assert compared(1200, 1000, stalloc).verdict == (
        f"stalloc would reserve as much as torch with expandable segments does, and no less; use "
        f"{EXPANDABLE}."
    )


def test_names_the_better_rival() -> None:
    assert compared(1000, 1200, 1100).verdict.endswith("; stay with torch's allocator.")
    assert compared(1200, 1000, 1100).verdict.endswith(f"; use {EXPANDABLE}.")
    off = compared(1000, 1200, 1100, has_expandable=True)
    assert off.verdict.endswith("; turn expandable segments off instead.")
    assert "stalloc would reserve 100.0 MiB (10.0%) more than torch: " in off.verdict


def test_a_plan_that_comes_later_is_advised_to_serve_from_the_start() -> None:
    text = compared(1000, 900, 1100, startup=False).verdict
    assert "what start-up made lies beside the pool" in text
    assert f"serve from the start with `stalloc run --plan`, or else use {EXPANDABLE}." in text
    assert "start-up" not in compared(1000, 900, 1100).verdict


def test_names_spare_slots_as_the_reason() -> None:
    """All new state is made before any of the old is freed."""
    writer = SnapshotWriter()
    state = [writer.alloc(8 * MIB, FORWARD) for _ in range(4)]
    for _ in range(5):
        activations = [writer.alloc(7 * MIB, FORWARD) for _ in range(9)]
        for address in activations:
            writer.free(address)
        writer.annotate("START", "Optimizer.step#AdamW.step")
        new = [writer.alloc(8 * MIB) for _ in state]
        for address in state:
            writer.free(address)
        state = new
        writer.annotate("END", "Optimizer.step#AdamW.step")
    trace = importers.from_bytes(dump(writer.document()), "snapshot.pickle").trace
    planned = recordings.plan_recording(trace, time_limit=1.0)
    assert planned.plan.gap > 0
    given = Comparison.of(trace, planned, [row(TORCH[0], 80), row(TORCH[1], 90)], expandable=False)
    assert "above its bound, with spare slots for state that" in given.verdict


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ((None, None, None), "No allocator fits: train with smaller batches"),
        ((None, None, 800), "Only stalloc fits: torch runs out of memory"),
        (
            (None, 900, 800),
            "Torch does not fit. stalloc fits, and so does torch with expandable segments; "
            "stalloc would reserve 100.0 MiB",
        ),
        ((None, 900, 1000), "Torch does not fit. stalloc would reserve 100.0 MiB (11.1%) more"),
        ((None, 900, 900), "Torch does not fit. stalloc would reserve as much as torch with"),
        ((None, 900, None), "stalloc does not fit, and torch with expandable segments does: use"),
        ((900, None, None), "stalloc does not fit, and torch does: stay with torch's allocator."),
        ((900, None, 800), "With stalloc you would save 100.0 MiB"),
    ],
)
def test_every_outcome_under_a_capacity_has_a_verdict(
    rows: tuple[float | None, float | None, float | None], verdict: str
) -> None:
    given = compared(*rows)
    assert given.verdict.startswith(verdict)
    assert (given.saved is None) == (rows[0] is None or rows[2] is None)


def test_measured_bytes_are_explained_where_the_difference_exceeds_the_saving() -> None:
    rivals = [replace(row(TORCH[0], 1000), measured=1020 * MIB), row(TORCH[1], 1100)]

    def notes(stalloc: float) -> list[str]:
        planned = replace(OURS, row=row(OURS.row, stalloc))
        return Comparison.of(TRACE, planned, rivals, expandable=False).notes

    assert notes(900) == []
    (note,) = notes(970)
    assert note.startswith("Torch held 1020.0 MiB when this was recorded, 20.0 MiB more than")
    assert "the replay repeats the recorded iteration" in note
