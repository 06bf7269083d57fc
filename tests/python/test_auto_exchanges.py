"""Twenty exchanges of plans in one run, under all that may come between."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import threading

import pytest
import torch
from isolation import isolated
from test_auto import stats, train, train_step
from torch import nn
from torch.nn import functional
from training import Trainer, assert_same, tokens, twins

import stalloc
from stalloc import _core
from stalloc._auto import proposal
from stalloc._auto.automatic import Auto
from stalloc._auto.journal import Journal
from stalloc._auto.renewal import Renewal
from stalloc._auto.service import Service

EXCHANGES = 20


class Flagged(nn.Module):
    """A model with any number of arguments, which tell it nothing."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, *flags: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(tokens)
        return out


class Changing(Trainer):
    """In each stage its model gets another number of arguments, and it holds more blocks.

    Torch's segments of 2 MiB have room for two of them each, and a third of them stays idle.
    """

    stage = 0
    more = 0  # larger blocks that it holds, too

    def backward(self, microbatch: int, length: int = 32) -> None:
        t = tokens(self.steps, microbatch, length)
        flags = [torch.ones(1)] * self.stage
        out = self.model(t[:, :-1], *flags)
        sizes = [700 << 10] * (2 + self.stage) + [900 << 10] * self.more
        held = [torch.full((size,), i, dtype=torch.uint8) for i, size in enumerate(sizes)]
        loss = functional.cross_entropy(out.flatten(0, 1), t[:, 1:].flatten())
        loss.backward()
        self.losses += [loss.item(), *(float(block[-1]) for block in held)]


def _fail(*_: object) -> None:
    raise RuntimeError("on purpose")


def _interrupt(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def break_off(trainer: Trainer, how: type[BaseException]) -> None:
    """A step that ends in the middle, as by an error or Ctrl-C."""
    hook = _fail if how is RuntimeError else _interrupt
    handle = trainer.model.get_submodule("model.head").register_forward_hook(hook)
    with pytest.raises(how):
        trainer.step()
    handle.remove()
    trainer.optimizer.zero_grad()


def train_in_child(trainer: Trainer) -> None:
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        return
    status = 1
    try:
        trainer.step()
        status = int(stalloc.memory_stats()["enabled"])
    finally:
        os._exit(status)


def disturb(trainer: Trainer, auto: Auto | None, number: int) -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            torch.ones(1000).square().sum()
            stop.wait(0.001)

    thread = threading.Thread(target=work)
    thread.start()
    if number % 4 == 1:
        break_off(trainer, RuntimeError)
    if number % 4 == 2:
        break_off(trainer, KeyboardInterrupt)
    train(auto, trainer, 2)
    stop.set()
    thread.join()
    if number % 4 == 3:
        train_in_child(trainer)


def plans() -> int:
    return sum(change["in_force"] for change in stalloc.status()["changes"])


@isolated
def test_twenty_exchanges_change_no_result_and_leave_nothing() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    plain, trainer = (Changing(Flagged(t.model)) for t in twins(layers=1))
    auto = stalloc.auto(trainer.model, iterations=3, time_limit=0.1, exchanges=1000)
    stages = []
    for number in range(EXCHANGES + 1):
        assert auto._cycle is not None
        auto._cycle._patience = 1  # which each exchange doubles otherwise
        begun = trainer.steps
        trainer.stage = number
        disturb(trainer, auto, number)
        while plans() <= number and trainer.steps < begun + 40:
            train(auto, trainer, 1)
            _core.runtime("cpu").check()
        stages.append(trainer.steps)
    assert plans() > EXCHANGES, stalloc.status()["changes"]
    auto.stop()
    gc.collect()
    assert stats()["reserved"] == stats()["live_blocks"] == 0
    assert not _core.runtime("cpu").recording
    assert "stalloc-planner" not in [thread.name for thread in threading.enumerate()]
    for number, end in enumerate(stages):
        plain.stage = number
        disturb(plain, None, number)
        train(None, plain, end - plain.steps)
    assert_same(plain, trainer)


@isolated
def test_a_plan_steps_aside_although_a_part_of_the_batch_lies_in_its_pool() -> None:
    plain, trainer = (Changing(Flagged(t.model)) for t in twins(layers=1))
    auto = stalloc.auto(trainer.model, iterations=3, time_limit=0.1)
    train(auto, trainer, 8)
    assert auto._cycle is not None
    service = auto._cycle._service
    assert service is not None
    assert stats()["reserved"] > stats()["fallback_reserved"]
    trainer.stage = 1  # its tokens and its first flag are as before
    train(auto, trainer, 2)
    assert service.is_aside
    assert stats()["reserved"] == stats()["fallback_reserved"]
    auto.stop()
    train(None, plain, 8)
    plain.stage = 1
    train(None, plain, 2)
    assert_same(plain, trainer)


@isolated
def test_a_plan_steps_aside_although_the_next_batch_lies_in_its_pool() -> None:
    """The first larger batch comes between iterations, before anything tells that it is larger."""
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: torch.Tensor) -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    auto = stalloc.auto(model, iterations=3, time_limit=0.1)
    batch = torch.ones(256, 64)
    while auto._cycle is None or auto._cycle._service is None:
        step(batch)
        batch = torch.ones(256, 64)
    service = auto._cycle._service
    for _ in range(3):
        step(batch)
        batch = torch.ones(256, 64)
    batch = torch.ones(288, 64)
    pool = stats()["reserved"] - stats()["fallback_reserved"]
    step(batch)
    assert service.is_aside
    assert 0 < stats()["reserved"] - stats()["fallback_reserved"] < pool / 2, "the batch's memory"
    batch = torch.ones(256, 64)
    for _ in range(2):
        step(batch)
    assert not service.is_aside, "the first batch that fits again"
    auto.stop()


