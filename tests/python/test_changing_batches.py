"""Training whose batches change, on real tensors: identical to the bit, and all within the pool."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import pytest
import torch
from isolation import isolated
from torch import Tensor, nn
from torch.nn import functional
from training import Model, Trainer, assert_same, loss_of, tokens, twins

import stalloc
from stalloc import _core, cli
from stalloc.laws import formulas

PLAN_SCHEMA = Path(__file__).parents[2] / "docs" / "schema" / "plan.schema.json"

# The pool's alignment and the segments of the fallback, which a toy model feels.
SLACK = 2 << 20

LENGTHS = (24, 40, 64, 56, 32)  # profiled
UNSEEN = (25, 63, 7, 50, 33, 1, 64, 41, 18, 59)


def profile(trainer: Trainer, steps: Iterable[Callable[[Trainer], None]]) -> stalloc.Plan:
    with stalloc.profile(trainer.model) as prof:
        for step in steps:
            step(trainer)
    return prof.plan()


def of_length(*lengths: int, rows: int = 2) -> Callable[[Trainer], None]:
    """An iteration with a microbatch of each length."""

    def step(t: Trainer) -> None:
        for i, length in enumerate(lengths):
            backward(t, i, length, rows)
        t.finish()

    return step


def backward(t: Trainer, microbatch: int, length: int, rows: int = 2) -> None:
    batch = tokens(t.steps, microbatch, length, rows)
    # The mean over no rows is no number.
    loss = loss_of(t.model, batch) if rows else t.model(batch[:, :-1]).sum()
    loss.backward()
    t.losses.append(loss.item())


@dataclass
class Outcome:
    stats: stalloc.MemoryStats
    before_last: stalloc.MemoryStats  # before the last step
    plan: stalloc.Plan

    @property
    def hits_at_last(self) -> float:
        """The share of the last step's requests that were served at their place."""
        before, after = self.before_last, self.stats
        asked = after["requests"] - before["requests"]
        return (after["served_as_planned"] - before["served_as_planned"]) / asked


def compare(
    profiled: list[Callable[[Trainer], None]],
    served: list[Callable[[Trainer], None]],
    trainers: tuple[Trainer, Trainer] | None = None,
) -> Outcome:
    """Trains twice, with a plan and without; the results are equal. The last step is ordinary."""
    torch.set_num_threads(1)  # no scratch space of other threads
    plain, planned = trainers or twins()
    for step in (*profiled, *served):
        step(plain)
    plan = profile(planned, profiled)
    stalloc.enable(plan)
    before = stalloc.memory_stats()
    for step in served:
        before = stalloc.memory_stats()
        step(planned)
        _core.runtime("cpu").check()
    assert_same(plain, planned)
    return Outcome(stalloc.memory_stats(), before, plan)


def wrapped(wrapper: Callable[[Model], nn.Module]) -> tuple[Trainer, Trainer]:
    """Two trainers of equal models, each in a wrapper."""
    models = [trainer.model for trainer in twins()]
    torch.manual_seed(0)
    first, second = (Trainer(wrapper(model)) for model in models)
    return first, second


def assert_within_pool(outcome: Outcome) -> None:
    stats = outcome.stats
    load = max(stats["run_peak_allocated"], outcome.plan.bound)
    assert stats["run_peak_reserved"] <= 1.02 * load + SLACK
    assert stats["strays"] == 0


@pytest.mark.parametrize("recompute", [None, "non-reentrant", "reentrant"])
@isolated
def test_unseen_lengths_are_served_as_planned(recompute: str | None) -> None:
    outcome = compare(
        [of_length(n, n) for n in LENGTHS],
        [of_length(n, n) for n in UNSEEN],
        twins(recompute=(recompute,)),
    )
    assert len(outcome.plan.extents) > 0
    stats = outcome.stats
    assert stats["hit_rate"] >= 0.99, stats
    assert stats["fallback_requests"] <= 0.01 * stats["requests"]
    assert_within_pool(outcome)


@isolated
def test_lengths_may_change_within_an_iteration() -> None:
    outcome = compare(
        [of_length(24, 64), of_length(40, 32), of_length(64, 24), of_length(32, 56)],
        [of_length(a, b) for a, b in zip(UNSEEN, reversed(UNSEEN), strict=True)],
    )
    assert outcome.stats["hit_rate"] >= 0.99, outcome.stats
    assert_within_pool(outcome)


