"""Profiling, enabling and disabling: refusals, messages and figures."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from isolation import isolated
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from trace_documents import TraceWriter, to_trace
from training import Model, Trainer, assert_same, loss_of, profiled_plan, tokens, twins

import stalloc
from stalloc import _core
from stalloc.hooks import TrainingHooks


@isolated
def test_a_plan_of_another_model_is_refused() -> None:
    _, trainer = twins()
    plan = profiled_plan(trainer)
    other = Trainer(Model(width=32))
    with pytest.raises(stalloc.PlanError, match=r"profiled with the model Model.*profile again"):
        stalloc.enable(plan, model=other.model)
    assert not stalloc.memory_stats()["enabled"]


@isolated
def test_a_plan_of_another_model_is_refused_at_its_first_forward() -> None:
    _, trainer = twins()
    plan = profiled_plan(trainer)
    other = Trainer(Model(width=32))
    stalloc.enable(plan)
    with pytest.raises(stalloc.PlanError, match="profiled with the model"):
        other.step()
    assert not stalloc.memory_stats()["enabled"]
    other.step()


@isolated
def test_a_part_that_is_called_by_itself_is_not_taken_for_the_model() -> None:
    plain, trainer = twins()
    plan = profiled_plan(trainer)

    def rest(t: Trainer) -> list[int]:
        assert isinstance(t.model, Model)
        t.model.blocks[0](torch.ones(2, 32, 64)).sum().backward()
        t.optimizer.zero_grad()
        misses = []
        for _ in range(4):
            t.step()
            misses.append(stalloc.memory_stats()["misses"])
        return misses

    for _ in range(3):
        plain.step()
    rest(plain)
    with stalloc.enable(plan) as session:
        misses = rest(trainer)
        assert session.enabled
        assert session.refusal is None
        assert stalloc.memory_stats()["hits"] > 3 * len(plan.decisions.size)
    assert len(set(misses)) == 1, "after the first iteration there are none"
    assert_same(plain, trainer)


@isolated
@pytest.mark.parametrize("updates", ["optimizer", "own"])
def test_a_part_that_is_trained_alone_is_another_model(updates: str) -> None:
    _, trainer = twins()
    plan = profiled_plan(trainer)
    other = Trainer(Model(layers=2))

    def step() -> None:
        if updates == "optimizer":
            other.step()
        else:
            other.backward(0)
            stalloc.step()

    stalloc.enable(plan)
    # Hooks of others come after those that the plan's end removes.
    steps: list[object] = []
    register_optimizer_step_post_hook(lambda optimizer, *_: steps.append(optimizer))
    step()
    step()
    with pytest.raises(stalloc.PlanError, match=r"not called.*17 tensors.*enable\(plan, model="):
        step()
    assert not stalloc.memory_stats()["enabled"]
    step()
    assert len(steps) == (3 if updates == "optimizer" else 0)


@isolated
def test_a_warm_up_does_not_end_the_wait_for_the_model() -> None:
    def start() -> tuple[Trainer, Trainer]:
        torch.manual_seed(0)
        return Trainer(Model(layers=3)), Trainer(Model())

    with stalloc.profile(device="cpu") as prof:
        for trainer in start():
            for _ in range(4):
                trainer.step()
    warm, trainer = start()
    with stalloc.enable(prof.plan()) as session:
        assert isinstance(warm.model, Model)
        warm.model.blocks[0](torch.ones(2, 32, 64)).sum().backward()
        for _ in range(4):
            warm.step()
        for _ in range(4):
            trainer.step()
        assert session.refusal is None
        assert stalloc.memory_stats()["hits"] > 0


@pytest.mark.parametrize("warm_steps", [1, 2])
@isolated
def test_a_model_that_is_thrown_away_first_is_another_in_profile_and_plan(
    warm_steps: int,
) -> None:
    def start() -> Trainer:
        torch.manual_seed(0)
        warm = Trainer(Model(layers=3))
        for _ in range(warm_steps):
            warm.backward(0)
            warm.optimizer.step()
        return Trainer(Model())

    with stalloc.profile(device="cpu") as prof:
        trainer = start()
        for _ in range(5):
            trainer.step()
    assert prof.model is trainer.model
    plan = prof.plan()
    plain = start()
    for _ in range(5):
        plain.step()
    with stalloc.enable(plan, startup=True) as session:
        planned = start()
        misses = []
        for _ in range(5):
            planned.step()
            misses.append(stalloc.memory_stats()["misses"])
        assert session.refusal is None
        stats = stalloc.memory_stats()
    assert len(set(misses)) == 1, f"after the first iteration there are none: {misses}"
    assert stats["hits"] > 4 * len(plan.decisions.size)
    assert stats["startup_requests"] > 0.9 * stats["startup"] > 0
    assert_same(plain, planned)


def count_persistent(plan: stalloc.Plan) -> int:
    return len(json.loads(plan._core.to_json())["persistent"]["size"])


@pytest.mark.parametrize("warm_up", ["model", "batch"])
@isolated
def test_model_trained_only_first_in_a_profile_leaves_no_mark_on_the_plan(
    warm_up: str,
) -> None:
    _, trainer = twins()
    usual = profiled_plan(trainer)
    with stalloc.profile(device="cpu") as prof:
        other = Trainer(Model(layers=3)) if warm_up == "model" else trainer
        for _ in range(2):
            other.step(length=16)
        for _ in range(4):
            trainer.step()
    plan = prof.plan()
    # The first iterations have another length, so data and loss lie beside the pool.
    assert len(plan.decisions) + count_persistent(plan) == len(usual.decisions)
    assert count_persistent(usual) == 0
    with stalloc.enable(plan, model=trainer.model):
        trainer.step()
        assert stalloc.memory_stats()["misses"] == 0


class Adversaries:
    """Generator and discriminator, which step in turn; the discriminator is called first.

    It steps `rounds` times for each step of the generator.
    """

    def __init__(self, rounds: int = 1) -> None:
        torch.manual_seed(0)
        self.rounds = rounds
        self.generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 96))
        self.discriminator = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 1))
        self.optimizers = [
            torch.optim.Adam(m.parameters()) for m in (self.discriminator, self.generator)
        ]
        self.losses: list[float] = []

    def cycle(self) -> None:
        for _ in range(self.rounds):
            real, noise = torch.randn(32, 96), torch.randn(32, 16)
            self.optimizers[0].zero_grad()
            self._judge(real, 1.0)
            fake = self.generator(noise)
            self._judge(fake.detach(), 0.0)
            self.optimizers[0].step()
        self.optimizers[1].zero_grad()
        self._judge(fake, 1.0)
        self.optimizers[1].step()

    def _judge(self, batch: Tensor, target: float) -> None:
        logits = self.discriminator(batch)
        loss = nn.functional.binary_cross_entropy_with_logits(
            logits, torch.full_like(logits, target)
        )
        loss.backward()
        self.losses.append(loss.item())


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("startup", [False, True])
@isolated
def test_networks_that_step_in_turn_are_one_iteration_where_the_loop_says_so(
    startup: bool, rounds: int
) -> None:
    with stalloc.profile(device="cpu") as prof:
        pair = Adversaries(rounds)
        for _ in range(3):
            pair.cycle()
            stalloc.step()
    assert len(prof.trace.iterations) == 3 + 1
    plan = prof.plan()
    assert len(plan.groups) == 0
    plain = Adversaries(rounds)
    for _ in range(4):
        plain.cycle()
    with stalloc.enable(plan, startup=startup):
        pair = Adversaries(rounds)
        misses = []
        for _ in range(4):
            pair.cycle()
            stalloc.step()
            misses.append(stalloc.memory_stats()["misses"])
        stats = stalloc.memory_stats()
    assert stats["iterations"] == 4
    assert misses[1:] == misses[:1] * 3, "after the first iteration there are none"
    if startup:
        assert misses == [0] * 4
        assert stats["startup_requests"] == stats["startup"] > 0
    assert pair.losses == plain.losses


@pytest.mark.parametrize("iterations", [None, 3])
@isolated
def test_the_slower_network_ends_the_iteration_where_nobody_says_so(iterations: int | None) -> None:
    with stalloc.profile(device="cpu", iterations=iterations) as prof:
        pair = Adversaries(rounds=5)
        for _ in range(4):
            pair.cycle()
    assert len(prof.trace.iterations) == 3 + 1
    plan = prof.plan()
    assert len(plan.groups) == 0
    with stalloc.enable(plan):
        for _ in range(5):
            pair.cycle()
        stats = stalloc.memory_stats()
    assert stats["iterations"] == 4
    assert stats["misses"] == 0
    plain = Adversaries(rounds=5)
    for _ in range(9):
        plain.cycle()
    assert pair.losses == plain.losses


@isolated
def test_steps_that_were_to_come_early_and_do_not_cost_one_iteration() -> None:
    with stalloc.profile(device="cpu") as prof:
        pair = Adversaries()
        for _ in range(3):
            pair.cycle()
            stalloc.step()
    with stalloc.enable(prof.plan()):
        for _ in range(4):
            pair.cycle()
        assert stalloc.memory_stats()["iterations"] == 3, "nobody says where they end"


@isolated
def test_a_plan_of_another_batch_size_is_refused() -> None:
    _, trainer = twins()
    plan = profiled_plan(trainer)
    stalloc.enable(plan)
    with pytest.raises(stalloc.PlanError, match=r"\[2,32\].*\[2,48\]"):
        trainer.step(length=48)
    assert not stalloc.memory_stats()["enabled"]
    trainer.step(length=48)


@isolated
def test_plan_that_does_not_fit_only_warns_when_not_strict() -> None:
    plain, trainer = twins()
    plan = profiled_plan(trainer)
    for _ in range(3):
        plain.step()
    stalloc.enable(plan, strict=False)
    with pytest.warns(stalloc.StallocWarning, match="goes on unplanned"):
        trainer.step(length=48)
    plain.step(length=48)
    trainer.step()
    plain.step()
    assert_same(plain, trainer)
    assert not stalloc.memory_stats()["enabled"]


@isolated
def test_a_plan_of_another_torch_is_refused() -> None:
    _, trainer = twins()
    plan = profiled_plan(trainer)
    plan.info = {**plan.info, "torch": "1.0.0"}
    with pytest.raises(stalloc.PlanError, match=r"torch 1\.0\.0"):
        stalloc.enable(plan)
    with pytest.warns(stalloc.StallocWarning, match=r"torch 1\.0\.0"):
        session = stalloc.enable(plan, strict=False)
    assert not session.enabled
    assert not session.startup
    with session:
        trainer.step()
        session.follow(trainer.model, "another problem")
        session.give_up("another problem")
    assert session.followed
    assert "torch 1.0.0" in str(session.refusal)


@isolated
def test_a_plan_of_too_fine_an_alignment_is_refused() -> None:
    _, trainer = twins()
    with stalloc.profile(trainer.model) as prof:
        for _ in range(2):
            trainer.step()
    with pytest.raises(stalloc.PlanError, match="multiple of 64"):
        stalloc.enable(prof.plan(alignment=1))
    assert not _core.runtime("cpu").enabled
    trainer.step()


@isolated
def test_a_plan_of_too_coarse_an_alignment_is_refused() -> None:
    _, trainer = twins()
    with stalloc.profile(trainer.model) as prof:
        for _ in range(2):
            trainer.step()
    page = os.sysconf("SC_PAGESIZE")
    with pytest.raises(stalloc.PlanError, match=f"multiples of {page} only"):
        stalloc.enable(prof.plan(alignment=2 * page))
    assert not _core.runtime("cpu").enabled
    with stalloc.enable(prof.plan(alignment=page)):
        trainer.step()


@isolated
def test_a_request_beyond_all_sizes_is_torchs_to_refuse() -> None:
    _, trainer = twins()
    plan = profiled_plan(trainer)

    def refusal() -> str:
        with pytest.raises(RuntimeError) as error:
            torch.empty((1 << 63) - 1, dtype=torch.uint8)
        return str(error.value)

    before = refusal()
    assert "allocate" in before
    with stalloc.enable(plan):
        assert refusal() == before
        trainer.step()


@isolated
def test_an_end_that_is_told_late_joins_no_iterations() -> None:
    _, trainer = twins()

    def profiled(says: bool) -> stalloc.Profile:
        with stalloc.profile(trainer.model) as prof:
            for _ in range(4):
                trainer.backward(0)
                trainer.optimizer.step()
                trainer.optimizer.zero_grad()
            if says:
                prof.step()
        return prof

    plain, late = profiled(False), profiled(True)
    assert len(late.trace.iterations) == len(plain.trace.iterations) + 1
    # The last one is planned for only where it has ended: the losses that are kept differ.
    assert abs(len(late.plan().decisions) - len(plain.plan().decisions)) <= 2


@isolated
def test_damaged_info_is_a_plan_error() -> None:
    _, trainer = twins()
    plan = profiled_plan(trainer)
    for damaged in ("[1]", "{", '"Experts"'):
        plan.info = {**plan.info, "dynamic": damaged}
        with pytest.raises(stalloc.PlanError, match="key dynamic"):
            stalloc.enable(plan)
        plan.info = {**plan.info, "dynamic": "[]", "inputs": damaged}
        with pytest.raises(stalloc.PlanError, match="key inputs"):
            stalloc.enable(plan)
        plan.info = {**plan.info, "inputs": "[]", "early_ends": damaged}
        with pytest.raises(stalloc.PlanError, match="key early_ends"):
            stalloc.enable(plan)
        plan.info = {**plan.info, "early_ends": "1"}
    plan.info = {**plan.info, "device": "nowhere"}
    with pytest.raises(stalloc.StallocError, match="nowhere"):
        stalloc.enable(plan)


def huge_plan() -> stalloc.Plan:
    writer = TraceWriter()
    for _ in range(3):
        writer.phase("forward", 0)
        writer.free(writer.alloc(1 << 46))
        writer.step()
    return to_trace(writer.document()).plan()


@isolated
def test_a_pool_that_cannot_be_reserved_changes_nothing() -> None:
    _, trainer = twins()
    plan = profiled_plan(trainer)
    huge = huge_plan()
    stalloc.enable(plan)
    trainer.step()
    with pytest.raises(stalloc.OutOfMemory, match=r"64\.0 TiB cannot be reserved: .* has .* left"):
        stalloc.enable(huge)
    trainer.step()
    stats = stalloc.memory_stats()
    assert stats["enabled"]
    assert stats["pool"] == plan.pool


@isolated
@pytest.mark.parametrize("how", ["another model", "damaged", "no room", "hooks"])
def test_an_enable_that_fails_leaves_the_plan_in_force(how: str) -> None:
    plain, trainer = twins()
    plan = profiled_plan(trainer)
    bad = stalloc.Plan.from_json(plan._core.to_json(), "a copy")
    if how == "another model":
        bad.info = {**plan.info, "model": "Other(1)"}
    elif how == "damaged":
        bad.info = {**plan.info, "inputs": "{"}
    elif how == "no room":
        bad = huge_plan()
    for _ in range(5):
        plain.step()
    with stalloc.enable(plan, model=trainer.model) as session:
        trainer.step()
        with pytest.MonkeyPatch.context() as patch:
            if how == "hooks":
                patch.setattr(TrainingHooks, "_watch", _fail_once(patch))
            with pytest.raises((stalloc.StallocError, ZeroDivisionError)):
                stalloc.enable(bad, model=trainer.model)
        assert session.enabled
        before = stalloc.memory_stats()
        assert before["iterations"] == (0 if how == "hooks" else 1)
        trainer.step()
        after = stalloc.memory_stats()
        assert after["enabled"]
        assert after["iterations"] == before["iterations"] + 1
        assert after["hits"] - before["hits"] >= 0.9 * len(plan.decisions)
    assert_same(plain, trainer)


def _fail_once(patch: pytest.MonkeyPatch) -> Callable[..., None]:
    def fail(*_: object) -> None:
        patch.undo()
        raise ZeroDivisionError

    return fail


@isolated
@pytest.mark.parametrize("start", [stalloc.Profile.__enter__, stalloc.enable])
def test_a_start_that_fails_half_way_is_undone(start: Callable[[Any], object]) -> None:
    _, trainer = twins()
    plan = profiled_plan(trainer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingHooks, "_discover", _fail_once(patch))
        with pytest.raises(ZeroDivisionError):
            start(plan if start is stalloc.enable else stalloc.profile(device="cpu"))
    runtime = _core.runtime("cpu")
    assert not runtime.recording
    assert not runtime.enabled
    trainer.step()
    profiled_plan(trainer)
    with stalloc.enable(plan):
        trainer.step()


@isolated
def test_profiles_and_plans_keep_out_of_each_others_way() -> None:
    _, trainer = twins()
    plan = profiled_plan(trainer)
    with stalloc.profile(trainer.model) as prof:
        with pytest.raises(stalloc.StallocError, match="being recorded"):
            stalloc.enable(plan)
        with (
            pytest.raises(stalloc.StallocError, match="being recorded already"),
            stalloc.profile(trainer.model),
        ):
            pass
        with pytest.raises(stalloc.StallocError, match="block ends"):
            _ = prof.trace
        trainer.step()
        trainer.step()
    assert len(prof.trace.requests) > 0
    for device in ("cpu", "meta"):
        with (
            stalloc.enable(plan),
            pytest.raises(stalloc.StallocError, match=r"enabled on cpu; call stalloc.disable\(\)"),
            stalloc.profile(device=device),
        ):
            pass


@isolated
def test_a_profile_without_an_iteration_says_so() -> None:
    _, trainer = twins()
    with stalloc.profile(trainer.model) as prof:
        trainer.backward(0)
    with pytest.raises(stalloc.TraceError, match="no complete iteration"):
        prof.plan()


@isolated
def test_an_exception_in_the_profiled_block_leaves_torch_as_it_was() -> None:
    _, trainer = twins()

    def fail() -> None:
        with stalloc.profile(trainer.model):
            trainer.step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not _core.runtime("cpu").recording
    profiled_plan(trainer)


@isolated
def test_unknown_devices_and_wrong_types_are_named() -> None:
    with pytest.raises(stalloc.StallocError, match="'xla'"):
        stalloc.profile(device="xla")
    with pytest.raises(TypeError, match="int"):
        stalloc.enable(3)  # type: ignore[arg-type]
    with pytest.raises(stalloc.StallocError, match="no device 'nonsense'"):
        stalloc.profile(device="nonsense")
    with pytest.raises(TypeError, match=r"`model` is a torch.nn.Module or None, not str"):
        stalloc.profile("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"`model` is a torch.nn.Module or None, not str"):
        stalloc.enable(huge_plan(), model="x")  # type: ignore[arg-type]
    mixed = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1, device="meta"))
    with pytest.raises(stalloc.StallocError, match="cpu, meta"):
        stalloc.profile(mixed)


@isolated
def test_functions_without_a_plan_do_nothing() -> None:
    stalloc.disable()
    stalloc.step()
    stats = stalloc.memory_stats()
    assert not stats["enabled"]
    assert stats["reserved"] == stats["hits"] == 0
    assert stats["efficiency"] == stats["hit_rate"] == 1.0
    assert "not enabled" in stalloc.memory_summary()
    stalloc.reset_peak_memory_stats()
    assert stalloc.empty_cache() == 0


@isolated
def test_statistics_count_the_run() -> None:
    _, trainer = twins()
    plan = profiled_plan(trainer)
    stalloc.enable(plan)
    kept = torch.empty(3 << 20, dtype=torch.uint8)
    stats = stalloc.memory_stats()
    assert stats["allocated"] >= 3 << 20
    assert stats["fallback_allocated"] == 3 << 20
    assert stats["fallback_reserved"] == 3 << 20
    assert stats["reserved"] == stats["pool"] + (3 << 20)
    assert stats["pool"] < plan.pool, "idle memory of the pool has given way"
    assert stats["fallback_requests"] == 1
    summary = stalloc.memory_summary()
    assert "3.0 MiB" in summary
    assert len({len(line) for line in summary.splitlines()}) == 1, "the table is ragged"
    assert set(stats) == set(stalloc.MemoryStats.__annotations__)
    counts = (
        r"dynamic +\| +0 \|",
        r"  in their regions +\| +0 \|",
        r"  in reusable space +\| +0 \|",
        r"  by the fallback +\| +0 \|",
    )
    assert re.search(r".*\n\| ".join(counts), summary)
    del kept
    assert stalloc.empty_cache() == 3 << 20
    stalloc.reset_peak_memory_stats()
    stats = stalloc.memory_stats()
    assert stats["peak_reserved"] == stats["reserved"] == stats["pool"]
    assert stats["peak_allocated"] == stats["allocated"]
    trainer.step()
    assert stalloc.memory_stats()["pool"] == plan.pool, "the iteration needs it"


@isolated
def test_torchs_profiler_sees_served_requests() -> None:
    def seen(trainer: Trainer) -> tuple[int, int]:
        """Bytes that operators took and gave back."""
        with torch.profiler.profile(profile_memory=True) as profiler:
            trainer.step()
        usage = [event.self_cpu_memory_usage for event in profiler.key_averages()]
        return sum(n for n in usage if n > 0), sum(n for n in usage if n < 0)

    plain, planned = twins()
    plan = profiled_plan(planned)
    for _ in range(planned.steps + 1):
        plain.step()
    expected = seen(plain)
    stalloc.enable(plan)
    planned.step()
    hits = stalloc.memory_stats()["hits"]
    assert seen(planned) == expected
    assert expected[0] > plan.pool // 2
    assert stalloc.memory_stats()["hits"] > hits
    assert_same(plain, planned)


@isolated
def test_meta_device_records_the_same_as_the_cpu() -> None:
    def profile(device: str) -> stalloc.IterationProfile:
        with torch.device(device):
            widths = [(64, 256), (256, 64)] * 3
            layers = [(torch.nn.Linear(*width), torch.nn.GELU()) for width in widths]
            model = torch.nn.Sequential(*(m for layer in layers for m in layer))
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
            batch = torch.zeros(32, 64)
        with stalloc.profile(model) as prof:
            for _ in range(3):
                for _ in range(2):
                    model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                prof.step()
        stalloc.enable(prof.plan())
        assert stalloc.memory_stats("cpu")["enabled"]  # a plan that was made on meta serves any
        stalloc.disable()
        return prof.trace.profile()

    meta, cpu = profile("meta"), profile("cpu")

    def sizes(profile: stalloc.IterationProfile) -> list[int]:
        # The CPU has a tensor for each number that a kernel of a GPU gets as an argument.
        return [size for size in profile.requests.size.tolist() if size > 16]

    assert sizes(meta) == sizes(cpu)
    assert cpu.load_bytes - 1024 <= meta.load_bytes <= cpu.load_bytes
    assert list(meta.phases.kind) == list(cpu.phases.kind)


@isolated
def test_a_model_far_larger_than_the_machine_is_profiled_on_meta() -> None:
    with torch.device("meta"):
        model = Model(width=8192, layers=40)
        batch = torch.zeros(4, 4097, dtype=torch.long)
        optimizer = torch.optim.AdamW(model.parameters())
    with stalloc.profile(model) as prof:
        for _ in range(3):
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    plan = prof.plan()
    assert plan.pool > 100 << 30
    assert plan.optimal, plan.gap


@isolated
def test_the_recorder_takes_at_most_a_hundred_bytes_a_request() -> None:
    _, trainer = twins()
    runtime = _core.runtime("cpu")
    with stalloc.profile(trainer.model):
        for _ in range(40):
            trainer.step()
        assert runtime.recorded_requests > 10000
        assert runtime.recorder_bytes <= 100 * runtime.recorded_requests


def _in_child(connection: object) -> None:
    fresh = torch.ones(1000)
    told = stalloc.memory_stats()["enabled"], stalloc.memory_stats("meta")["enabled"]
    connection.send((fresh.sum().item(), *told))  # type: ignore[attr-defined]


@isolated
def test_forked_workers_go_unplanned_and_leave_the_parent_alone() -> None:
    plain, trainer = twins()
    plan = profiled_plan(trainer)
    for _ in range(5):
        plain.step()
    stalloc.enable(plan)
    trainer.step()
    held = loss_of(trainer.model, tokens(0, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        child = context.Process(target=_in_child, args=(theirs,))
        child.start()
    theirs.close()
    assert ours.recv() == (1000.0, False, False)
    child.join()
    assert child.exitcode == 0
    del held
    trainer.step()
    assert_same(plain, trainer)
    assert stalloc.memory_stats()["enabled"]
    assert not stalloc.memory_stats("meta")["enabled"]
    _core.runtime("cpu").check()


@isolated
def test_tensors_alive_at_shutdown_do_no_harm() -> None:
    _, trainer = twins()
    stalloc.enable(profiled_plan(trainer))
    trainer.step()
    globals()["_alive_at_shutdown"] = [loss_of(trainer.model, tokens(0, 0)), torch.ones(1 << 20)]
