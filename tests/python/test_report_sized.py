"""Reports of plans with size laws: the sizes that the slider draws."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import numpy as np
import pytest
from test_report import overlapping
from trace_documents import changing_document, changing_sizes, to_trace, training_document

from stalloc import Plan, Trace
from stalloc.report import Scene, render, scene_of_plan, scene_of_trace
from stalloc.report.sized import Law, Sized
from stalloc.tables import Int64s

SHAPES = [(2, 24), (3, 40), (4, 64), (1, 56), (4, 32), (2, 48)]


@pytest.fixture(scope="module")
def trace() -> Trace:
    return to_trace(changing_document(SHAPES))


@pytest.fixture(scope="module")
def plan(trace: Trace) -> Plan:
    return trace.plan()


def sizes_at(sized: Sized, extents: list[int]) -> Int64s:
    """The sizes of the scene's requests, by the laws as the page gets them."""
    by_law = [size_of(law, extents) for law in sized.laws]
    return np.where(sized.law < 0, sized.size, np.array(by_law, np.int64)[sized.law])


def size_of(law: Law, extents: list[int]) -> int:
    total = law.constant
    for coefficient, factors in law.terms:
        total += coefficient * math.prod(extents[factor] for factor in factors)
    return max(-(-max(total, 0) // law.divisor // law.step) * law.step, 1)


def sized_of(scene: Scene) -> Sized:
    assert scene.sized is not None
    return scene.sized


@pytest.mark.parametrize("extents", [(4, 64), (3, 25), (1, 1), (2, 63)])
def test_a_plans_requests_have_the_sizes_of_their_laws(
    plan: Plan, extents: tuple[int, int]
) -> None:
    scene = scene_of_plan(plan, "plan.json")
    names = dict(zip(("ids.0", "ids.1"), extents, strict=True))
    expected = plan.resized(names, time_limit=0.1).decisions.size
    assert sizes_at(sized_of(scene), list(extents)).tolist() == expected.tolist()
    assert set(changing_sizes(*extents)) <= set(expected.tolist())
    assert sized_of(scene).rectangles is None, "the last drawing has them"


def test_the_largest_extents_are_those_of_the_drawing(plan: Plan) -> None:
    scene = scene_of_plan(plan, "plan.json")
    sized = sized_of(scene)
    assert sized.extents == {"ids.0": 4, "ids.1": 64}
    assert sized.used == ["ids.0", "ids.1"]
    assert sizes_at(sized, [4, 64]).tolist() == scene.requests.size.tolist()


@pytest.mark.parametrize("extents", [(4, 64), (3, 25), (1, 1)])
def test_a_traces_requests_lie_at_the_plans_addresses(
    trace: Trace, plan: Plan, extents: tuple[int, int]
) -> None:
    scene = scene_of_trace(trace, plan, "trace.json")
    sized = sized_of(scene)
    assert sized.rectangles is not None
    sizes = sizes_at(sized, list(extents))
    rows = sized.rectangles
    drawn = {
        (start, address, int(sizes[request]))
        for request, start, address in zip(
            rows.request.tolist(), rows.start.tolist(), rows.address.tolist(), strict=True
        )
    }
    names = dict(zip(("ids.0", "ids.1"), extents, strict=True))
    resized = plan.resized(names, time_limit=0.1).decisions.size
    decisions = plan.decisions
    for start, address, size in zip(decisions.lower, decisions.offset, resized, strict=True):
        assert (start, address, size) in drawn
    # The weight outlives the iteration, beside the pool.
    assert (0, plan.pool, 100_000) in drawn
    moved = dataclasses.replace(scene.drawings[-1], rectangles=rows)
    requests = dataclasses.replace(scene.requests, size=sizes)
    assert overlapping(dataclasses.replace(scene, requests=requests, drawings=[moved])) == []
    assert int((rows.address + sizes[rows.request]).max()) <= scene.drawings[-1].reserved


def test_the_load_is_that_of_the_drawn_iteration(trace: Trace, plan: Plan) -> None:
    scene = scene_of_trace(trace, plan, "trace.json")
    assert scene.load < trace.profile().load_bytes, "the last iteration is not the largest"
    assert scene.load == 100_000 + 3000 + sum(changing_sizes(*SHAPES[-1])) + 256 * SHAPES[-1][1]


def test_laws_in_use_are_listed(plan: Plan) -> None:
    summaries = sized_of(scene_of_plan(plan, "plan.json")).summaries
    law = plan.decisions.law
    assert sum(summary.requests for summary in summaries) == np.count_nonzero(law >= 0)
    by_kind = {summary.kind: summary for summary in summaries}
    assert by_kind["cubic"].formula == "64 * ids.0 * ids.1 * ids.1"
    assert by_kind["cubic"].largest == 64 * 4 * 64 * 64
    assert by_kind["stepped"].proof == "proven"
    assert {"affine", "quadratic"} <= set(by_kind)


def test_the_least_certain_laws_come_first() -> None:
    document = changing_document(SHAPES[:3])
    sizes = document["requests"]["size"]
    noise = [row for row, size in enumerate(sizes) if size == 2000]
    for row, size in zip(noise, (2000, 2777, 2100), strict=True):
        sizes[row] = size
    scene = scene_of_plan(to_trace(document).plan(), "plan.json")
    proofs = [summary.proof for summary in sized_of(scene).summaries]
    assert proofs == sorted(proofs, key=["unexplained", "unproven", "proven"].index)
    assert len(set(proofs)) > 1


def test_without_laws_there_are_no_sizes() -> None:
    trace = to_trace(training_document())
    for scene in (
        scene_of_plan(trace.plan(), "plan"),
        scene_of_trace(trace, trace.plan(), "trace"),
        scene_of_plan(to_trace(changing_document([(4, 64)] * 4)).plan(), "constant"),
    ):
        assert scene.sized is None
        assert '"sized":null' in render(scene).decode()


def test_a_law_travels_exactly(plan: Plan) -> None:
    """JSON's numbers are the script's, which are exact up to 2^53."""
    scene = scene_of_plan(plan, "plan.json")
    large = Law(constant=(1 << 56) + 1, divisor=4095, step=1, terms=[((1 << 55) + 1, [0, 1])])
    scene = dataclasses.replace(scene, sized=dataclasses.replace(sized_of(scene), laws=[large]))
    match = re.search(r'id="description">(.*?)</script>', render(scene).decode())
    assert match is not None
    description: dict[str, Any] = json.loads(match[1])
    (law,) = description["sized"]["laws"]
    assert int(law["constant"]) == (1 << 56) + 1
    assert law["terms"] == [{"coefficient": str((1 << 55) + 1), "factors": [0, 1]}]
