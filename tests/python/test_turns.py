"""Workers of verl, OpenRLHF, SkyRL and NeMo-RL, each a stand-in with their methods by hand."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import torch
from isolation import isolated
from test_phases import Trainer

import stalloc
import stalloc.integrations.nemo_rl
import stalloc.integrations.openrlhf
import stalloc.integrations.skyrl
import stalloc.integrations.verl
from stalloc import _core


class Worker(Trainer):
    """Trains under a plan. Notes how much of its pool is there when its methods run."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = self.enable()
        self.fails = False

    @property
    def has_pool(self) -> bool:
        return bool(_core.runtime("cpu").statistics()["reserved"] >= self.plan.pool)

    def train(self) -> int:
        """The planned requests of an iteration that were not served as planned."""
        for _ in range(2):
            before = stalloc.memory_stats()
            self.step(torch.ones(512, 512))
            after = stalloc.memory_stats()
        return int(after["planned"] - (after["hits"] - before["hits"]))

    def may_fail(self) -> None:
        if self.fails:
            raise RuntimeError("no memory for the cache")


class VerlWorker(Worker):
    """verl's ActorRolloutRefWorker, 0.7 and later."""

    def __init__(self, backend: str = "naive") -> None:
        super().__init__()
        engine = SimpleNamespace(backend=backend)
        self.config = SimpleNamespace(rollout=SimpleNamespace(checkpoint_engine=engine))
        self.had_pool = False

    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> None:
        self.had_pool = self.has_pool  # the engine wakes here
        await asyncio.sleep(0)
        self.may_fail()

    def compute_log_prob(self, data: int) -> int:
        assert self.has_pool
        return data

    def update_actor(self, data: int) -> int:
        return data + self.train()


class OldVerlWorker(Worker):
    """verl's ActorRolloutRefWorker, 0.6."""

    async def rollout_mode(self) -> None:
        assert not self.has_pool, "the engine wakes here"
        await asyncio.sleep(0)
        self.may_fail()

    async def trainer_mode(self) -> None:
        assert not self.has_pool
        await asyncio.sleep(0)


class OpenRLHFWorker(Worker):
    """OpenRLHF's PolicyModelActor."""

    def offload_states(self) -> None:
        self.may_fail()

    def reload_states(self) -> None:
        pass


class SkyRLWorker(Worker):
    """SkyRL's FSDPPolicyWorkerBase."""

    def offload_to_cpu(
        self,
        pin_memory: bool = True,
        non_blocking: bool = True,
        offload_optimizer: bool = True,
        offload_model: bool = True,
    ) -> None:
        self.may_fail()

    def backload_to_gpu(
        self,
        non_blocking: bool = True,
        backload_optimizer: bool = True,
        backload_model: bool = True,
    ) -> None:
        pass


class NeMoWorker(Worker):
    """NeMo-RL's DTensorPolicyWorker."""

    def offload_before_refit(self) -> None:
        self.may_fail()

    def offload_after_refit(self) -> None:
        self.offload_before_refit()

    def prepare_for_training(self) -> None:
        pass

    def prepare_for_lp_inference(self) -> None:
        pass


@isolated
def test_verls_engine_has_the_memory_of_the_pool_in_its_turns() -> None:
    worker = VerlWorker()
    for _ in range(2):
        stalloc.integrations.verl.share(worker)
    for turn in range(3):
        asyncio.run(worker.update_weights(global_steps=turn))
        assert not worker.had_pool
        assert not worker.has_pool, "the engine samples"
        assert worker.compute_log_prob(3) == 3
        assert worker.update_actor(0) == 0, "all planned requests are served"
    worker.fails = True
    with pytest.raises(RuntimeError, match="no memory for the cache"):
        asyncio.run(worker.update_weights())
    assert worker.has_pool, "the turn has not begun"
    worker.fails = False
    asyncio.run(worker.update_weights(3, "nccl"))
    assert worker.had_pool, "the engine has other devices"
    assert stalloc.phase_stats()["rollout"]["entered"] == 4


@isolated
def test_verls_engine_on_other_devices_leaves_the_pool() -> None:
    worker = VerlWorker(backend="nixl")
    stalloc.integrations.verl.share(worker)
    asyncio.run(worker.update_weights(0))
    assert worker.had_pool
    asyncio.run(worker.update_weights(1, mode="naive"))
    assert not worker.had_pool
    assert worker.update_actor(0) == 0


@isolated
def test_an_older_verls_engine_has_the_memory_of_the_pool_in_its_turns() -> None:
    worker = OldVerlWorker()
    for _ in range(2):
        stalloc.integrations.verl.share(worker)
    for _ in range(3):
        asyncio.run(worker.rollout_mode())
        assert not worker.has_pool
        asyncio.run(worker.trainer_mode())
        assert worker.has_pool
        assert worker.train() == 0
    worker.fails = True
    with pytest.raises(RuntimeError, match="no memory for the cache"):
        asyncio.run(worker.rollout_mode())
    assert worker.has_pool, "the turn has not begun"
    assert stalloc.phase_stats()["rollout"]["entered"] == 4


@isolated
def test_openrlhfs_engine_has_the_memory_of_the_pool_in_its_turns() -> None:
    worker = OpenRLHFWorker()
    for _ in range(2):
        stalloc.integrations.openrlhf.share(worker)
    for _ in range(3):
        worker.offload_states()
        assert not worker.has_pool
        worker.reload_states()
        assert worker.has_pool
        assert worker.train() == 0
    worker.fails = True
    with pytest.raises(RuntimeError, match="no memory for the cache"):
        worker.offload_states()
    assert worker.has_pool
    assert stalloc.phase_stats()["rollout"]["entered"] == 3


@isolated
def test_skyrls_engine_has_the_memory_of_the_pool_in_its_turns() -> None:
    worker = SkyRLWorker()
    stalloc.integrations.skyrl.share(worker)
    worker.backload_to_gpu()
    for _ in range(3):
        worker.offload_to_cpu(offload_optimizer=True, offload_model=False)
        assert not worker.has_pool
        worker.offload_to_cpu(offload_optimizer=False, offload_model=True)
        worker.backload_to_gpu(backload_optimizer=False)
        assert worker.has_pool
        worker.backload_to_gpu()
        assert worker.train() == 0
    assert stalloc.phase_stats()["rollout"]["entered"] == 3


@isolated
def test_nemo_rls_engine_has_the_memory_of_the_pool_in_its_turns() -> None:
    worker = NeMoWorker()
    stalloc.integrations.nemo_rl.share(worker)
    for end in (worker.prepare_for_lp_inference, worker.prepare_for_training):
        worker.offload_before_refit()
        assert not worker.has_pool
        worker.offload_after_refit()
        assert not worker.has_pool
        end()
        assert worker.has_pool
        assert worker.train() == 0
    assert stalloc.phase_stats()["rollout"]["entered"] == 2


def test_other_workers_are_refused() -> None:
    for module, lacks in (
        (stalloc.integrations.verl, r"update_weights\(\)"),
        (stalloc.integrations.openrlhf, r"offload_states\(\)"),
        (stalloc.integrations.skyrl, r"offload_to_cpu\(\)"),
        (stalloc.integrations.nemo_rl, r"offload_before_refit\(\), offload_after_refit\(\)"),
    ):
        with pytest.raises(stalloc.StallocError, match=f"object is no .*: it lacks {lacks}"):
            module.share(object())
