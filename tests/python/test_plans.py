"""Plans in Python: files, columns, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from trace_documents import Document, TraceWriter, damaged, to_trace, training_document

from stalloc.errors import PlanError
from stalloc.plans import Plan
from stalloc.trace import Trace

SCHEMAS = Path(__file__).parents[2] / "docs" / "schema"


@pytest.fixture
def plan() -> Plan:
    return to_trace(training_document()).plan()


@pytest.fixture
def document(plan: Plan, tmp_path: Path) -> Document:
    plan.save(tmp_path / "document.json")
    document: Document = json.loads((tmp_path / "document.json").read_text())
    return document


def test_shows_figures_and_columns(plan: Plan) -> None:
    assert plan.decisions.size.tolist() == [1000, 2000, 3000, 400]
    assert plan.pool == plan.bound == 1024 + 2048 + 3072
    assert plan.optimal
    assert plan.gap == 0.0
    assert plan.alignment == 512
    assert [plan.phases.name(row) for row in plan.decisions.phase] == [
        *("forward 0", "forward 0", "backward 0", "optimizer")
    ]
    assert plan.summary()["pool"] == plan.pool
    assert plan.summary()["decisions"] == 4
    assert repr(plan) == "<Plan of 4 decisions, pool 6,144 bytes, gap 0.00%, optimal>"


def test_a_saved_plan_loads_as_it_was(plan: Plan, tmp_path: Path) -> None:
    plan.info = {**plan.info, "rank": "3"}
    path = tmp_path / "plan.json"
    plan.save(path)
    again = Plan.load(path)
    assert again.summary() == plan.summary()
    assert again.info == {"device": "cpu", "rank": "3"}
    assert again.decisions.offset.tolist() == plan.decisions.offset.tolist()
    with pytest.raises(FileExistsError):
        again.save(path)
    again.save(path, overwrite=True)


def test_dynamic_requests_have_groups_with_regions_and_reusable_space(plan: Plan) -> None:
    groups, reusable = plan.groups, plan.reusable
    assert len(groups) == 1
    assert groups.size[0] > 0
    assert groups.offset[0] + groups.size[0] <= plan.pool
    assert 0 <= groups.lower[0] < groups.upper[0]
    assert set(reusable.group.tolist()) <= {0}
    assert np.all(reusable.begin < reusable.end)
    summary = plan.summary()
    assert summary["groups"] == 1
    assert summary["region_bytes"] == groups.size[0]
    assert summary["headroom"] == plan.headroom
    assert plan.headroom_cost >= 0
    assert plan.headroom_saves >= 0


def test_regions_and_groups_can_be_switched_off() -> None:
    trace = to_trace(training_document())
    reuse = trace.plan(regions=False)
    assert reuse.groups.size.tolist() == [0]
    assert len(reuse.reusable) > 0
    assert len(trace.plan(dynamic=False).groups) == 0


def _two_streams() -> Trace:
    writer = TraceWriter()
    for _ in range(3):
        writer.phase("forward", 0)
        for stream in (0, 1, 0, 1):
            writer.free(writer.alloc(4096, stream))
        writer.step()
    return to_trace(writer.document())


def test_streams_share_addresses_where_they_are_ordered(tmp_path: Path) -> None:
    trace = _two_streams()
    separate, ordered = trace.plan(), trace.plan(streams="ordered")
    assert (separate.streams, ordered.streams) == ("separate", "ordered")
    assert (separate.pool, ordered.pool) == (8192, 4096)
    assert ordered.optimal
    ordered.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again.streams == "ordered"
    assert again.summary() == ordered.summary()
    document: Document = json.loads((tmp_path / "plan.json").read_text())
    schema = json.loads((SCHEMAS / "plan.schema.json").read_text())
    jsonschema.validate(document, schema)
    (tmp_path / "plan.json").write_text(json.dumps(damaged(document, "streams", value="both")))
    with pytest.raises(PlanError, match='streams: expected "ordered", or no such key'):
        Plan.load(tmp_path / "plan.json")
    del document["streams"]
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(PlanError, match="overlap"):
        Plan.load(tmp_path / "plan.json")
    with pytest.raises(PlanError, match='"auto", "separate" or "ordered", not \'both\''):
        trace.plan(streams="both")  # type: ignore[arg-type]


def test_patterns_of_dynamic_modules_are_saved(plan: Plan, tmp_path: Path) -> None:
    assert plan.dynamic == []
    plan.dynamic = ("Experts", "*.mlp")
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again.dynamic == ["Experts", "*.mlp"]
    assert again.groups.upper.tolist() == plan.groups.upper.tolist()
    assert again.reusable.end.tolist() == plan.reusable.end.tolist()


def test_saved_file_follows_the_schema(document: Document) -> None:
    schema = json.loads((SCHEMAS / "plan.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    validator.validate(document)
    for key in document:
        assert not validator.is_valid({k: v for k, v in document.items() if k != key})
    assert not validator.is_valid(damaged(document, "decisions", "offset", 0, value=None))
    assert not validator.is_valid(damaged(document, "phases", "kind", 0, value="unplanned"))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("version",), 3, "is of version 3, and this stalloc reads version 2: upgrade stalloc"),
        (("format",), "stalloc-trace", "holds a 'stalloc-trace', where a 'stalloc-plan' is needed"),
        (("decisions", "offset", 1), 512, "overlap"),
        (("decisions", "offset", 1), 1, "not aligned to 512"),
        (("decisions", "offset", 2), 1 << 40, "ends above the height of 6144"),
        (("decisions", "offset", 0), -512, "is not placed"),
        (("decisions", "offset", 0), "0", "decisions.offset, row 0: expected an integer"),
        (("decisions", "phase", 0), 9, "decisions, row 0: lives from phase 9"),
        (("decisions", "upper", 3), 10**6, "decisions, row 3"),
        (("decisions", "size", 0), 0, "decisions, row 0: a size of 0"),
        (("groups", "after", 0), 9, "groups, row 0: comes after decision 9"),
        (("startup", "after", 0), 9, "startup, row 0: comes after decision 9"),
        (("startup", "offset", 0), 0, "100000 bytes at 0 stay, and are not inside"),
        (("absent",), [9], "absent, row 0: decision 9 is out of order, or there is none"),
        (("resident",), -512, "resident: -512 bytes"),
        (("reusable", "group", 0), 5, "reusable, row 0: belongs to group 5"),
        (("headroom",), -1, "headroom: -1 per cent"),
        (("decisions", "stream"), [0], "decisions.stream: has 1 rows, but 'size' has 4"),
        (("pool",), 10**20, "pool: expected an integer of 64 bits"),
        (("pool",), 5, "pool: 5 bytes, less than the bound"),
        (("optimal",), 1, "optimal: expected true or false"),
        (("alignment",), 0, "alignment"),
    ],
)
def test_refuses_plans_that_cannot_be_followed(
    document: Document, path: tuple[str | int, ...], value: Any, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(damaged(document, *path, value=value)))
    with pytest.raises(PlanError) as error:
        Plan.load(file)
    assert str(error.value).startswith(f"{file}: ")
    assert message in str(error.value)


def test_a_truncated_file_is_refused(plan: Plan, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plan.save(file)
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(PlanError, match="the file ends too early: it was cut off"):
        Plan.load(file)
