"""A trainer and another engine that take turns, on the CPU with real tensors."""

from __future__ import annotations

import threading

import pytest
import torch
from isolation import isolated

import stalloc
from stalloc import _core
from stalloc.engines import Engine, engine_of

MIB = 1 << 20


class LLM:
    """Stands in for vLLM's LLM in sleep mode: its documented methods, and tensors for its cache."""

    def __init__(self, size: int = 24 * MIB) -> None:
        self._size = size
        self._cache: list[torch.Tensor] = []

    @property
    def awake(self) -> bool:
        return bool(self._cache)

    def wake_up(self, tags: list[str] | None = None) -> None:
        assert not self.awake
        self._cache = [torch.zeros(self._size // 16) for _ in range(4)]

    def sleep(self, level: int = 1) -> None:
        assert self.awake
        self._cache.clear()

    def generate(self, weight: torch.Tensor, rows: int) -> torch.Tensor:
        assert self.awake
        return torch.tanh(torch.arange(rows * 512.0).view(rows, 512) / rows + weight.sum())


class Trainer:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self, x: torch.Tensor) -> None:
        self.model(x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        stalloc.step()

    def enable(self, rows: int = 512) -> stalloc.Plan:
        with stalloc.profile(self.model) as prof:
            for _ in range(3):
                self.step(torch.ones(rows, 512))
        plan = prof.plan()
        stalloc.enable(plan, model=self.model)
        for _ in range(2):
            self.step(torch.ones(rows, 512))
        return plan


def _reserved() -> int:
    return _core.runtime("cpu").statistics()["reserved"]


def _is_released(plan: stalloc.Plan) -> bool:
    return _reserved() < plan.pool


def _weights_after(switches: int, planned: bool) -> list[torch.Tensor]:
    trainer, llm = Trainer(), LLM()
    if planned:
        plan = trainer.enable()
    else:
        for _ in range(5):
            trainer.step(torch.ones(512, 512))
    for i in range(switches):
        with stalloc.phase("rollout", engine=llm):
            samples = llm.generate(trainer.model[0].weight.detach(), rows=512 - 64 * (i % 3))
            if planned:
                stats = stalloc.memory_stats()
                assert plan.pool > 8 * MIB
                assert stats["reserved"] - stats["allocated"] <= 8 * MIB
        assert not llm.awake
        with stalloc.phase("train"):
            trainer.step(samples)
        del samples
        if planned:
            stats = stalloc.memory_stats()
            assert stats["reserved"] - stats["pool"] - stats["fallback_allocated"] <= 8 * MIB
    if planned:
        stats = stalloc.memory_stats()
        assert stats["run_peak_reserved"] <= 1.03 * stats["run_peak_allocated"]
        figures = stalloc.phase_stats()["rollout"]
        assert (figures["entered"], figures["released"], figures["kept"]) == (switches, switches, 0)
        assert "rollout, 100 times" in stalloc.memory_summary()
        stalloc.disable()
    return [p.detach().clone() for p in trainer.model.parameters()]


@isolated
def test_100_switches_change_no_value_and_strand_nothing() -> None:
    with_plan, without = _weights_after(100, True), _weights_after(100, False)
    assert all(torch.equal(a, b) for a, b in zip(with_plan, without, strict=True))


@isolated
def test_the_innermost_phase_counts() -> None:
    trainer = Trainer()
    plan = trainer.enable()
    with stalloc.phase("rollout"):
        assert _is_released(plan)
        with stalloc.phase("sync"):
            assert _is_released(plan)
        with stalloc.phase("train"):
            assert not _is_released(plan)
            with stalloc.phase("sync"):
                assert _is_released(plan)
            assert not _is_released(plan)
        assert _is_released(plan)
    assert not _is_released(plan)
    with stalloc.phase("train"):
        pass
    assert not _is_released(plan)


@isolated
def test_a_phase_of_this_process_is_lent_the_pool() -> None:
    trainer = Trainer()
    samples = torch.ones(512, 512)

    def iterate(*, lends: bool) -> None:
        """Samples are half of the iteration's requests, and all of them are the plan's."""
        nonlocal samples
        with stalloc.phase("rollout", lends=lends), torch.no_grad():
            samples = torch.tanh(trainer.model(samples))
        trainer.step(samples)

    with stalloc.profile(trainer.model) as prof:
        for _ in range(3):
            iterate(lends=True)
    plan = prof.plan()
    stalloc.enable(plan, model=trainer.model)
    iterate(lends=True)
    before = stalloc.memory_stats()
    with stalloc.phase("rollout", lends=True):
        assert not _is_released(plan)
        with stalloc.phase("sync"):
            assert _is_released(plan)
        assert not _is_released(plan)
    for _ in range(3):
        iterate(lends=True)
    after = stalloc.memory_stats()
    assert after["hits"] - before["hits"] == 3 * after["planned"]
    assert after["run_peak_reserved"] <= 1.03 * after["run_peak_allocated"]
    assert stalloc.phase_stats()["rollout"]["released"] == 0
    iterate(lends=False)
    lost = stalloc.memory_stats()
    assert lost["hits"] - after["hits"] < after["planned"]


@isolated
def test_one_object_can_be_entered_again() -> None:
    plan = Trainer().enable()
    rollout = stalloc.phase("rollout")
    for _ in range(2):
        with rollout, rollout:
            assert _is_released(plan)
        assert not _is_released(plan)


@isolated
def test_an_exception_ends_the_phase() -> None:
    plan, llm = Trainer().enable(), LLM()

    def roll_out() -> None:
        with stalloc.phase("rollout", engine=llm):
            assert llm.awake
            raise KeyError

    with pytest.raises(KeyError):
        roll_out()
    assert not llm.awake
    assert not _is_released(plan)


@isolated
def test_an_engine_that_cannot_wake_leaves_the_pool_reserved() -> None:
    plan = Trainer().enable()

    def fail() -> None:
        raise RuntimeError("no memory for the cache")

    with (
        pytest.raises(RuntimeError, match="no memory for the cache"),
        stalloc.phase("rollout", engine=Engine(None, fail, fail)),
    ):
        pytest.fail("the phase began")
    assert not _is_released(plan)
    assert stalloc.phase_stats()["rollout"]["released"] == 1


@isolated
def test_an_engine_wakes_once_in_nested_phases() -> None:
    llm = LLM()
    with stalloc.phase("sync", engine=llm), stalloc.phase("rollout", engine=llm):
        assert llm.awake
    assert not llm.awake


@isolated
def test_an_engine_sleeps_though_a_thread_ended_in_its_phase() -> None:
    llm = LLM()
    entered, done = threading.Event(), threading.Event()

    def enter() -> None:
        stalloc.phase("rollout", engine=llm).__enter__()
        entered.set()
        done.wait()

    thread = threading.Thread(target=enter)
    thread.start()
    entered.wait()
    with stalloc.phase("rollout", engine=llm):
        done.set()
        thread.join()
    assert not llm.awake


@isolated
def test_one_object_serves_several_threads() -> None:
    plan = Trainer().enable()
    rollout = stalloc.phase("rollout")
    entered, done = threading.Event(), threading.Event()

    def roll_out() -> None:
        with rollout:
            entered.set()
            done.wait()

    thread = threading.Thread(target=roll_out)
    thread.start()
    entered.wait()
    with rollout:
        done.set()
        thread.join()
        with stalloc.phase("train"):
            assert not _is_released(plan)
        assert _is_released(plan), "this thread is in its phase"
    assert not _is_released(plan)


@isolated
def test_only_the_memory_of_tensors_stays() -> None:
    trainer = Trainer()
    plan = trainer.enable()
    for i in range(1, 4):
        y = trainer.model(torch.full((512, 512), float(i)))
        loss = y.square().mean()
        loss.backward()
        trainer.optimizer.step()
        y, expected = y.detach(), y.tolist()
        with stalloc.phase("rollout"):
            stats = stalloc.memory_stats()
            assert stats["reserved"] - stats["allocated"] <= MIB
            assert any(p.grad is not None for p in trainer.model.parameters())
            assert y.tolist() == expected
        assert stalloc.memory_stats()["reserved"] >= plan.pool
        assert y.tolist() == expected
        trainer.optimizer.zero_grad()
        del y, loss
        stalloc.step()
        figures = stalloc.phase_stats()["rollout"]
        assert (figures["released"], figures["kept"]) == (i, i)
        assert 0 < figures["most_kept"] < plan.pool
    before = stalloc.memory_stats()
    trainer.step(torch.ones(512, 512))
    after = stalloc.memory_stats()
    misses = after["planned"] - (after["hits"] - before["hits"])
    assert misses <= after["planned"] // 200, (
        "small ones that lived at a switch lie beside the pool"
    )


@isolated
def test_a_phase_says_if_much_of_the_pool_stays() -> None:
    trainer = Trainer()
    plan = trainer.enable()
    y = trainer.model(torch.ones(512, 512))
    y.square().mean().backward()
    with (
        pytest.warns(stalloc.StallocWarning, match=r"begins while tensors .* therefore stay"),
        stalloc.phase("rollout"),
    ):
        assert plan.pool // 4 < _reserved() < plan.pool
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    del y
    stalloc.step()
    with stalloc.phase("rollout"):
        pass
    figures = stalloc.phase_stats()["rollout"]
    assert (figures["released"], figures["kept"]) == (2, 1)


@isolated
def test_a_tensor_that_goes_meanwhile_leaves_the_pool_whole() -> None:
    trainer = Trainer()
    plan = trainer.enable()
    y = trainer.model(torch.ones(512, 512)).detach()
    with pytest.raises(stalloc.StallocError, match="tensors lie in it"):
        stalloc.release_pool()
    left = stalloc.release_pool(partly=True)
    assert 0 < left < plan.pool
    assert stalloc.release_pool(partly=True) == left
    del y
    trainer.optimizer.zero_grad()
    trainer.step(torch.ones(512, 512))
    stalloc.acquire_pool()
    for _ in range(2):
        trainer.step(torch.ones(512, 512))
    before = stalloc.memory_stats()
    trainer.step(torch.ones(512, 512))
    after = stalloc.memory_stats()
    assert after["hits"] - before["hits"] == after["planned"]
    assert stalloc.release_pool(partly=True) == 0


@isolated
def test_training_in_another_thread_keeps_the_pool() -> None:
    plan = Trainer().enable()
    trains, done = threading.Event(), threading.Event()

    def train() -> None:
        with stalloc.phase("train"):
            trains.set()
            done.wait()

    thread = threading.Thread(target=train)
    thread.start()
    trains.wait()
    with stalloc.phase("rollout"):
        assert not _is_released(plan)
        done.set()
        thread.join()
        with stalloc.phase("sync"):
            assert _is_released(plan)
    assert not _is_released(plan)


@isolated
def test_many_threads_leave_the_pool_reserved() -> None:
    plan = Trainer().enable()

    def work(names: list[str]) -> None:
        for _ in range(20):
            for name in names:
                with stalloc.phase(name):
                    pass

    names = ["rollout", "train", "sync"]
    threads = [threading.Thread(target=work, args=(names[i:] + names[:i],)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not _is_released(plan)
    assert {n: s["entered"] for n, s in stalloc.phase_stats().items()} == dict.fromkeys(names, 60)


@isolated
def test_a_phase_that_is_never_left_gives_way_to_training() -> None:
    plan = Trainer().enable()

    def enter() -> None:
        stalloc.phase("rollout").__enter__()
        assert _is_released(plan)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    with stalloc.phase("train"):
        assert not _is_released(plan)
    assert not _is_released(plan)


@isolated
def test_a_pool_that_the_program_released_stays_released() -> None:
    plan = Trainer().enable()
    stalloc.release_pool()
    with stalloc.phase("train"):
        assert not _is_released(plan), "training needs it"
    stalloc.disable()
    with stalloc.phase("rollout"):
        stalloc.enable(plan)
    assert not _is_released(plan)


def test_bad_phases_and_engines_are_refused() -> None:
    with pytest.raises(ValueError, match="none is lent to it"):
        stalloc.phase("rollout", engine=LLM(), lends=True)
    with pytest.raises(ValueError, match="the phases are 'train', 'sync', 'rollout', not 'eval'"):
        stalloc.phase("eval")
    with pytest.raises(TypeError, match="list is no engine that can give back its memory"):
        stalloc.phase("rollout", engine=[])


def test_engines_are_known_by_their_methods() -> None:
    calls: list[object] = []

    class SGLang:
        """Stands in for SGLang's Engine."""

        def resume_memory_occupation(self) -> None:
            calls.append("resume")

        def release_memory_occupation(self, tags: list[str]) -> None:
            calls.append(tags)

    engine = engine_of(SGLang(), tags=["kv_cache"])
    engine.wake()
    engine.sleep()
    assert calls == ["resume", ["kv_cache"]]
    assert engine_of(engine) is engine
