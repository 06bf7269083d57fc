"""`stalloc.auto`: plans a run by itself, follows it, and gives way to explicit calls."""

from __future__ import annotations

import gc
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from isolation import isolated
from torch import nn
from torch.nn import functional
from training import Model, Trainer, assert_same, loss_of, profiled_plan, tokens, twins

import stalloc
from stalloc import _core
from stalloc._auto import entry
from stalloc._auto.automatic import Auto
from stalloc._auto.drift import Drift
from stalloc._auto.planning import Planning
from stalloc._auto.service import Service
from stalloc._auto.solving import Solution
from stalloc.replaying import replay_torch


def settle(auto: Auto) -> None:
    """Waits for the plan that is being solved, so that the next iteration finds it."""
    work = auto._cycle._planning._work if auto._cycle is not None else None
    if work is not None:
        work._thread.join()


def train_step(
    auto: Auto | None, model: nn.Module, batch: torch.Tensor, optimizer: torch.optim.Optimizer
) -> float:
    """Trains an iteration, and waits for a plan that is being solved. Returns the loss."""
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if auto is not None:
        settle(auto)
    return loss.item()


def train(auto: Auto | None, trainer: Trainer, steps: int, **options: Any) -> None:
    for _ in range(steps):
        trainer.step(**options)
        if auto is not None:
            settle(auto)


def stats() -> dict[str, int]:
    return _core.runtime("cpu").statistics()


