"""The workloads of the evaluation: schedules, sizes, and that they repeat."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "workloads"))

from configs import Config, Parallelism, all_configs
from experts import Routing
from models import LLAMA2_7B, QWEN15_MOE, Experts, Implementation
from rank import Rank, record
from schedule import Step, steps

from stalloc.tables import PHASE_KINDS

SMALL_DENSE = replace(LLAMA2_7B, name="small", layers=8, sequence=128)
SMALL_MOE = replace(
    QWEN15_MOE, name="small-moe", layers=4, sequence=128, experts=Experts(8, 2, 64, 128)
)


def order(parallelism: Parallelism, stage: int) -> str:
    """Such as F0 F1 B0 B1; chunks as letters after the number where there are several."""

    def name(step: Step) -> str:
        chunk = "abcdef"[step.chunk] if parallelism.chunks > 1 else ""
        return f"{'B' if step.backward else 'F'}{step.microbatch}{chunk}"

    return " ".join(name(step) for step in steps(parallelism, stage))


def test_1f1b_is_the_known_order() -> None:
    parallelism = Parallelism(tensor=1, pipeline=3, data=1, microbatch=1, microbatches=4)
    assert order(parallelism, 0) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert order(parallelism, 1) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert order(parallelism, 2) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_interleaving_is_the_known_order() -> None:
    parallelism = Parallelism(tensor=1, pipeline=2, data=1, microbatch=1, microbatches=4, chunks=2)
    assert order(parallelism, 1) == (
        "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a"
    )
    assert order(parallelism, 0) == (
        "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a"
    )


@pytest.mark.parametrize("config", all_configs().values(), ids=lambda config: config.name)
def test_every_schedule_runs_each_forward_once_before_its_backward(config: Config) -> None:
    seen: set[Step] = set()
    for step in steps(config.parallelism, config.stage):
        assert step not in seen
        assert not step.backward or replace(step, backward=False) in seen
        seen.add(step)
    assert len(seen) == 2 * config.parallelism.microbatches * config.parallelism.chunks


def test_shards_hold_the_parameters_that_the_model_has() -> None:
    """All eight ranks of Llama2-7B under TP4 PP2, against the count by formula."""
    parallelism = Parallelism(tensor=4, pipeline=2, data=1, microbatch=1, microbatches=2)
    held = 0
    for last in (False, True):
        rank = Rank(Config(LLAMA2_7B, parallelism, last=last))
        for parameter in rank.stage.parameters():
            held += parameter.numel() * (4 if parameter.dim() > 1 else 1)  # norms are on every rank
    hidden, ffn, vocabulary = 4096, 11008, 50688
    layer = 4 * hidden * hidden + 3 * hidden * ffn + 2 * hidden
    assert held == 32 * layer + 2 * vocabulary * hidden + hidden


@pytest.mark.parametrize("optimizations", ["n", "vr", "zor"])
@pytest.mark.parametrize("last", [False, True])
def test_a_dense_rank_repeats_itself(optimizations: str, last: bool) -> None:
    chunks = 2 if "v" in optimizations else 1
    parallelism = Parallelism(
        tensor=2, pipeline=2, data=2, microbatch=2, microbatches=4, chunks=chunks
    )
    trace = record(Config(SMALL_DENSE, parallelism, optimizations, last))
    profile = trace.profile()
    assert len(trace.iterations) == 5
    assert profile.compared == 2
    assert not profile.requests.dynamic.any()
    kinds = [PHASE_KINDS[kind] for kind in profile.phases.kind]
    assert kinds.count("forward") == kinds.count("backward") == 4 * chunks


@pytest.mark.parametrize("optimizations", ["n", "r"])
def test_legacy_layers_keep_the_masks_of_their_dropout(optimizations: str) -> None:
    parallelism = Parallelism(tensor=2, pipeline=2, data=1, microbatch=2, microbatches=4)
    loads = {}
    for implementation in (Implementation.CORE, Implementation.LEGACY):
        model = replace(SMALL_DENSE, implementation=implementation)
        trace = record(Config(model, parallelism, optimizations))
        assert trace.profile().compared == 2
        assert not trace.profile().requests.dynamic.any()
        loads[implementation] = trace.profile().load_bytes
    assert loads[Implementation.LEGACY] > loads[Implementation.CORE]
    masks = SMALL_DENSE.sequence**2 * parallelism.microbatch
    if optimizations == "r":  # the recomputed layers of two microbatches in flight keep them
        assert loads[Implementation.LEGACY] > loads[Implementation.CORE] + masks


def test_recomputation_keeps_less() -> None:
    parallelism = Parallelism(tensor=2, pipeline=2, data=1, microbatch=2, microbatches=4)
    load = {
        optimizations: record(Config(SMALL_DENSE, parallelism, optimizations)).profile().load_bytes
        for optimizations in ("n", "r", "zr", "zor")
    }
    assert load["r"] < load["n"]
    assert load["zor"] < load["zr"]


def test_experts_request_the_routed_sizes() -> None:
    parallelism = Parallelism(tensor=2, pipeline=2, data=1, microbatch=1, microbatches=2, expert=2)
    config = Config(SMALL_MOE, parallelism)
    trace = record(config, iterations=2)
    assert record(config, iterations=2).fingerprint == trace.fingerprint
    routing = Routing(config.seed, config.skew, iteration=1, microbatch=0)
    tokens = SMALL_MOE.sequence // parallelism.tensor
    counts = routing.counts(0, parallelism.expert, tokens * 2, 8)
    assert [sum(row) for row in counts] == [tokens * 2] * 2
    received = sum(sum(row[:4]) for row in counts)
    sizes = trace.requests.size[trace.requests.lower >= trace.iterations[1]]
    assert np.count_nonzero(sizes == received * SMALL_MOE.hidden * 2) >= 2
    assert trace.profile().requests.dynamic.any()


def test_the_same_microbatch_is_routed_alike_when_recomputed_and_others_are_not() -> None:
    routing = Routing(seed=1, skew=0.5)
    first = routing.counts(3, 2, 1000, 60)
    assert routing.counts(3, 2, 1000, 60) == first
    routing.microbatch = 1
    assert routing.counts(3, 2, 1000, 60) != first
