"""Reports: the drawing, its packed data, and the command's output and exit codes."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cli import answer, refusal
from trace_documents import TraceWriter, random_document, to_trace, training_document

from stalloc import Plan, PlanError, Trace, cli
from stalloc.recordings import changed
from stalloc.report import Scene, render, scene_of_plan, scene_of_trace
from stalloc.report.drawing import Drawing, around_the_end, running_sum
from stalloc.report.pack import Packed, pack
from stalloc.report.scene import CLASSES

TYPES = {"u8": "<u1", "u16": "<u2", "u32": "<u4", "f64": "<f8"}


def unpack(packed: Packed) -> dict[str, list[float]]:
    """The result of the page's script."""
    content = zlib.decompress(base64.b64decode(packed.text))
    columns = {}
    for name, entry in packed.manifest.items():
        where: Any = entry
        stored = np.frombuffer(content, TYPES[where["type"]], where["length"], where["offset"])
        values = where["base"] + where["scale"] * stored.astype(np.float64)
        columns[name] = (np.cumsum(values) if where.get("steps") else values).tolist()
    return columns


def overlapping(scene: Scene, drawing: int = -1) -> list[tuple[int, int]]:
    """Pairs of rectangles that share a byte at some tick; the long way."""
    rows = scene.drawings[drawing].rectangles
    size = scene.requests.size[rows.request]
    found = []
    for i in range(len(rows)):
        for j in range(i):
            together = rows.start[i] < rows.end[j] and rows.start[j] < rows.end[i]
            if (
                together
                and rows.address[i] < rows.address[j] + size[j]
                and rows.address[j] < rows.address[i] + size[i]
            ):
                found.append((j, i))
    return found


@pytest.fixture
def trace() -> Trace:
    return to_trace(training_document())


@pytest.fixture
def trace_file(tmp_path: Path) -> str:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(training_document()))
    return str(path)


def test_every_class_of_lifetime_is_told(trace: Trace) -> None:
    scene = scene_of_trace(trace, trace.plan(), "trace.json")
    requests = scene.requests
    by_size = {
        int(size): CLASSES[kind]
        for size, kind in zip(requests.size, requests.lifetime, strict=True)
    }
    assert by_size == {
        100_000: "persistent",
        1000: "scoped",
        2000: "scoped",
        3000: "wrap-around",
        702: "dynamic",
        50_000: "transient",
        400: "transient",
    }


def test_the_live_curve_reaches_the_load(trace: Trace) -> None:
    scene = scene_of_trace(trace, trace.plan(), "trace.json")
    size = scene.requests.size[scene.live.request]
    _, live = running_sum(
        np.concatenate([scene.live.start, scene.live.end]), np.concatenate([size, -size])
    )
    assert live.max() == scene.load == trace.profile().load_bytes
    assert live[-1] == 0


@pytest.mark.parametrize("seed", range(20))
def test_nothing_that_is_drawn_overlaps(seed: int) -> None:
    trace = to_trace(random_document(seed))
    plan = trace.plan(time_limit=0.2)
    for scene in (scene_of_trace(trace, plan, "trace"), scene_of_plan(plan, "plan")):
        for drawing in range(len(scene.drawings)):
            assert overlapping(scene, drawing) == []
            rows = scene.drawings[drawing].rectangles
            assert np.all((rows.start >= 0) & (rows.start < rows.end) & (rows.end <= scene.period))


@pytest.mark.parametrize("seed", range(20))
def test_both_drawings_hold_every_request_within_reserved_memory(seed: int) -> None:
    trace = to_trace(random_document(seed))
    plan = trace.plan(time_limit=0.2)
    for scene in (scene_of_trace(trace, plan, "trace"), scene_of_plan(plan, "plan")):
        assert [drawing.allocator for drawing in scene.drawings] == ["torch", "stalloc"]
        for drawing in scene.drawings:
            assert set(drawing.rectangles.request) == set(scene.live.request)
            assert outside(scene, drawing) == []


