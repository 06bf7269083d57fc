"""The iteration that a plan shows is a usual one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from isolation import isolated
from test_auto import settle
from torch import nn
from torch.nn import functional

import stalloc
from stalloc._auto.automatic import Auto
from stalloc._auto.reference import with_usual_end, without_repeated
from stalloc.trace import Trace

EPOCH = [2000, 2000, 2000, 2000, 2000, 500]
"""Rows of each batch. The fifth iteration makes the last batch, which the sixth one trains."""


def batches(rows: Sequence[int]) -> Iterator[torch.Tensor]:
    """Stacks samples, as a data loader does."""
    for count in rows:
        yield torch.stack([torch.full((256,), 0.01) for _ in range(count)])


def train(model: nn.Module, rows: Sequence[int], auto: Auto | None = None) -> None:
    """A loop that holds its batch until the next one is made."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches(rows):
        optimizer.zero_grad()
        functional.mse_loss(model(batch), batch).backward()
        optimizer.step()
        if auto is not None:
            settle(auto)


def autoencoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 256))


def recorded(rows: Sequence[int]) -> Trace:
    with stalloc.profile(device="cpu", layers=False, iterations=5) as prof:
        train(autoencoder(), rows)
    assert len(prof.trace.iterations) == 6
    return prof.trace


@isolated
def test_a_recording_drops_a_last_iteration_that_ends_an_epoch() -> None:
    trace = recorded(EPOCH)
    settled = with_usual_end(trace)
    assert settled.iterations == trace.iterations[:-1]
    assert len(settled.requests) == len(trace.requests)
    plan = settled.plan(time_limit=0.1)
    made = (trace.requests.lower >= trace.iterations[-3]) & (
        trace.requests.lower < trace.iterations[-2]
    )
    assert len(plan.decisions.size) == made.sum(), "a usual iteration"


@isolated
def test_a_recording_keeps_a_last_iteration_like_the_others() -> None:
    trace = recorded([500] * 7)
    assert with_usual_end(trace) is trace
    changing = recorded([500, 900, 300, 1200, 700, 100, 800])
    assert with_usual_end(changing) is changing


@isolated
def test_a_recording_keeps_a_last_iteration_that_makes_more() -> None:
    trace = recorded([*[500] * 4, 500, 1500, 500])
    assert with_usual_end(trace) is trace, "the batch for the next iteration is larger"
    model, critic = autoencoder(), autoencoder()
    optimizer = torch.optim.SGD([*model.parameters(), *critic.parameters()], lr=0.1)
    with stalloc.profile(device="cpu", layers=False, iterations=5) as prof:
        for step in range(7):
            batch = torch.ones(500, 256)
            optimizer.zero_grad()
            functional.mse_loss(model(batch), batch).backward()
            if step % 5 == 4:
                functional.mse_loss(critic(batch), batch).backward()
            optimizer.step()
    assert with_usual_end(prof.trace) is prof.trace, "it is the only one that trains the critic"


@isolated
def test_a_short_recording_stays_as_it_is() -> None:
    trace = recorded(EPOCH)
    with stalloc.profile(device="cpu", layers=False, iterations=3) as prof:
        train(autoencoder(), EPOCH[2:])
    assert len(with_usual_end(prof.trace).iterations) == 4
    assert len(with_usual_end(with_usual_end(trace)).iterations) == 5


@isolated
def test_an_epoch_that_ends_in_the_recording_does_not_shape_the_plan() -> None:
    with stalloc.auto(time_limit=0.1) as auto:
        train(autoencoder(), [*EPOCH[:5], *EPOCH[4:5], *EPOCH[:5]], auto)
        usual = stalloc.status()["changes"][0]
    with stalloc.auto(time_limit=0.1) as auto:
        train(autoencoder(), [*EPOCH, *EPOCH[:5]], auto)
        (change,) = stalloc.status()["changes"]
        status = stalloc.status()
    assert change["after"] <= 1.01 * usual["after"]
    assert status["served_as_planned"] > 0.98 * status["requests"]


def with_skipped_steps(*skipped: int) -> Trace:
    """Five iterations. Each of those that are named has two backward passes, one without a step."""
    model = autoencoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with stalloc.profile(device="cpu", layers=False, iterations=5) as prof:
        for number in range(6):
            for _ in range(2 if number in skipped else 1):
                optimizer.zero_grad()
                functional.mse_loss(model(torch.ones(500, 256)), torch.ones(500, 256)).backward()
            optimizer.step()
    return prof.trace


@pytest.mark.parametrize(("skipped", "left"), [(1, 3), (2, 2), (3, 3)])
@isolated
def test_an_iteration_with_a_skipped_step_is_left_out(skipped: int, left: int) -> None:
    trace = with_skipped_steps(skipped)
    usual = without_repeated(trace)
    assert len(usual.iterations) == left + 1
    expected = without_repeated(with_skipped_steps()).plan(time_limit=0.1)
    plan = usual.plan(time_limit=0.1)
    assert (plan.pool, len(plan.groups.size)) == (expected.pool, 0)
    assert len(plan.decisions.size) == len(expected.decisions.size)


@isolated
def test_iterations_are_usual_if_the_last_one_is_like_them() -> None:
    trace = with_skipped_steps()
    assert without_repeated(trace) is trace
    trace = with_skipped_steps(3, 4)
    assert without_repeated(trace) is trace, "two microbatches from then on"
    trace = with_skipped_steps(1, 3)
    assert without_repeated(trace) is trace, "one iteration before another tells nothing"


@isolated
def test_a_skipped_step_does_not_shape_the_plan() -> None:
    def bytes_of_plan(skipped: int | None) -> int:
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with stalloc.auto(time_limit=0.1) as auto:
            for number in range(12):
                functional.mse_loss(model(torch.ones(500, 512)), torch.ones(500, 512)).backward()
                if number != skipped:
                    optimizer.step()
                optimizer.zero_grad()
                settle(auto)
            after: int = stalloc.status()["changes"][0]["after"]
        return after

    assert bytes_of_plan(skipped=2) == bytes_of_plan(skipped=None)