@isolated
def test_a_longer_batch_than_planned_for_is_served_from_a_larger_pool() -> None:
    outcome = compare(
        [of_length(n, n) for n in LENGTHS],
        [*(of_length(n, n) for n in (30, 96, 150, 20, 128)), of_length(150, 150)],
    )
    assert outcome.hits_at_last >= 0.99
    assert outcome.stats["pool"] > outcome.plan.pool
    assert_within_pool(outcome)


@isolated
def test_rows_and_length_may_change_together() -> None:
    shapes = [(2, 24), (3, 40), (4, 64), (1, 56), (4, 32), (2, 48)]
    unseen = [(3, 25), (4, 63), (1, 7), (2, 50), (4, 11), (3, 18), (1, 1), (4, 64)]
    outcome = compare(
        [of_length(n, n, rows=r) for r, n in shapes], [of_length(n, n, rows=r) for r, n in unseen]
    )
    assert outcome.stats["hit_rate"] >= 0.99, outcome.stats
    assert_within_pool(outcome)


@isolated
def test_rows_that_are_as_many_as_tokens_cost_one_iteration() -> None:
    """Rows that equal tokens make many sizes equal, so requests are mistaken for each other."""
    outcome = compare(
        [
            of_length(n, n, rows=r)
            for r, n in [(2, 24), (3, 40), (4, 64), (1, 56), (4, 32), (2, 48)]
        ],
        [of_length(n, n, rows=r) for r, n in [(4, 4), (3, 3), (2, 2), (4, 4), (4, 40)]],
    )
    assert outcome.hits_at_last == 1.0
    assert_within_pool(outcome)


@isolated
def test_rows_and_length_that_coincide_in_the_profile() -> None:
    """A law cannot tell the two apart; the run then does."""
    outcome = compare(
        [of_length(n, n, rows=n) for n in (8, 12, 16, 10)],
        [of_length(n, n, rows=r) for r, n in ((16, 8), (4, 16), (16, 16), (9, 13))]
        + [of_length(12, 12, rows=12)],
    )
    assert outcome.hits_at_last >= 0.99
    assert_within_pool(outcome)


@isolated
def test_a_short_last_batch_of_a_profile_without_one() -> None:
    outcome = compare(
        [of_length(32, 32, rows=4)] * 4,
        [of_length(32, 32, rows=r) for r in (4, 4, 1, 4, 3, 4)],
    )
    assert outcome.hits_at_last >= 0.99
    assert outcome.stats["fallback_requests"] <= 0.01 * outcome.stats["requests"]
    assert_within_pool(outcome)


@isolated
def test_a_batch_without_rows_is_served() -> None:
    outcome = compare(
        [of_length(n, n, rows=r) for r, n in ((2, 24), (3, 40), (4, 64), (1, 56))],
        [of_length(24, 24, rows=r) for r in (2, 0, 3, 0, 2)],
    )
    assert outcome.hits_at_last >= 0.99
    assert_within_pool(outcome)


@pytest.mark.parametrize("counts", [(1, 3, 2), (5, 2), (2, 7, 1, 2)])
@isolated
def test_microbatches_may_be_more_or_fewer_than_planned(counts: tuple[int, ...]) -> None:
    outcome = compare(
        [of_length(n, n) for n in LENGTHS],
        [of_length(*(UNSEEN[i % 10] for i in range(count))) for count in (*counts, 2)],
    )
    assert outcome.hits_at_last >= 0.99
    assert outcome.stats["fallback_requests"] <= 0.01 * outcome.stats["requests"]
    assert_within_pool(outcome)


def evaluated(length: int) -> Callable[[Trainer], None]:
    def step(t: Trainer) -> None:
        of_length(length, length)(t)
        t.evaluate()

    return step


@isolated
def test_evaluations_take_idle_pool_space() -> None:
    outcome = compare(
        [of_length(n, n) for n in LENGTHS], [evaluated(n) for n in UNSEEN] + [of_length(30, 31)]
    )
    assert outcome.hits_at_last >= 0.99
    assert outcome.stats["peak_fallback_allocated"] < 64 << 10, "small ones alone lie beside it"
    assert_within_pool(outcome)


