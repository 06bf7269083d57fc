"""Recordings that are made while a plan serves, and their joining."""

from __future__ import annotations

import json

import numpy as np
import torch
from isolation import isolated
from training import Model, Trainer, loss_of, profiled_plan, tokens, twins

import stalloc
from stalloc import _adapters
from stalloc._auto.forward import Forward
from stalloc._auto.joining import joined, without_first_iterations
from stalloc._auto.renewal import Renewal
from stalloc.tables import NEVER
from stalloc.trace import Trace


def recorded(trainer: Trainer, steps: int, **options: int) -> Trace:
    with stalloc.profile(trainer.model, layers=False) as prof:
        for _ in range(steps):
            trainer.step(**options)
    return prof.trace


def renewed(trainer: Trainer, plan: stalloc.Plan, steps: int, **options: int) -> Trace:
    with stalloc.enable(plan, model=trainer.model):
        trainer.step()
        renewal = Renewal(_adapters.adapter("cpu"), steps, plan, "a test")
        renewal.note(Forward(trainer.model, (torch.zeros(2, 3),), {}))
        while not renewal.complete:
            trainer.step(**options)
        trace = renewal.finish()
        assert stalloc.memory_stats()["hits"] > 0, "the plan has served meanwhile"
    return trace


@isolated
def test_a_recording_is_the_same_while_a_plan_serves() -> None:
    plain, trainer = twins()
    plan = profiled_plan(trainer)
    plain.step()
    expected = without_first_iterations(recorded(plain, 4), 1, {})
    for length in (32, 48):  # as planned, and beside the pool
        if length == 48:
            expected = without_first_iterations(recorded(plain, 4, length=48), 1, {})
        trace = renewed(trainer, plan, 3, length=length)
        assert trace.iterations == expected.iterations
        for name in ("size", "lower", "upper", "stream", "phase_begin"):
            ours, theirs = (getattr(t.requests, name) for t in (trace, expected))
            np.testing.assert_array_equal(ours, theirs, name)
        np.testing.assert_array_equal(trace.extents.values, expected.extents.values)
        assert trace.info["inputs"] == '["(float32[2,3])"]'
        assert trace.info["device"] == "cpu"


@isolated
def test_a_plan_of_joined_recordings_serves_the_batches_of_both() -> None:
    _, trainer = twins()
    short = recorded(trainer, 4)
    long = recorded(trainer, 4, length=64)
    short.info = short.info | {"shared": "1"}
    both = joined([short, long])
    assert both.info["shared"] == "1"
    assert len(both.iterations) == 8, "all but the first one"
    assert json.loads(both.info["inputs"]) == ["(int64[2,32])", "(int64[2,64])"]
    plan = both.plan(time_limit=0.5)
    assert (plan.decisions.law >= 0).any()
    assert plan.pool <= 1.01 * long.plan(time_limit=0.5).pool
    with stalloc.enable(plan, model=trainer.model):
        for length in (32, 64, 48, 32):
            before = stalloc.memory_stats()
            trainer.step(length=length)
            after = stalloc.memory_stats()
        assert after["hits"] - before["hits"] > 0.99 * (after["requests"] - before["requests"])


@isolated
def test_requests_that_outlive_a_recording_end_with_it() -> None:
    torch.set_num_threads(1)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    traces = []
    for _ in range(2):
        with stalloc.profile(model, layers=False) as prof:
            for step in range(4):
                loss = loss_of(model, tokens(step, 0))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                prof.step()
        traces.append(prof.trace)
    for trace in traces:
        assert (trace.requests.upper == NEVER).any(), "the gradients"
    both = joined(traces)
    end = both.iterations[3]
    ours = both.requests
    assert not (ours.upper[ours.lower < end] > end).any()
    np.testing.assert_array_equal(
        ours.size[ours.upper == NEVER], traces[1].requests.size[traces[1].requests.upper == NEVER]
    )
