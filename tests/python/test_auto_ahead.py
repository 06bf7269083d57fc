"""A plan that holds what lives into the next forward begins with that, one iteration ahead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from isolation import isolated
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import stalloc
from stalloc import _core
from stalloc._auto import proposal
from stalloc._auto.proposal import Peak, Proposal, candidates, propose
from stalloc.replaying import Replay, replay_torch
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
def test_the_next_output_lies_in_the_pool_before_all_else_does() -> None:
    whole = proposals(keeps=True)[0]
    assert whole.at_begin >= whole.handed >= _OUTPUT
    *_, transients = proposals(keeps=False)
    assert transients.handed < 1e-3 * transients.plan.pool


@isolated
def test_a_plan_of_transients_knows_the_load_of_the_run() -> None:
    trace = recorded(keeps=True)
    whole, transients = candidates(trace, 0.1, lambda _: True)
    assert transients.plan.pool <= whole.plan.pool - _OUTPUT
    assert transients.plan.load_bytes == whole.plan.load_bytes


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


def changing() -> Trace:
    """A recording of batches of five sizes."""
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 2048))
    with stalloc.profile(model, device="cpu") as prof:
        for rows in (1024, 2048, 512, 1536, 768):
            model(torch.randn(rows, 64)).square().mean().backward()
            model.zero_grad()
            prof.step()
    return prof.trace


@isolated
def test_a_plan_of_changing_requests_has_to_save_much_where_torch_is_thrifty() -> None:
    trace = changing()

    def found(*, is_thrifty: bool) -> list[Proposal]:
        peak = Peak(2 * best.before, best.load, is_thrifty)
        return propose(trace, 0.1, lambda _: True, peak)

    best, *_ = propose(trace, 0.1, lambda _: True)
    assert best.is_changing
    proposal.LEAST_GAIN_OF_CHANGING = best.gain + 1e-3
    assert found(is_thrifty=False)
    assert not found(is_thrifty=True)
    proposal.LEAST_GAIN_OF_CHANGING = best.gain - 1e-3
    assert found(is_thrifty=True)


@isolated
def test_a_plan_whose_sizes_follow_laws_is_kept_for_later_runs() -> None:
    best, *_ = candidates(changing(), 0.1, lambda _: True, Peak())
    assert best.is_changing
    assert len(best.plan.groups.size) == 0
    assert best.is_for_later
    little = replace(best, after=int(best.before * (1 - proposal.LEAST_GAIN / 2)))
    assert not little.is_for_later, "an unchanging one would be"


@isolated
def test_a_plan_of_changing_requests_is_judged_by_the_largest_iteration() -> None:
    trace = changing()
    torch = replay_torch(trace)
    assert torch.load < torch.peak_load / 2, "the last iteration is a small one"
    best, *_ = candidates(trace, 0.1, lambda _: True)
    assert (best.load, best.before) == (torch.peak_load, torch.peak_reserved)
    beside = 10 << 20  # bytes that were live before the recording
    peak = Peak(torch.peak_load + 4096 + beside, torch.peak_load + beside)
    best, *_ = candidates(trace, 0.1, lambda _: True, peak)
    assert best.before == torch.peak_load + 4096


@isolated
def test_no_plan_counts_as_smaller_than_the_load() -> None:
    usual = replay_torch
    trace = recorded(keeps=False)
    best, *_ = candidates(trace, 0.1, lambda _: True)
    load = best.after + 4096

    def larger(trace: Trace) -> Replay:
        return replace(usual(trace), load=load)

    proposal.replay_torch = larger  # an earlier iteration was larger than the last one
    try:
        found = candidates(trace, 0.1, lambda _: True)
    finally:
        proposal.replay_torch = usual
    assert min(each.after for each in found) == load


@isolated
def test_small_gradients_go_back_where_segments_are_expandable() -> None:
    trace = recorded(keeps=False)
    gradients = 4 * (64 * 256 + 256 + 256 * 2048 + 2048)

    def handed(*, is_thrifty: bool) -> int:
        load = replay_torch(trace).load
        peak = Peak(100 * load, 2 * load, is_thrifty)
        return propose(trace, 0.1, lambda _: True, peak)[0].handed

    assert handed(is_thrifty=True) >= gradients
    assert handed(is_thrifty=False) == 0, "segments of 20 MiB may stay"


@isolated
def test_the_pool_has_no_more_than_the_output_while_torch_serves_all_else() -> None:
    pools = []

    def note(module: nn.Module, *_: Any) -> None:
        """Notes the pool's memory after each forward, and waits for the plan."""
        work = auto._cycle._planning._work if auto._cycle is not None else None
        if work is not None:
            work._thread.join()
        if auto.status()["stage"] == "serving" and isinstance(module, nn.Sequential):
            pools.append(_core.runtime("cpu").statistics()["pool"])

    plain = loop(12)
    with stalloc.auto(device="cpu", time_limit=0.2) as auto:
        handle = register_module_forward_hook(note)
        planned = loop(12)
        handle.remove()
        status = auto.status()
        change, *others = status["changes"]
    assert change["pool"] >= 2 * _OUTPUT
    assert _OUTPUT <= pools[0] <= 1.2 * _OUTPUT, "in the forward of the iteration ahead"
    assert pools[1] >= 2 * _OUTPUT
    assert pools[-1] == change["pool"]
    assert status["iterations"] - change["iteration"] - 1 == status["served"]
    assert status["served_as_planned"] == status["requests"] > 0
    assert not others
    for one, other in zip(plain, planned, strict=True):
        assert torch.equal(one, other)