def broken_off(t: Trainer) -> None:
    """Forward and backward are left by an exception; the next microbatch has another length."""

    def fail(*_: object) -> None:
        raise RuntimeError("on purpose")

    for hook in ("register_forward_hook", "register_full_backward_hook"):
        handle = getattr(t.model.blocks[2].mlp, hook)(fail)
        with pytest.raises(RuntimeError, match="on purpose"):
            backward(t, 0, 60)
        handle.remove()
        backward(t, 1, 20)
    t.finish()


@isolated
def test_exceptions_between_microbatches_cost_no_value() -> None:
    outcome = compare(
        [of_length(n, n) for n in LENGTHS],
        [of_length(50, 9), broken_off, of_length(33, 64), broken_off, of_length(17, 60)],
    )
    assert outcome.hits_at_last >= 0.99
    assert_within_pool(outcome)


class Keeping:
    """Iterations whose scores a variable holds until the next ones exist."""

    def __init__(self) -> None:
        self.scores: dict[int, Tensor] = {}  # by trainer

    def of_length(self, length: int, fails: bool = False) -> Callable[[Trainer], None]:
        def step(t: Trainer) -> None:
            batch = tokens(t.steps, 0, length, 2)
            self.scores[id(t)] = t.model(batch[:, :-1])
            if fails:
                return
            loss = functional.cross_entropy(
                self.scores[id(t)].flatten(0, 1), batch[:, 1:].flatten()
            )
            loss.backward()
            t.losses.append(loss.item())
            t.finish()

        return step


@pytest.mark.parametrize("longest", [64, 150])
@isolated
def test_scores_that_a_variable_keeps_take_turns(longest: int) -> None:
    loop = Keeping()
    served = [min(n, longest) for n in (*UNSEEN, 30, longest, longest - 1, 8, longest, *UNSEEN)]
    outcome = compare([loop.of_length(n) for n in LENGTHS], [loop.of_length(n) for n in served])
    assert len(outcome.plan.turns) == 1
    assert outcome.hits_at_last >= 0.99
    stats = outcome.stats
    assert stats["run_peak_reserved"] <= 1.02 * stats["run_peak_allocated"] + SLACK
    assert stats["hit_rate"] >= 0.99, stats


@isolated
def test_scores_that_are_kept_too_long_cost_no_value() -> None:
    loop = Keeping()
    torch.set_num_threads(1)
    plain, planned = twins()
    profiled = [loop.of_length(n) for n in LENGTHS]
    for step in profiled:
        step(plain)
    plan = profile(planned, profiled)
    stalloc.enable(plan, keep_addresses=False)
    kept: list[Tensor] = []
    for i, n in enumerate((*UNSEEN, 90, *UNSEEN)):
        for t in (plain, planned):
            if i % 3 == 0:
                loop.of_length(n + 1, fails=True)(t)  # the iteration begins once more
            loop.of_length(n)(t)
            if i % 4 == 1:
                t.evaluate()
        kept.append(loop.scores[id(planned)])
        kept.append(loop.scores[id(plain)])
        if i % 5 == 4:
            assert all(map(torch.equal, kept[::2], kept[1::2]))
            kept.clear()
        _core.runtime("cpu").check()
    assert_same(plain, planned)


