"""`stalloc fits --rank stages`: the stages of a pipeline in one answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stalloc.commands.output import print_table, print_text, printable, size

if TYPE_CHECKING:
    from stalloc._estimate.stages import Stage, Stages

STAGES = "stages"
"""The value of `--rank`."""


def print_stages(stages: Stages, allocator: str) -> None:
    """Prints a line for each stage, and which one the rest of the answer is about."""
    print_table(
        f"Stages of the pipeline, one rank of {stages.world} for each",
        ("rank", "load", "reserved", "expandable", "stalloc", "with extras, at most", "verdict"),
        [_row(stage, allocator) for stage in stages.stages],
        text=("verdict",),
    )
    print_text("")
    if len(stages.stages) == 1:
        print_text(
            "No pipeline was seen: rank 0 exchanges no tensors with a single other rank. It stands "
            f"for all {stages.world}."
        )
    for stage in stages.stages:
        if stage.estimate is not None and stage.reason:
            print_text(f"Rank {stage.rank} ended early: {printable(stage.reason)}")
    if len(stages.stages) > 1:
        print_text(
            f"Rank {stages.largest(allocator).rank} needs the most. All that follows is about it."
        )


def failure(stages: Stages) -> str:
    """The reason why some stages have no answer; empty if all have one."""
    reasons = [f"rank {stage.rank}: {stage.reason}" for stage in stages.failed]
    return "; ".join(reasons)


def _row(stage: Stage, allocator: str) -> tuple[str, ...]:
    estimate = stage.estimate
    if estimate is None:
        return (str(stage.rank), *[""] * 5, "no answer")
    need = estimate.need(allocator)
    reserved = {each.allocator: _short(each.reserved) for each in estimate.needs}
    named = ("torch", "torch, expandable segments", "stalloc")
    return (
        str(stage.rank),
        _short(estimate.load),
        *(reserved.get(name, "") for name in named),
        _short(need.high),
        need.verdict or "",
    )


def _short(count: int) -> str:
    """Bytes without their exact number."""
    return size(count).partition(" (")[0]