def outside(scene: Scene, drawing: Drawing) -> list[int]:
    """Rectangles of which some part lies in no segment that is held all the while."""
    rows, held = drawing.rectangles, drawing.segments
    found = []
    for i in range(len(rows)):
        first, last = rows.address[i], rows.address[i] + scene.requests.size[rows.request[i]]
        through = (held.start <= rows.start[i]) & (held.end >= rows.end[i])
        at = first
        for j in np.flatnonzero(through):  # they ascend
            if held.address[j] <= at < held.address[j] + held.size[j]:
                at = held.address[j] + held.size[j]
        if at < last:
            found.append(i)
    return found


def test_torch_is_replayed_by_its_policy() -> None:
    """Three requests of 1 MiB and one of 30 MiB: two small segments, and one of its own."""
    writer = TraceWriter()
    for _ in range(3):
        writer.phase("forward", 0)
        held = [writer.alloc(size << 20) for size in (1, 1, 1, 30)]
        for request in held:
            writer.free(request)
        writer.step()
    trace = to_trace(writer.document())
    scene = scene_of_trace(trace, trace.plan(), "small.json")
    torch, planned = scene.drawings
    assert torch.segments.size.tolist() == [2 << 20, 2 << 20, 30 << 20]
    assert torch.rectangles.address.tolist() == [0, 1 << 20, 2 << 20, 4 << 20]
    assert (torch.reserved, planned.reserved) == (34 << 20, 33 << 20)


def test_room_for_dynamic_requests_is_drawn(trace: Trace) -> None:
    plan = trace.plan()
    for scene in (scene_of_trace(trace, plan, "trace"), scene_of_plan(plan, "plan")):
        torch, planned = scene.drawings
        assert len(torch.regions) == 0
        assert (
            planned.regions.size.tolist() == plan.groups.size[plan.groups.size > 0].tolist() != []
        )


def test_a_wrap_around_is_drawn_at_both_ends() -> None:
    one = np.array([0], np.int64)
    rows = around_the_end(one, one, one + 8, one + 13, period=10)
    assert rows.start.tolist() == [8, 0]
    assert rows.end.tolist() == [10, 3]
    rows = around_the_end(one, one, one + 8, one + 10, period=10)
    assert rows.end.tolist() == [10]


def test_a_plan_of_another_trace_is_refused(trace: Trace) -> None:
    other = to_trace(training_document(iterations=4)).plan()
    with pytest.raises(PlanError, match=r"made from trace .* plan it again"):
        scene_of_trace(trace, other, "trace.json")


INTEGERS = st.integers(-(2**51), 2**51)


@given(st.lists(INTEGERS) | st.lists(INTEGERS).map(sorted) | st.lists(st.integers(0, 9)))
@settings(deadline=None)
def test_columns_come_back(values: list[int]) -> None:
    assert unpack(pack({"a": values, "b": [7]})) == {"a": values, "b": [7]}


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
@settings(deadline=None)
def test_huge_numbers_come_back_nearly(values: list[int]) -> None:
    back = unpack(pack({"a": values}))["a"]
    assert back == pytest.approx([float(v) for v in values], rel=1e-9, abs=2.0**12)


def test_addresses_take_four_bytes() -> None:
    packed = pack({"address": (np.arange(1000) * 7919 % 1000) * 512 + 2**41})
    assert packed.manifest["address"]["type"] == "u16"
    assert packed.manifest["address"]["scale"] == 512


def test_names_cannot_leave_their_place(trace: Trace) -> None:
    trace.info = {"model": "</script><script>alert(1)</script>"}
    page = render(scene_of_trace(trace, trace.plan(), "<b>&.json")).decode()
    assert "alert(1)</script>" not in page
    assert "<b>" not in page
    assert page.count("<script") == 3


def test_the_page_asks_for_nothing(trace: Trace) -> None:
    page = render(scene_of_plan(trace.plan(), "plan.json")).decode()
    assert "default-src 'none'" in page
    assert re.findall(r"https?://|<link|<img|@import|url\(", page) == []


