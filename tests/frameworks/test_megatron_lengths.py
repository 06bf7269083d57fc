"""Megatron whose sequences change in length: identical to the bit, as planned, within the load."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import megatron_training
import pytest
from launcher import stalloc_run, together
from megatron_batches import Batches
from megatron_training import Result, Settings, train

TARGET = 0.99  # hits, of all requests
# The pool's alignment and the segments of the fallback, which a toy model feels.
SLACK = 1 << 20

ITERATIONS = Settings(
    iterations=46,
    microbatches=3,
    warmup=1,
    profiled=4,
    width=128,
    batches=Batches("iterations", longest=96, rows=4),
)
MICROBATCHES = replace(ITERATIONS, batches=replace(ITERATIONS.batches, lengths="microbatches"))

# The memory that is missed here, in parts of the load, and why.
MISSED_MEMORY = {
    "experts": "4 % are regions for the most uneven routing of each layer, the rest is a segment "
    "of the fallback for what they cannot hold",
}

CASES = {
    "iterations": ITERATIONS,
    "microbatches": MICROBATCHES,
    "recomputed": replace(MICROBATCHES, recompute=True),
    "experts": replace(MICROBATCHES, experts=4),
    "1F1B, iterations": replace(ITERATIONS, stages=2),
    "1F1B, microbatches": replace(MICROBATCHES, stages=2),
    # Over two ranks, Megatron itself mistakes the lengths of one neighbour for the other's.
    "interleaved": replace(MICROBATCHES, stages=3, chunks=2, layers=1),
}


def run(settings: Settings) -> list[Result]:
    """The results of all ranks."""
    return [job.result() for job in together(settings.ranks, train, settings)]


def assert_served(case: str, result: Result) -> None:
    assert result.warnings == []
    stats = result.stats
    assert stats["iterations"] >= 40
    assert stats["strays"] == 0
    assert stats["hit_rate"] >= TARGET, stats
    if stats["run_peak_reserved"] > 1.02 * stats["run_peak_allocated"] + SLACK:
        assert case in MISSED_MEMORY, stats
        pytest.xfail(f"{1 / stats['run_efficiency']:.3f} of the load: {MISSED_MEMORY[case]}")


@pytest.mark.parametrize("case", CASES)
def test_unseen_lengths_are_served_as_planned(case: str) -> None:
    settings = CASES[case]
    plain = run(settings)
    planned = run(replace(settings, mode="auto"))
    for before, after in zip(plain, planned, strict=True):
        before.assert_same(after)
        assert_served(case, after)


def test_a_whole_run_is_served_from_its_start(tmp_path: Path) -> None:
    """The first batch is the longest: the buffer of Megatron's local attention never grows."""
    settings = replace(MICROBATCHES, batches=replace(MICROBATCHES.batches, first=0), mode="auto")
    for option, iterations in (("--profile", 6), ("--plan", settings.iterations)):
        arguments = json.dumps(asdict(replace(settings, iterations=iterations)))
        script = Path(megatron_training.__file__)
        stalloc_run(option, tmp_path / "plans", script, arguments, str(tmp_path))
    planned = Result(**json.loads((tmp_path / "rank0.result.json").read_text()))
    run(replace(settings, mode=None))[0].assert_same(planned)
    assert planned.stats["startup_requests"] == planned.stats["startup"] > 0
    assert_served("whole run", planned)