@isolated
def test_a_plan_goes_out_of_force_as_layers_are_unfrozen() -> None:
    torch.set_num_threads(1)

    def run(planned: bool) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model[:4].requires_grad_(False)
        auto = stalloc.auto(model, iterations=3, time_limit=0.1) if planned else None
        losses = []
        for number in range(14):
            if number == 12:
                assert auto is None or stalloc.status()["stage"] == "serving"
                model.requires_grad_(True)
            losses.append(train_step(auto, model, torch.ones(512, 256), optimizer))
        return losses

    planned = run(planned=True)
    reasons = [c["reason"] for c in stalloc.status()["changes"] if not c["in_force"]]
    stalloc.disable()
    assert reasons == ["another model"], "in the first iteration, or after it"
    assert planned == run(planned=False)


@isolated
def test_a_run_without_a_plan_is_recorded_again_after_a_while() -> None:
    """Its requests may have changed without another input or module."""
    usual, proposal.LEAST_GAIN = proposal.LEAST_GAIN, 2.0  # no plan saves so much
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = io.StringIO()
    with (
        contextlib.redirect_stderr(told),
        stalloc.auto(model, iterations=3, time_limit=0.1) as auto,
    ):
        for number in range(64 + 128 + 20):
            if number == 64 + 10:
                assert auto.status()["stage"] == "resting"
                proposal.LEAST_GAIN = usual
            train_step(auto, model, torch.ones(512, 64), optimizer)
        (change,) = auto.status()["changes"]
    assert change["in_force"]
    assert change["reason"] == "recorded again after a while"
    assert change["iteration"] > 64 + 128, "the second rest is twice as long"
    assert told.getvalue().count("torch serves") == 1, "the reason is the same"


@isolated
def test_a_run_without_a_plan_is_recorded_again_as_layers_are_unfrozen() -> None:
    usual, proposal.LEAST_GAIN = proposal.LEAST_GAIN, 2.0  # no plan saves so much
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)])
    model[:4].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with stalloc.auto(model, iterations=3, time_limit=0.1) as auto:
        for number in range(24):
            if number == 10:
                assert stalloc.status()["stage"] == "resting"
                proposal.LEAST_GAIN = usual
                model.requires_grad_(True)
            train_step(auto, model, torch.ones(512, 256), optimizer)
        (change,) = stalloc.status()["changes"]
    assert change["in_force"]
    assert change["reason"] == "another model"
    assert change["iteration"] > 10


@isolated
def test_another_model_of_the_same_tensors_leaves_the_plan_in_force() -> None:
    torch.set_num_threads(1)
    with stalloc.auto(iterations=3, time_limit=0.1) as auto:
        for _ in range(2):
            model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(10):
                train_step(auto, model, torch.ones(512, 256), optimizer)
        assert [change["in_force"] for change in stalloc.status()["changes"]] == [True]


@isolated
def test_a_departure_that_no_plan_would_better_is_solved_once() -> None:
    plain, trainer = (Changing(t.model) for t in twins(layers=4))
    auto = stalloc.auto(trainer.model, iterations=3, time_limit=0.1, tolerance=0.01)
    train(auto, trainer, 12)
    cycle = auto._cycle
    assert cycle is not None
    patience = cycle._patience
    trainer.more = 1
    train(auto, trainer, 60)
    assert cycle._patience == 2 * patience, "which each renewal doubles"
    assert cycle._renewal is None
    assert plans() == 1
    auto.stop()
    train(None, plain, 12)
    plain.more = 1
    train(None, plain, 60)
    assert_same(plain, trainer)


MOMENTS = {
    "into force": (Journal, "plan_changes"),
    "recording": (Renewal, "note"),
    "out of force": (Service, "end"),
}


@isolated
@pytest.mark.parametrize("moment", list(MOMENTS))
def test_an_interrupt_in_the_middle_of_a_change_leaves_nothing(moment: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    plain, trainer = (Changing(Flagged(t.model)) for t in twins(layers=1))
    auto = stalloc.auto(trainer.model, iterations=3, time_limit=0.1)
    train(auto, trainer, 3 if moment == "into force" else 8)
    owner, name = MOMENTS[moment]
    real = getattr(owner, name)

    def interrupt(*_: object, **__: object) -> None:
        setattr(owner, name, real)
        _interrupt()

    setattr(owner, name, interrupt)
    if moment != "into force":
        trainer.stage = 1
    interrupted = 0
    while interrupted == 0 and trainer.steps < 40:
        try:
            train(auto, trainer, 1)
        except KeyboardInterrupt:
            interrupted += 1
            break
    assert interrupted == 1
    assert not auto.enabled
    assert not _core.runtime("cpu").recording
    train(None, trainer, 3)
    train(None, plain, 3 if moment == "into force" else 8)
    plain.stage = trainer.stage
    train(None, plain, trainer.steps - plain.steps)
    assert_same(plain, trainer)
    stalloc.disable()
    gc.collect()
    assert stats()["reserved"] == 0