def test_report_writes_a_page(
    trace_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.html"
    said = answer(capsys, "report", trace_file, "-o", str(out))
    assert said["output"] == str(out)
    assert said["bytes"] == out.stat().st_size
    assert said["requests"] == 8
    assert [row["allocator"] for row in said["rows"]] == ["torch", "stalloc"]
    for row in said["rows"]:
        assert row["load"] == 153_702
        assert row["efficiency"] == row["load"] / row["reserved"]
    assert out.read_bytes().startswith(b"<!doctype html>")


def test_report_of_a_plan(trace: Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "plan.json", tmp_path / "report.html"
    plan = trace.plan()
    plan.save(path)
    said = answer(capsys, "report", str(path), "-o", str(out))
    assert said["requests"] == len(plan.decisions)
    assert said["rows"][-1]["reserved"] == plan.pool


def test_report_and_inspect_say_which_load_they_name(
    trace_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = str(tmp_path / "plan.json")
    Trace.load(trace_file).plan().save(plan)
    for path, drawn in (
        (trace_file, "of the drawn iteration"),
        (plan, "of the planned requests"),
    ):
        assert cli.main(["report", path, "-o", str(tmp_path / "out"), "--force"]) == 0
        said = capsys.readouterr().out.splitlines()
        assert [line for line in said if line.startswith("load") and line.endswith(f", {drawn}")]
        (row,) = [line for line in said if line.startswith("stalloc")]
        assert row.endswith(", not rounded to pages")
        assert cli.main(["inspect", path]) == 0
        said = capsys.readouterr().out.splitlines()
        assert [line for line in said if line.startswith("largest load ")]
        assert not [line for line in said if line.startswith("load")]


def test_report_takes_a_plan_that_there_is(
    trace_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "plan.json", tmp_path / "report.html"
    Trace.load(trace_file).plan(algorithm="paper").save(path)
    answer(capsys, "report", trace_file, "--plan", str(path), "-o", str(out))
    assert '"plan":"paper"' in out.read_text()
    refusal(capsys, 1, "report", str(path), "--plan", str(path), "-o", str(tmp_path / "other"))


def test_report_replaces_nothing_unasked(
    trace_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.html"
    out.write_text("mine")
    assert "--force" in refusal(capsys, 1, "report", trace_file, "-o", str(out))
    assert out.read_text() == "mine"
    answer(capsys, "report", trace_file, "-o", str(out), "--force")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["report.html", "trace.json"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"{}", "traceEvents"),
        (b"\x00\xff", "no file of a known kind"),
        (b'{"format": "stalloc-plan"}', "version|missing|info"),
    ],
)
def test_report_explains_a_bad_file(
    content: bytes, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    said = refusal(capsys, 1, "report", str(path), "-o", str(tmp_path / "out.html"))
    assert "bad.json" in said
    assert re.search(reason, said)
    assert not (tmp_path / "out.html").exists()


def test_report_of_a_plan_without_requests(tmp_path: Path) -> None:
    document = training_document(iterations=2)
    trace = to_trace(document)
    plan = Plan.from_json(
        json.dumps(empty_plan(json.loads(trace_json(trace.plan(), tmp_path)))).encode(), "empty"
    )
    assert render(scene_of_plan(plan, "empty"))


def trace_json(plan: Plan, folder: Path) -> str:
    plan.save(folder / "full.json")
    return (folder / "full.json").read_text()


def empty_plan(document: dict[str, Any]) -> dict[str, Any]:
    for table in ("decisions", "groups", "reusable"):
        document[table] = {name: [] for name in document[table]}
    return document | {"pool": 0, "bound": 0}


def test_the_page_of_an_estimate_opens_with_its_verdict(trace: Trace) -> None:
    told = {"verdict": "may not fit on 2GiB with torch", "gpu_limit": "123456789"}
    estimated = changed(trace, info={**trace.info, **told})
    scene = scene_of_trace(estimated, estimated.plan(), "rank0.trace.json")
    assert (scene.verdict, scene.limit) == (told["verdict"], 123456789)
    assert scene.facts["gpu_limit"] == "117.7 MiB (123,456,789 B)"
    page = render(scene).decode()
    assert '"verdict":"may not fit on 2GiB with torch","limit":123456789' in page
    assert (
        '"verdict":"","limit":null' in render(scene_of_trace(trace, trace.plan(), "other")).decode()
    )
