"""The pool of a plan that holds what lives into the next forward is filled as it is used."""

from __future__ import annotations

from typing import Any

import torch
from isolation import isolated
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import stalloc
from stalloc import _core
from stalloc._auto import proposal
from stalloc._auto.proposal import Peak, Proposal, propose
from stalloc.replaying import replay_torch
from stalloc.trace import Trace

_OUTPUT = 4 * 2048 * 2048
"""Bytes."""


def loop(steps: int, *, keeps: bool = True) -> list[Tensor]:
    """A variable keeps the output until the next one exists. Returns the weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 2048))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(steps):
        output = model(torch.randn(2048, 64))
        loss = output.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not keeps:
            del output
    return [p.detach() for p in model.parameters()]


def recorded(*, keeps: bool) -> Trace:
    with stalloc.profile(device="cpu") as prof:
        loop(5, keeps=keeps)
    return prof.trace


def proposals(*, keeps: bool) -> list[Proposal]:
    return propose(recorded(keeps=keeps), 0.1, lambda _: True)


@isolated
def test_the_last_output_has_gone_when_its_next_place_is_used() -> None:
    whole = proposals(keeps=True)[0]
    assert whole.at_begin >= _OUTPUT
    assert whole.filling <= whole.plan.pool - 0.9 * _OUTPUT


@isolated
def test_a_plan_of_whole_iterations_has_to_save_more() -> None:
    trace = recorded(keeps=True)
    best, *others = propose(trace, 0.1, lambda _: True)
    proposal.LEAST_GAIN_OF_WHOLE = best.gain + 1e-3
    left = propose(trace, 0.1, lambda _: True)
    assert [each.after for each in left] == [each.after for each in others]
    proposal.LEAST_GAIN_OF_WHOLE = best.gain
    assert propose(trace, 0.1, lambda _: True)[0].after == best.after


@isolated
def test_a_plan_has_to_save_of_what_torch_was_measured_to_reserve() -> None:
    trace = recorded(keeps=False)
    best = propose(trace, 0.1, lambda _: True)[0]
    beside = 100 << 20  # bytes that were live before the recording
    live = best.load + beside

    def found(reserved: int) -> list[Proposal]:
        return propose(trace, 0.1, lambda _: True, Peak(reserved, live))

    assert found(best.after + beside) == [], "torch has reserved no more than the plan does"
    tight, *_ = found(best.after + beside + best.after // 20)
    assert tight.before == best.after + best.after // 20
    assert found(10 * best.before)[0].before == best.before, "as the model of torch says"


@isolated
def test_a_measured_peak_that_will_not_last_is_no_measure() -> None:
    trace = recorded(keeps=False)
    best = propose(trace, 0.1, lambda _: True)[0]
    for is_strained in (False, True):
        peak = Peak(best.after, best.load, is_thrifty=True, is_strained=is_strained)
        found = propose(trace, 0.1, lambda _: True, peak)
        assert bool(found) == is_strained
    assert found[0].before == best.before, "as the model of torch says"


@isolated
def test_a_plan_of_changing_requests_has_to_save_much_where_torch_is_thrifty() -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 2048))
    with stalloc.profile(model, device="cpu") as prof:
        for rows in (1024, 2048, 512, 1536, 768):
            model(torch.randn(rows, 64)).square().mean().backward()
            model.zero_grad()
            prof.step()

    def found(*, is_thrifty: bool) -> list[Proposal]:
        peak = Peak(2 * best.before, best.load, is_thrifty)
        return propose(prof.trace, 0.1, lambda _: True, peak)

    best, *_ = propose(prof.trace, 0.1, lambda _: True)
    assert best.is_changing
    proposal.LEAST_GAIN_OF_CHANGING = best.gain + 1e-3
    assert found(is_thrifty=False)
    assert not found(is_thrifty=True)
    proposal.LEAST_GAIN_OF_CHANGING = best.gain - 1e-3
    assert found(is_thrifty=True)


@isolated
def test_small_gradients_go_back_where_segments_are_expandable() -> None:
    trace = recorded(keeps=False)
    gradients = 4 * (64 * 256 + 256 + 256 * 2048 + 2048)

    def filling(*, is_thrifty: bool) -> int:
        load = replay_torch(trace).load
        peak = Peak(100 * load, 2 * load, is_thrifty)
        return propose(trace, 0.1, lambda _: True, peak)[0].filling

    saved = filling(is_thrifty=False) - filling(is_thrifty=True)
    assert saved >= 0.9 * gradients, "they go before the backward pass makes new ones"


@isolated
def test_transients_take_the_whole_pool_in_addition() -> None:
    for each in proposals(keeps=False):
        assert each.filling >= 0.95 * each.plan.pool


@isolated
def test_a_plan_is_filled_beside_the_last_output() -> None:
    pools = []

    def note(*_: Any) -> None:
        """Notes the pool's memory after each forward, and waits for the plan."""
        work = auto._cycle._planning._work if auto._cycle is not None else None
        if work is not None:
            work._thread.join()
        if auto.status()["stage"] == "serving":
            pools.append(_core.runtime("cpu").statistics()["pool"])

    plain = loop(12)
    with stalloc.auto(device="cpu", time_limit=0.2) as auto:
        handle = register_module_forward_hook(note)
        planned = loop(12)
        handle.remove()
        change, *others = auto.status()["changes"]
    assert change["pool"] >= 2 * _OUTPUT
    assert pools[0] <= change["pool"] - 0.9 * _OUTPUT, "in the first forward"
    assert pools[-1] == change["pool"]
    assert not others
    for one, other in zip(plain, planned, strict=True):
        assert torch.equal(one, other)