class Silent(Trainer):
    """A loop that never calls `stalloc.step()`."""

    def finish(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1


class Plain(Silent):
    """Its gradients live into the next forward."""

    def finish(self) -> None:
        self.optimizer.step()
        self.steps += 1

    def backward(self, microbatch: int, length: int = 32) -> None:
        loss = loss_of(self.model, tokens(self.steps, microbatch, length))
        self.optimizer.zero_grad()
        loss.backward()
        self.losses.append(loss.item())


def plain_twins() -> tuple[Plain, Plain]:
    a, b = twins()
    return Plain(a.model, microbatches=1), Plain(b.model, microbatches=1)


@isolated
def test_a_loop_that_calls_nothing_is_planned_within_ten_iterations() -> None:
    plain, trainer = plain_twins()
    train(None, plain, 20)
    with stalloc.auto() as auto:
        train(auto, trainer, 10)
        assert stalloc.status()["stage"] == "serving"
        train(auto, trainer, 10)
        status = stalloc.status()
        (change,) = status["changes"]
        assert change["in_force"]
        assert change["iteration"] <= 7
        assert change["after"] < change["before"]
        assert status["served"] == status["iterations"] - change["iteration"]
        assert status["served_as_planned"] > 0.95 * status["requests"] > 0
        figures = stats()
        assert figures["pool"] == change["pool"]
        assert figures["live_blocks"] == 0, "nothing in the pool outlives an iteration"
        gradients = sum(p.nbytes for p in trainer.model.parameters())
        # The gradients lie beside the pool, in a few segments of 128 KiB and more.
        assert figures["run_peak_reserved"] <= change["pool"] + gradients + (256 << 10)
        assert figures["run_peak_reserved"] <= change["after"]
    assert_same(plain, trainer)
    assert stalloc.status()["stage"] == "off"
    assert stalloc.status()["changes"] == [change]
    assert not stalloc.memory_stats()["enabled"]
    assert stats()["reserved"] <= gradients + (256 << 10), "the pool has gone back"


@isolated
@pytest.mark.parametrize("begun", [0, 6])
def test_a_larger_batch_gets_a_plan_that_serves_the_smaller_one_too(begun: int) -> None:
    batches = [*[256] * (10 + begun), *[512] * 14, *[256] * 10]
    plain, trainer = twins()
    with stalloc.profile(plain.model) as prof:
        for length in batches:
            plain.step(length=length)
    train(None, trainer, begun, length=256)  # in the middle of a run
    auto = stalloc.auto(trainer.model, time_limit=0.5)
    peak = 0
    for i, length in enumerate(batches[begun:]):
        train(auto, trainer, 1, length=length)
        # The optimizer's states lie outside of what stalloc counts.
        states = sum(v.nbytes for s in trainer.optimizer.state.values() for v in s.values())
        peak = max(peak, stats()["run_peak_reserved"] + states)
        if i == 10:
            assert stats()["fallback_reserved"] == stats()["reserved"], "the pool makes room"
    assert_same(plain, trainer)
    assert peak <= replay_torch(prof.trace).peak_reserved, "the exchange included"
    status = stalloc.status()
    assert [change["in_force"] for change in status["changes"]] == [True, False, True]
    first, out, second = status["changes"]
    assert out["reason"] == second["reason"] == "other inputs"
    assert out["iteration"] == second["iteration"], "the old one stays until the new one comes"
    assert first["pool"] < second["pool"] == stats()["pool"]
    figures = stats()
    train(auto, trainer, 2, length=256)
    asked, hits = (stats()[key] - figures[key] for key in ("requests", "hits"))
    assert hits > 0.99 * asked, "the joint plan knows both lengths"
    stalloc.disable()


@isolated
def test_batches_that_fit_are_served_again_without_an_exchange() -> None:
    plain, trainer = twins()
    batches = [*[32] * 10, 160, *[32] * 3, 160, *[32] * 3, *[160, 32] * 6]
    for t in (plain, trainer):
        auto = stalloc.auto(exchanges=0) if t is trainer else None
        for length in batches:
            train(auto, t, 1, length=length)
            if auto is not None and length == 160:
                assert stats()["fallback_reserved"] == stats()["reserved"], "torch's policy alone"
    assert_same(plain, trainer)
    (change,) = stalloc.status()["changes"]
    assert stats()["pool"] == change["pool"]
    assert stats()["reserved"] <= change["after"], "what the larger batches left is given back"
    stalloc.disable()


class Wasteful(Trainer):
    """Needs a block that is larger than a plan's pool, while nothing else is live."""

    extra = 0

    def backward(self, microbatch: int, length: int = 32) -> None:
        torch.empty(self.extra, dtype=torch.uint8)
        super().backward(microbatch, length)


@isolated
@pytest.mark.parametrize("exchanges", [0, 6])
def test_a_plan_that_does_worse_than_torch_goes_out_of_force(exchanges: int) -> None:
    pair = [Wasteful(t.model) for t in twins()]
    for t in pair:
        auto = stalloc.auto(exchanges=exchanges, time_limit=0.5) if t is pair[1] else None
        train(auto, t, 10)
        t.extra = 3 << 20
        train(auto, t, 24)
    assert_same(*pair)
    status = stalloc.status()
    reason = status["changes"][1]["reason"]
    assert reason.startswith("it does worse than torch's policy would, with 3.0 MiB beside")
    assert [change["in_force"] for change in status["changes"]] == [True, False, True][
        : 3 if exchanges else 2
    ]
    assert status["stage"] == ("serving" if exchanges else "resting")
    if not exchanges:
        assert "no exchange is left" in status["reason"]
        assert not stalloc.memory_stats()["enabled"]
    stalloc.disable()


@isolated
def test_more_microbatches_than_recorded_get_a_plan_of_their_own() -> None:
    plain, trainer = twins()
    auto = stalloc.auto(iterations=3, time_limit=0.1, tolerance=0.9)
    train(auto, trainer, 8, microbatches=1)
    train(auto, trainer, 24, microbatches=12)
    first, left, second = stalloc.status()["changes"]
    assert (first["in_force"], left["in_force"], second["in_force"]) == (True, False, True)
    assert "not in the plan" in left["reason"]
    before = stalloc.status()
    train(auto, trainer, 6, microbatches=12)
    after = stalloc.status()
    auto.stop()
    requests = after["requests"] - before["requests"]
    assert after["served_as_planned"] - before["served_as_planned"] > 0.99 * requests
    train(None, plain, 8, microbatches=1)
    train(None, plain, 30, microbatches=12)
    assert_same(plain, trainer)


@isolated
def test_a_plan_that_serves_little_goes_out_of_force() -> None:
    plain, trainer = twins()
    auto = stalloc.auto(iterations=3, time_limit=0.1, tolerance=0.9, exchanges=0)
    train(auto, trainer, 8, microbatches=1)
    train(auto, trainer, 12, microbatches=12)
    status = auto.status()
    assert status["stage"] == "resting"
    assert "not in the plan, and no exchange is left" in status["reason"]
    auto.stop()
    train(None, plain, 8, microbatches=1)
    train(None, plain, 12, microbatches=12)
    assert_same(plain, trainer)


class Product(nn.Module):
    """Temporaries of one size.

    Args:
        size: In floats. Those of whole segments of torch's, of 2 MiB each, leave nothing to save.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self) -> torch.Tensor:
        return self.weight.square().sum()


def train_product(size: int) -> dict[str, Any]:
    """The status at the end, before stalloc is disabled."""
    model = Product(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    auto = stalloc.auto()
    for _ in range(12):
        model().backward()
        optimizer.step()
        optimizer.zero_grad()
        settle(auto)
    status = stalloc.status()
    stalloc.disable()
    return status


@isolated
def test_a_plan_that_saves_nothing_stays_out_of_force() -> None:
    status = train_product(24 << 20)
    assert status["stage"] == "resting"
    assert "save less than 1 %" in status["reason"]
    assert status["changes"] == []
    assert "save less than 1 %" in stalloc.status()["reason"], "tells more than who ended it"


@isolated
def test_a_loop_that_rests_is_recorded_again_once_its_inputs_have_changed_for_good() -> None:
    plain, trainer = twins()
    train(None, plain, 15)
    train(None, plain, 14, length=40)
    auto = stalloc.auto(time_limit=0.5)
    held = torch.empty(256 << 20, dtype=torch.uint8)  # beside which nothing counts
    train(auto, trainer, 15)
    assert stalloc.status()["stage"] == "resting", "the inputs are the same"
    train(auto, trainer, 14, length=40)
    assert_same(plain, trainer)
    assert stalloc.status()["stage"] == "serving"
    assert stalloc.status()["changes"][0]["reason"] == "other inputs"
    assert held.numel() > 0
    stalloc.disable()


@isolated
def test_a_run_that_trains_in_a_thread_of_its_own_is_served() -> None:
    plain, trainer = twins()
    train(None, plain, 20)
    auto = stalloc.auto()
    thread = threading.Thread(target=lambda: train(auto, trainer, 20))
    thread.start()
    thread.join()
    assert_same(plain, trainer)
    status = stalloc.status()
    stalloc.disable()
    assert status["stage"] == "serving"
    assert status["served_as_planned"] >= 0.99 * status["requests"] > 0


@isolated
def test_a_plan_that_comes_too_late_for_its_inputs_says_why_it_is_made_again() -> None:
    _, trainer = twins()
    auto = stalloc.auto(trainer.model, time_limit=0.5)
    train(auto, trainer, 1)
    while stalloc.status()["stage"] == "recording":
        train(auto, trainer, 1)
    train(auto, trainer, 14, length=512)
    (change,) = stalloc.status()["changes"]
    assert change["reason"] == "other inputs"
    stalloc.disable()


@isolated
@pytest.mark.parametrize("microbatches", [1, 7])
def test_weights_that_are_updated_by_hand_are_trained_under_a_plan(microbatches: int) -> None:
    def loop(auto: Auto | None) -> list[str]:
        torch.manual_seed(0)
        model = Model()
        losses = []
        for i in range(16 * microbatches):
            loss = loss_of(model, tokens(i, 0))
            loss.backward()
            if i % microbatches == microbatches - 1:
                with torch.no_grad():
                    for p in model.parameters():
                        assert p.grad is not None
                        p.sub_(0.1 * p.grad)
                        p.grad = None
            losses.append(loss.item().hex())
            if auto is not None:
                settle(auto)
        return losses

    plain = loop(None)
    with stalloc.auto(time_limit=0.5) as auto:
        assert loop(auto) == plain
        assert stalloc.status()["stage"] == "serving"
        assert stalloc.status()["iterations"] == 16 * microbatches - 1, "a guess at each backward"


@isolated
def test_microbatches_before_the_first_step_are_no_iterations() -> None:
    # Without the twins' own optimizers, which would never step.
    plain, trainer = (Silent(model, microbatches=7) for model in [t.model for t in twins()])
    train(None, plain, 9)
    with stalloc.auto(time_limit=0.5) as auto:
        train(auto, trainer, 9)
        status = stalloc.status()
        assert status["stage"] == "serving"
        assert status["iterations"] == 8
        (change,) = status["changes"]
        assert change["iteration"] == 6
    assert_same(plain, trainer)


@dataclass
class Late:
    """A loop that forgets gradients after the forward, and holds its output until the next one."""

    model: nn.Module
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.out = torch.empty(0)

    def step(self, rows: int = 256) -> None:
        x = torch.randn(rows, 64)
        self.out = self.model(x)
        loss = functional.cross_entropy(self.out, torch.arange(rows))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())


def late_loop(auto: Auto | None, *rows: int, width: int = 1024) -> Late:
    torch.manual_seed(0)
    # The gradient of the second layer takes 8 MiB, as long as the output's gradient is not there.
    model = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, 2048))
    loop = Late(model)
    for number in rows:
        loop.step(number)
        if auto is not None:
            settle(auto)
    return loop


@isolated
def test_gradients_that_live_into_the_next_forward_are_planned() -> None:
    plain = late_loop(None, *[256] * 16)
    auto = stalloc.auto(time_limit=0.5)
    loop = late_loop(auto, *[256] * 16)
    assert_same(plain, loop)
    (change,) = stalloc.status()["changes"]
    assert change["in_force"]
    figures = stats()
    assert figures["live_blocks"] > 0, "the gradients lie in the pool"
    gradients = sum(p.nbytes for p in loop.model.parameters())
    assert all(p.grad is not None for p in loop.model.parameters())
    assert figures["fallback_reserved"] < gradients // 4
    # Weights and what the loop held before are not in these figures.
    assert figures["run_peak_reserved"] <= change["after"]
    assert change["after"] < 0.9 * change["before"]
    assert stalloc.status()["served_as_planned"] > 0.95 * stalloc.status()["requests"]
    auto.stop()
    assert gradients <= stats()["reserved"] < change["pool"], "until the gradients are gone"
    loop.optimizer.zero_grad()
    del loop
    gc.collect()
    assert stats()["reserved"] == 0


@isolated
def test_an_output_that_lives_into_the_next_forward_is_planned_in_every_size() -> None:
    rows = [640, 480, 560, 400, 600, 440, 520, 360] * 3
    auto = stalloc.auto(time_limit=0.5)
    loop = late_loop(auto, *rows, width=256)
    (change,) = stalloc.status()["changes"]
    figures = stalloc.memory_stats()
    assert figures["live_blocks"] > 0, "the last output lies in the pool"
    assert figures["run_peak_reserved"] <= change["after"]
    assert figures["run_efficiency"] > 0.98
    auto.stop()
    assert_same(late_loop(None, *rows, width=256), loop)


@isolated
@pytest.mark.parametrize("unfit", [1, 2])
def test_a_smaller_plan_goes_into_force_where_the_best_one_does_not_fit(unfit: int) -> None:
    plain = late_loop(None, *[256] * 20)
    take, found = Planning.take, []

    def take_unfit(self: Planning) -> Solution | None:
        """The plans, of which the best ones do not fit beside what is live."""
        solution = take(self)
        if solution is None:
            return None
        found[:] = solution.proposals
        short = [replace(p, entering=p.before + 1 + p.plan.pool, handed=0) for p in found[:unfit]]
        return replace(solution, proposals=[*short, *found[unfit:]])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Planning, "take", take_unfit)
        with stalloc.auto(time_limit=0.5) as auto:
            loop = late_loop(auto, *[256] * 20)
            status, live = auto.status(), stats()["live_blocks"]
    assert_same(plain, loop)
    whole, transients = found
    assert transients.entering < whole.entering
    assert live == 0, "no gradients lie in the pool"
    if unfit == 1:
        assert [change["pool"] for change in status["changes"]] == [transients.plan.pool]
        assert status["stage"] == "serving"
    else:
        assert (status["stage"], status["changes"]) == ("resting", [])
        assert "exceed torch's peak" in status["reason"]


@isolated
def test_a_pool_with_gradients_is_drained_before_an_exchange() -> None:
    rows = [256] * 12 + [640] * 20
    plain = late_loop(None, *rows)
    auto = stalloc.auto(time_limit=0.5)
    seen = []
    leave = Service.end

    def end(service: Service) -> None:
        seen.append(stats()["live_blocks"])
        leave(service)

    Service.end = end  # type: ignore[method-assign]
    loop = late_loop(auto, *rows)
    assert_same(plain, loop)
    assert [change["in_force"] for change in stalloc.status()["changes"]] == [True, False, True]
    assert seen == [0]
    auto.stop()


@isolated
def test_evaluations_and_exceptions_are_no_reason_for_an_exchange() -> None:
    plain, trainer = twins()
    for t in (plain, trainer):
        auto = stalloc.auto() if t is trainer else None
        for i in range(30):
            train(auto, t, 1)
            if i % 7 == 3:
                t.evaluate()
            if i % 5 == 4:
                handle = t.model.head.register_forward_hook(_fail)  # type: ignore[union-attr]
                with pytest.raises(RuntimeError, match="on purpose"):
                    t.step()
                handle.remove()
                t.optimizer.zero_grad()
    assert_same(plain, trainer)
    assert stalloc.status()["stage"] == "serving"
    assert len(stalloc.status()["changes"]) == 1
    stalloc.disable()


def _fail(*_: object) -> None:
    raise RuntimeError("on purpose")


@isolated
def test_two_optimizers_and_other_threads_are_served() -> None:
    def loop(auto: Auto | None) -> list[str]:
        torch.manual_seed(0)
        model = Model()
        blocks = list(model.blocks.parameters())
        rest = [p for p in model.parameters() if all(p is not q for q in blocks)]
        optimizers = [torch.optim.AdamW(blocks), torch.optim.SGD(rest, lr=0.1)]
        losses = []
        for i in range(16):
            other = threading.Thread(target=lambda: torch.ones(1000).square().sum())
            other.start()
            loss = loss_of(model, tokens(i, 0))
            loss.backward()
            other.join()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item().hex())
            if auto is not None:
                settle(auto)
        return losses

    plain = loop(None)
    with stalloc.auto() as auto:
        assert loop(auto) == plain
        assert stalloc.status()["stage"] == "serving"


@isolated
@pytest.mark.parametrize("when", ["recording", "serving"])
@pytest.mark.parametrize("call", ["enable", "profile", "disable"])
def test_explicit_calls_take_over(when: str, call: str) -> None:
    _, trainer = twins()
    plan = profiled_plan(trainer)
    auto = stalloc.auto()
    train(auto, trainer, 2 if when == "recording" else 10)
    assert stalloc.status()["stage"] == when
    if call == "profile":
        with stalloc.profile(trainer.model) as prof:
            train(None, trainer, 3)
        assert len(prof.plan().decisions) > 0
    elif call == "enable":
        with stalloc.enable(plan) as session:
            train(None, trainer, 3)
            assert session.enabled
            assert stalloc.memory_stats()["hits"] > 0
    else:
        stalloc.disable()
    assert not auto.enabled
    assert stalloc.status()["stage"] == "off"
    assert f"stalloc.{call}() takes over" in stalloc.status()["reason"]
    train(None, trainer, 2)
    assert not stalloc.memory_stats()["enabled"]


@isolated
def test_a_second_call_returns_the_handle_or_names_the_conflict() -> None:
    _, trainer = twins()
    with (
        stalloc.profile(trainer.model) as prof,
        pytest.raises(stalloc.StallocError, match="a profile is being recorded"),
    ):
        stalloc.auto()
    train(None, trainer, 1)
    with stalloc.profile(trainer.model) as prof:
        train(None, trainer, 3)
    with (
        stalloc.enable(prof.plan()),
        pytest.raises(stalloc.StallocError, match=r"call stalloc\.disable\(\) before auto"),
    ):
        stalloc.auto()
    with stalloc.auto() as auto:
        assert stalloc.auto(trainer.model) is auto
    assert stalloc.auto() is not auto
    stalloc.disable()


@isolated
def test_the_environment_turns_it_off() -> None:
    os.environ["STALLOC_AUTO"] = "0"
    _, trainer = twins()
    with stalloc.auto() as auto:
        train(auto, trainer, 12)
        assert stats()["iterations"] == 0
    status = stalloc.status()
    assert (status["stage"], status["iterations"]) == ("off", 0)
    assert status["reason"] == "switched off by STALLOC_AUTO=0"


@isolated
def test_a_forked_child_goes_unplanned() -> None:
    torch.set_num_threads(1)  # a forked child has no threads of OpenMP, and waits for them
    plain, trainer = twins()
    train(None, plain, 14)
    with stalloc.auto() as auto:
        train(auto, trainer, 3)
        _in_child(lambda: train(None, trainer, 6))
        train(auto, trainer, 7)
        assert auto.status()["stage"] == "serving"
        _in_child(lambda: train(None, trainer, 2))
        train(auto, trainer, 4)
        assert stalloc.memory_stats()["hits"] > 0
    assert_same(plain, trainer)


def _in_child(body: Callable[[], None]) -> None:
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        return
    status = 1
    try:
        body()
        status = int(stalloc.status()["stage"] != "off" or stalloc.memory_stats()["enabled"])
    finally:
        os._exit(status)


@isolated
def test_its_own_failure_leaves_training_to_torch() -> None:
    plain, trainer = twins()
    train(None, plain, 12)
    auto = stalloc.auto(device="meta")  # where this program asks for nothing
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(auto, trainer, 12)
    (warning,) = (w for w in caught if issubclass(w.category, stalloc.StallocWarning))
    assert "training goes on under torch: the program asked for no memory on meta" in str(
        warning.message
    )
    assert not auto.enabled
    assert_same(plain, trainer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iterations": 2}, "iterations=2: at least 3"),
        ({"threads": 0}, "threads=0"),
        ({"time_limit": float("nan")}, "time_limit=nan"),
        ({"exchanges": -1}, "exchanges=-1"),
        ({"tolerance": 1}, "tolerance=1"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stalloc.auto(**options)


def test_a_model_is_a_module() -> None:
    with pytest.raises(TypeError, match=r"`model` is a torch\.nn\.Module or None, not list"):
        stalloc.auto([])  # type: ignore[arg-type]


def test_a_plan_is_outgrown_if_more_iterations_depart_than_not() -> None:
    def outgrown_after(pattern: str) -> int | None:
        drift = Drift(expected=10, allowed=5, patience=3)
        for _ in range(3):  # the plan's phases come to be trusted
            assert not drift.persists(1000, 1.0, 1.0)
        for i, sign in enumerate(pattern):
            if drift.persists(16 if sign == "x" else 15, 0.1, 0.5):
                return i
        return None

    assert outgrown_after("xxx") == 2
    assert outgrown_after("xx.x.x.xx") == 8
    assert outgrown_after("x." * 20) is None
    assert outgrown_after("x..xx" * 20) == 5


def trial(steps: int) -> weakref.ref[nn.Module]:
    """Trains a new model, as a search for the best options does in each trial."""
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.ones(256, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        settle_last()
    return weakref.ref(model)


def settle_last() -> None:
    """As `settle`, for the last call of `stalloc.auto`."""
    if entry._last is not None:
        settle(entry._last)


@pytest.mark.parametrize("steps", [3, 5, 8, 20])  # recorded, solved, served, and for a while
@isolated
def test_a_model_that_the_program_replaces_goes_at_once(steps: int) -> None:
    gc.disable()
    auto = stalloc.auto(time_limit=0.1)
    trial(steps)
    assert stalloc.status()["iterations"] > 0
    for _ in range(3):
        assert trial(steps)() is None
    auto.stop()


@isolated
def test_a_profile_and_a_plan_keep_no_model_alive() -> None:
    gc.disable()
    trainer = Trainer(Model())
    with stalloc.profile(trainer.model) as prof:
        for _ in range(3):
            trainer.step()
        model = weakref.ref(trainer.model)
        assert prof.model is model()
        del trainer
        assert model() is None
        assert prof.model is None
    trainer = Trainer(Model())
    with stalloc.enable(prof.plan(), model=trainer.model):
        for _ in range(3):
            trainer.step()
        model = weakref.ref(trainer.model)
        del trainer
        assert model() is None


@isolated
def test_states_that_a_later_step_makes_take_no_place_of_the_plan() -> None:
    """The last layers have gradients, and states of the optimizer, only once the plan serves."""
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def train_step(freezes: bool) -> None:
        functional.mse_loss(model(torch.ones(500, 256)), torch.ones(500, 256)).backward()
        if freezes:
            model[-2:].zero_grad()
        optimizer.step()
        optimizer.zero_grad()

    with stalloc.auto(model, time_limit=0.1) as auto:
        while auto.status()["stage"] != "serving":
            train_step(freezes=True)
        train_step(freezes=False)
        assert len(optimizer.state) == len(list(model.parameters()))
        assert "_init_group" not in vars(optimizer)
        assert stalloc.memory_stats("cpu")["live_blocks"] == 0, "states lie in the pool"