def test_inspect_shows_extents_and_laws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    _, trainer = twins()
    plan = profile(trainer, [of_length(n, n) for n in LENGTHS])
    plan.save(path)
    assert cli.main(["inspect", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["extents"] == plan.extents == {"tokens.1": 64}
    assert sorted(row["tokens.1"] for row in shown["seen"]) == sorted(LENGTHS)
    assert sum(shown["laws"].values()) == len(plan.decisions)
    assert shown["laws"]["affine"] > 100
    assert cli.main(["inspect", str(path)]) == 0
    said = capsys.readouterr().out
    assert "tokens.1 up to 64; 5 distinct profiled" in said
    assert re.search(rf"{shown['laws']['affine']} affine", said)


def test_diff_shows_the_laws_that_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for width in (64, 32):
        torch.manual_seed(0)
        plan = profile(Trainer(Model(width=width)), [of_length(n) for n in LENGTHS])
        files.append(str(tmp_path / f"{width}.json"))
        plan.save(files[-1])
    assert cli.main(["diff", *files, "--json"]) == 0
    laws = json.loads(capsys.readouterr().out)["laws"]
    # Activations of two rows, four bytes a number.
    halved = [law for law in laws if (law["a"], law["b"]) == ("512 * tokens.1", "256 * tokens.1")]
    assert {law["phase"] for law in halved} == {"forward 0", "backward 0"}
    assert sum(law["requests"] for law in halved) > 20
    assert cli.main(["diff", *files]) == 0
    assert "512 * tokens.1" in capsys.readouterr().out
    assert cli.main(["diff", files[0], files[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["same"] is True


class Interpolating(nn.Module):
    """Stretches its positions to the length, unless that is the one they were made for."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.positions = nn.Parameter(torch.ones(1, 1, 40))

    def forward(self, t: Tensor) -> Tensor:
        positions = self.positions
        if t.shape[1] != 40:
            positions = functional.interpolate(positions.double(), t.shape[1]).float() * 1.0
        out: Tensor = self.model(t) + positions.transpose(1, 2)
        return out


@isolated
def test_a_branch_that_some_lengths_go_without_is_planned() -> None:
    outcome = compare(
        [of_length(n, n) for n in (24, 40, 64, 56, 40, 9, 64)],
        [of_length(n, n) for n in (25, 40, 40, 63, 7, 40, 50, 40, 33)],
        wrapped(Interpolating),
    )
    assert outcome.stats["hit_rate"] >= 0.99, outcome.stats
    assert outcome.stats["dynamic_requests"] == 0


class Padded(nn.Module):
    """Rounds the length of a batch up inside the model, to the multiple for that length."""

    def __init__(self, model: Model, multiple: Callable[[int], int]) -> None:
        super().__init__()
        self.model = model
        self.multiple = multiple

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        scores: Tensor = self.model(functional.pad(ids, (0, -length % self.multiple(length))))
        return scores[:, :length]


@isolated
def test_a_law_that_breaks_beyond_the_profile_costs_no_value() -> None:
    outcome = compare(
        [of_length(n, n) for n in (24, 40, 64, 56, 32, 9, 17)],
        [of_length(n, n) for n in (20, 70, 130, 64, 260, 33, 48)],
        wrapped(lambda model: Padded(model, lambda length: 16 if length <= 64 else 128)),
    )
    before, after = (s["hits"] + s["conflicts"] for s in (outcome.before_last, outcome.stats))
    assert after - before >= 0.99 * outcome.stats["planned"], "back in step"


@isolated
def test_other_threads_take_idle_space_beside_changing_batches() -> None:
    failures: list[str] = []

    def beside(length: int) -> Callable[[Trainer], None]:
        def step(t: Trainer) -> None:
            stop = threading.Event()

            def work(seed: int) -> None:
                held: list[Tensor] = []
                while not stop.is_set():
                    held.append(torch.full((seed * 50 + len(held),), float(seed)))
                    if len(held) > 20:
                        if not all(bool((h == seed).all()) for h in held):
                            failures.append(f"thread {seed}: a tensor changed")
                        held.clear()

            threads = [threading.Thread(target=work, args=(s,)) for s in (1, 2)]
            for thread in threads:
                thread.start()
            of_length(length, length)(t)
            stop.set()
            for thread in threads:
                thread.join()

        return step

    outcome = compare(
        [of_length(n, n) for n in LENGTHS],
        [beside(n) for n in UNSEEN] + [of_length(30, 30), of_length(30, 31)],
    )
    assert not failures, failures
    assert outcome.hits_at_last >= 0.99


@pytest.mark.parametrize("seed", range(4))
@isolated
def test_two_hundred_steps_of_random_shapes_are_identical(seed: int) -> None:
    rng = random.Random(seed)

    def any_step() -> Callable[[Trainer], None]:
        rows = rng.choice((1, 2, 3, 4, 4, 4))
        step = of_length(
            *(rng.randint(1, 64) for _ in range(rng.choice((1, 2, 2, 2, 3)))), rows=rows
        )
        return evaluated(rng.randint(1, 64)) if rng.random() < 0.05 else step

    outcome = compare(
        [
            of_length(n, m, rows=r)
            for r, n, m in ((4, 64, 64), (2, 40, 24), (3, 56, 32), (1, 8, 48))
        ],
        [any_step() for _ in range(200)] + [of_length(50, 60)],
    )
    assert outcome.hits_at_last >= 0.99
    assert outcome.stats["fallback_requests"] <= 0.01 * outcome.stats["requests"]
    assert_within_pool(outcome)


@isolated
def test_padding_inside_the_model_is_an_extent_of_its_own() -> None:
    outcome = compare(
        [of_length(n) for n in (61, 24, 90, 33, 75, 50, 100, 10)],
        [of_length(n) for n in (17, 88, 64, 3, 96, 70, 49, 81)],
        wrapped(lambda model: Padded(model, lambda length: 16)),
    )
    assert list(outcome.plan.extents) == ["ids.1", "ids.1:16"]
    larger = outcome.plan.resized({"tokens": 200})
    assert larger.extents == {"ids.1": 200, "ids.1:16": 208}
    padded = outcome.plan.resized({"ids.1:16": 200})
    assert padded.extents == {"ids.1": 100, "ids.1:16": 208}, "a multiple stays one"
    assert larger.pool > outcome.plan.pool
    assert outcome.stats["hit_rate"] >= 0.99
    assert_within_pool(outcome)


class Strided(nn.Module):
    """An encoder that halves the length of a batch twice, with convolutions, before its blocks."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        width = model.embedding.embedding_dim
        torch.manual_seed(0)  # the same in both trainers
        self.halves = nn.ModuleList(nn.Conv1d(width, width, 3, 2, 1) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.model.embedding(ids)
        for half in self.halves:
            x = functional.gelu(half(x.transpose(1, 2)).transpose(1, 2))
        for block in self.model.blocks:
            x = block(x)
        scores: Tensor = self.model.head(x)
        kept = self.halves[0].stride[0] * self.halves[1].stride[0]
        return scores.repeat_interleave(kept, 1)[:, : ids.shape[1]]


@isolated
def test_strides_inside_the_model_give_extents_of_their_own(tmp_path: Path) -> None:
    outcome = compare(
        [of_length(n) for n in (197, 66, 130, 95, 179, 44, 120, 31)],
        [of_length(n) for n in (17, 188, 64, 3, 196, 70, 49, 81, 150, 195, 99)],
        wrapped(Strided),
    )
    quarter = "floor((ids.1+3)/4)"
    assert quarter in outcome.plan.extents
    assert outcome.plan.extents["ids.1"] == 197
    assert outcome.plan.extents[quarter] == 50
    assert outcome.stats["hit_rate"] >= 0.99, outcome.stats
    assert_within_pool(outcome)
    larger = outcome.plan.resized({"tokens": 402})
    assert larger.extents[quarter] == 101
    assert larger.pool > outcome.plan.pool
    outcome.plan.save(tmp_path / "plan.json")
    loaded = stalloc.Plan.load(tmp_path / "plan.json")
    assert loaded.extents == outcome.plan.extents
    document = json.loads((tmp_path / "plan.json").read_text())
    assert document["version"] == 2
    jsonschema.validate(document, json.loads(PLAN_SCHEMA.read_text()))
    assert outcome.plan.resized({quarter: 60}).extents[quarter] == 60
    assert any(formula.endswith(f" * {quarter}") for formula in formulas(loaded))


@isolated
def test_strides_that_change_beyond_the_profile_cost_no_value() -> None:
    class Changing(Strided):
        def forward(self, ids: Tensor) -> Tensor:
            for half in self.halves:
                half.stride = (3,) if ids.shape[1] > 197 else (2,)
            return super().forward(ids)

    outcome = compare(
        [of_length(n) for n in (197, 66, 130, 95, 179, 44, 120, 31)],
        [of_length(n) for n in (17, 220, 64, 280, 196, 240, 49, 260, 150, 195, 197, 99)],
        wrapped(Changing),
    )
    assert outcome.hits_at_last >= 0.99
