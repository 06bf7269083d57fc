"""Training under a plan: the results are those without one, whatever the run does."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import pytest
import torch
from isolation import isolated
from training import Trainer, assert_same, loss_of, profiled_plan, tokens, twins

import stalloc
from stalloc import _core


def check() -> None:
    _core.runtime("cpu").check()


@pytest.mark.parametrize(
    "recompute",
    [(None,), ("non-reentrant",), ("reentrant",), (None, "non-reentrant", "reentrant")],
    ids=lambda r: "-".join(map(str, r)),
)
@isolated
def test_every_static_request_is_served(recompute: tuple[str | None, ...]) -> None:
    plain, planned = twins(recompute=recompute)
    for _ in range(8):
        plain.step()
    plan = profiled_plan(planned)
    assert plan.optimal, plan.gap
    stalloc.enable(plan)
    for _ in range(5):
        planned.step()
        check()
    stats = stalloc.memory_stats()
    assert stats["iterations"] == 5
    assert stats["hits"] == 5 * stats["planned"] > 0
    assert stats["misses"] == 0
    assert stats["conflicts"] == stats["strays"] == 0
    assert stats["peak_fallback_allocated"] == 0
    assert stats["peak_reserved"] <= plan.pool + (2 << 20)
    assert stats["peak_allocated"] > 0.95 * plan.pool
    assert_same(plain, planned)


@isolated
def test_the_optimizer_marks_iterations_when_step_is_not_called() -> None:
    plain, planned = twins()

    def step(t: Trainer) -> None:
        for i in range(2):
            t.backward(i)
        t.optimizer.step()
        t.optimizer.zero_grad()
        t.steps += 1

    for _ in range(9):
        step(plain)
    with stalloc.profile(planned.model) as prof:
        for _ in range(4):
            step(planned)
    stalloc.enable(prof.plan())
    for _ in range(5):
        step(planned)
    stats = stalloc.memory_stats()
    assert stats["iterations"] == 4, "the last one ends with the next forward"
    assert stats["hit_rate"] > 0.98
    assert_same(plain, planned)


@isolated
def test_a_fresh_run_is_served_as_soon_as_it_has_warmed_up() -> None:
    plain, fresh = twins(recompute=(None, "non-reentrant"))
    _, profiled = twins(recompute=(None, "non-reentrant"))
    plan = profiled_plan(profiled)
    del profiled
    for _ in range(6):
        plain.step()
    stalloc.enable(plan)
    for step in range(6):
        before = stalloc.memory_stats()["hits"]
        fresh.step()
        check()
        if step >= 2:
            assert stalloc.memory_stats()["hits"] - before == len(plan.decisions), step
    stats = stalloc.memory_stats()
    # The optimizer's states, which outlive everything, hold no planned address.
    assert stats["strays"] == 0
    assert stats["conflicts"] == 0
    assert_same(plain, fresh)


@isolated
def test_a_run_that_goes_on_after_its_profile_is_followed_through_departures() -> None:
    _, trainer = twins()
    with stalloc.enable(profiled_plan(trainer)):
        for i in range(trainer.microbatches):
            torch.zeros(12_345)  # no request of the profile
            loss = loss_of(trainer.model, tokens(trainer.steps, i))
            torch.zeros(12_345)
            loss.backward()
        trainer.finish()
        check()
        stats = stalloc.memory_stats()
    assert stats["hits"] >= 0.99 * stats["planned"]


@isolated
def test_kept_tensors_get_no_planned_address() -> None:
    plain, planned = twins()

    def step(t: Trainer, kept: list[torch.Tensor]) -> None:
        for i in range(t.microbatches):
            loss = loss_of(t.model, tokens(t.steps, i))
            loss.backward()
            t.losses.append(loss.item())
            kept.append(loss.detach())  # of the size of many temporaries
        t.finish()
        del kept[: -2 * t.microbatches]

    losses: list[torch.Tensor] = []
    for _ in range(10):
        step(plain, losses)
    kept: list[torch.Tensor] = []
    with stalloc.profile(planned.model) as prof:
        for _ in range(4):
            step(planned, kept)
    stalloc.enable(prof.plan())
    for _ in range(6):
        step(planned, kept)
        check()
    stats = stalloc.memory_stats()
    assert stats["misses"] == 0
    assert stats["conflicts"] == stats["strays"] == 0
    assert_same(plain, planned)


# Departures from the profile. Each happens twice, with ordinary steps around it.


def other_length(t: Trainer) -> None:
    t.step(length=48)
    t.step(length=9)


def evaluation(t: Trainer) -> None:
    t.backward(0)
    t.evaluate()
    t.backward(1)
    t.backward(2)
    t.finish()
    t.evaluate()


def extra_forward(t: Trainer) -> None:
    t.backward(0)
    t.losses.append(loss_of(t.model, tokens(7, 7)).item())
    t.backward(1)
    t.backward(2)
    t.finish()


def skipped_microbatch(t: Trainer) -> None:
    t.step(microbatches=2)


def additional_microbatch(t: Trainer) -> None:
    t.step(microbatches=5)


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("in the middle of backward")


def exception_in_backward(t: Trainer) -> None:
    t.backward(0)
    handle = t.model.blocks[1].register_forward_hook(lambda m, a, out: _Fails.apply(out))
    with pytest.raises(RuntimeError, match="in the middle"):
        t.backward(1)
    handle.remove()
    t.backward(2)
    t.finish()


def exception_in_forward(t: Trainer) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("in the middle of forward")

    handle = t.model.blocks[2].register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        t.backward(0)
    handle.remove()
    t.step()


_kept: list[torch.Tensor] = []


def kept_tensors(t: Trainer) -> None:
    handle = t.model.blocks[1].mlp.register_forward_hook(
        lambda m, a, out: _kept.append(out.detach())
    )
    t.step()
    handle.remove()
    t.step()
    t.losses.extend(k.sum().item() for k in _kept)
    _kept.clear()


def busy_threads(t: Trainer) -> None:
    stop = threading.Event()
    failures: list[str] = []

    def work(seed: int) -> None:
        held: list[torch.Tensor] = []
        while not stop.is_set():
            held.append(torch.full((seed * 100 + len(held),), float(seed)))
            if len(held) > 30:
                if not all(bool((h == seed).all()) for h in held):
                    failures.append(f"thread {seed}: a tensor changed")
                held.clear()

    threads = [threading.Thread(target=work, args=(s,)) for s in (1, 2, 3)]
    for thread in threads:
        thread.start()
    t.step()
    t.step()
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures


def other_modules(t: Trainer) -> None:
    other = torch.nn.Linear(64, 64)
    with torch.no_grad():
        for i, p in enumerate(other.parameters()):
            p.fill_(0.01 * (i + 1))
    t.backward(0)
    x = other(torch.ones(5, 64)).sum()
    x.backward()
    t.losses.append(x.item())
    t.backward(1)
    t.backward(2)
    t.finish()


# Permanent allocations between two iterations.


def averaged_weights(t: Trainer) -> None:
    _kept.extend(p.detach().clone() for p in t.model.parameters())


def replaced_weights(t: Trainer) -> None:
    for p in t.model.parameters():
        p.data = p.data.clone()


def reloaded_optimizer(t: Trainer) -> None:
    t.optimizer.load_state_dict(copy.deepcopy(t.optimizer.state_dict()))


def kept_evaluation(t: Trainer) -> None:
    evaluation(t)
    t.model.eval()
    _kept.append(t.model(tokens(99, 0, rows=5)[:, :-1]))
    t.model.train()
    t.step()
    _kept.clear()


def large_evaluation(t: Trainer) -> None:
    t.model.eval()
    with torch.no_grad():
        for i in range(4):
            t.losses.append(loss_of(t.model, tokens(99, i, rows=60)).item())
            _kept.append(t.model(tokens(99, i, rows=40)[:, :-1]))
    t.model.train()
    t.step()
    t.losses.extend(scores.double().sum().item() for scores in _kept)
    _kept.clear()


DEPARTURES: list[Callable[[Trainer], None]] = [
    other_length,
    evaluation,
    extra_forward,
    skipped_microbatch,
    additional_microbatch,
    exception_in_backward,
    exception_in_forward,
    kept_tensors,
    busy_threads,
    other_modules,
    averaged_weights,
    replaced_weights,
    reloaded_optimizer,
    kept_evaluation,
    large_evaluation,
]


@pytest.mark.parametrize("name", [d.__name__ for d in DEPARTURES])
@isolated
def test_departures_cost_no_value_and_the_hits_come_back(name: str) -> None:
    depart = next(d for d in DEPARTURES if d.__name__ == name)
    plain, planned = twins(recompute=(None, "non-reentrant"))

    def rest(t: Trainer) -> None:
        t.step()
        depart(t)
        t.step()
        depart(t)
        t.step()

    for _ in range(3):
        plain.step()
    rest(plain)
    plain.step()

    stalloc.enable(profiled_plan(planned))
    rest(planned)
    check()
    before = stalloc.memory_stats()
    planned.step()
    check()
    after = stalloc.memory_stats()
    assert_same(plain, planned)
    assert after["hits"] - before["hits"] == after["planned"], "back in step"
    assert after["strays"] == 0


@isolated
def test_an_evaluation_that_needs_more_than_the_pool_makes_it_grow() -> None:
    """The batches are fixed, and activations are recomputed, so the pool is small."""
    plain, planned = twins(recompute="non-reentrant")
    plan = profiled_plan(planned)
    stalloc.enable(plan)
    for _ in range(3):
        plain.step()
    for t in (plain, planned):
        t.step()
        large_evaluation(t)
        large_evaluation(t)
    check()
    assert_same(plain, planned)
    stats = stalloc.memory_stats()
    assert stats["pool"] > 2 * plan.pool
    assert stats["run_peak_reserved"] <= 1.2 * stats["run_peak_allocated"]


@isolated
def test_disabled_and_enabled_in_the_middle_of_a_step() -> None:
    plain, planned = twins()
    plan = profiled_plan(planned)
    for _ in range(3):
        plain.step()

    def rest(t: Trainer, at: Callable[[str], None]) -> None:
        t.step()
        loss = loss_of(t.model, tokens(50, 0))
        at("between forward and backward")
        loss.backward()
        t.losses.append(loss.item())
        del loss
        at("between microbatches")
        t.backward(1)
        t.finish()
        t.step()
        t.step()

    rest(plain, lambda where: None)
    stalloc.enable(plan)
    switch = iter([stalloc.disable, lambda: stalloc.enable(plan)])
    rest(planned, lambda where: next(switch)())
    check()
    stats = stalloc.memory_stats()
    assert stats["hits"] >= 2 * stats["planned"]
    stalloc.disable()
    check()
    assert_same(plain, planned)


@isolated
def test_enabled_twice_and_by_context() -> None:
    plain, planned = twins()
    plan = profiled_plan(planned)
    for _ in range(8):
        plain.step()
    first = stalloc.enable(plan)
    planned.step()
    second = stalloc.enable(plan)
    assert not first.enabled
    assert second.enabled
    planned.step()
    planned.step()
    assert stalloc.memory_stats()["misses"] == 0
    with stalloc.enable(plan) as third:
        assert third.enabled
        planned.step()
    assert not third.enabled
    assert not stalloc.memory_stats()["enabled"]
    planned.step()
    del first, second, third
    assert_same(plain, planned)
    stats = stalloc.memory_stats()
    assert stats["reserved"] == 0, "every pool went back to the device"


@isolated
def test_the_pool_goes_back_but_for_its_blocks() -> None:
    _, planned = twins()
    plan = profiled_plan(planned)
    stalloc.enable(plan)
    loss = loss_of(planned.model, tokens(0, 0))
    value = loss.item()
    stalloc.disable()
    assert 0 < stalloc.memory_stats()["reserved"] < plan.pool, "of the loss and its graph"
    assert loss.item() == value
    del loss
    assert stalloc.memory_stats()["reserved"] == 0


@isolated
def test_plans_survive_a_file() -> None:
    import tempfile
    from pathlib import Path

    plain, planned = twins()
    plan = profiled_plan(planned)
    for _ in range(5):
        plain.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        plan.save(path)
        stalloc.enable(path)
    planned.step()
    planned.step()
    assert stalloc.memory_stats()["misses"] == 0
    assert_same(plain, planned)
