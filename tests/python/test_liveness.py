"""`stalloc inspect`: the live curve, what is live at a moment, and who holds it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshot_documents import dump, last_step
from trace_documents import TraceWriter, random_document, to_trace, training_document

from stalloc import cli, liveness
from stalloc.commands import curve
from stalloc.liveness import Liveness


def answer(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert cli.main([*args, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(training_document()))
    return str(path)


def brute_force(live: Liveness, tick: int) -> int:
    rows = (live._lower <= tick) & (tick < live._upper)
    return int(live._size[rows].sum())


@given(st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_curve_is_the_sum_of_live_requests(seed: int) -> None:
    trace = to_trace(random_document(seed))
    plan = trace.plan(time_limit=0.1)
    for live in (liveness.of_trace(trace), liveness.of_plan(plan)):
        everywhere = [brute_force(live, tick) for tick in range(live.period)]
        assert [live.live_at(tick) for tick in range(live.period)] == everywhere
        if everywhere:
            assert live.live_at(live.peak) == max(everywhere)
            assert max(live.sampled(7)) == max(everywhere)
        for tick in range(0, live.period, 5):
            holders = live.holders_at(tick)
            assert sum(h.bytes for h in holders) == everywhere[tick]
            assert [h.bytes for h in holders] == sorted((h.bytes for h in holders), reverse=True)
    profile = trace.profile()
    assert max(liveness.of_trace(trace).live, default=0) == profile.load_bytes
    assert sum(h.requests for h in liveness.of_trace(trace).holders()) == len(profile.requests)


def test_tells_earlier_live_requests_apart() -> None:
    live = liveness.of_trace(to_trace(training_document()))
    holders = live.holders_at(live.peak)
    assert {h.phase for h in holders} == {"before", "forward 0", "unplanned"}
    before = next(h for h in holders if h.phase == "before")
    assert before.bytes == 100_000  # the weights; the gradient went as forward began
    assert live.phase_at(live.peak) == "unplanned"


def test_inspect_shows_the_curve_the_peak_and_the_sites(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = answer(capsys, "inspect", trace)["live"]
    assert max(report["curve"]) == report["at"]["live"]
    assert report["sites"][0] == {
        "site": "model[0]",
        "phase": "unplanned",
        "requests": 1,
        "bytes": 50_000,
        "largest": 50_000,
    }
    assert cli.main(["inspect", trace]) == 0
    out = capsys.readouterr().out
    assert "Live in one iteration" in out
    assert f"Live at tick {report['at']['tick']}" in out
    assert "f forward, b backward" in out
    assert "\x1b" not in out


def test_inspect_at_a_tick(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = answer(capsys, "inspect", trace, "--at", "0")["live"]["at"]
    # The weights and the gradient of the iteration before, and the first activation.
    assert report["live"] == 104_000
    assert report["phase"] == "forward 0"
    assert report["requests"] == 3
    for tick in ("10000", "9" * 18):
        assert cli.main(["inspect", trace, f"--at={tick}"]) == 1
        assert f"there is no tick {tick}" in capsys.readouterr().err


def test_inspect_shows_no_more_rows_than_asked_for(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(answer(capsys, "inspect", trace, "--top", "2")["live"]["sites"]) == 2
    assert cli.main(["inspect", trace, "--top", "1"]) == 0
    assert "more with" in capsys.readouterr().out


def test_inspect_of_a_plan_and_of_a_snapshot(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = str(tmp_path / "plan.json")
    assert cli.main(["plan", trace, "-o", plan, "--json"]) == 0
    capsys.readouterr()
    report = answer(capsys, "inspect", plan)
    assert report["kind"] == "plan"
    assert report["live"]["at"]["live"] <= report["pool"]
    snapshot = tmp_path / "snapshot.pickle"
    snapshot.write_bytes(dump(last_step()))
    report = answer(capsys, "inspect", str(snapshot))
    assert report["kind"] == "trace"
    assert any(h["site"] == "model.py:10 forward" for h in report["live"]["sites"])
    assert cli.main(["inspect", str(snapshot)]) == 0
    out = capsys.readouterr().out
    assert "assumed:" in out
    assert "MulBackward0" in out


def test_an_empty_trace_has_nothing_live(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(TraceWriter().document()))
    report = answer(capsys, "inspect", str(path))["live"]
    assert report["curve"] == [0]
    assert report["at"] == {"tick": 0, "phase": "", "live": 0, "requests": 0, "holders": []}
    assert cli.main(["inspect", str(path)]) == 0


def test_drawing_is_as_high_as_the_live_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    live = Liveness(
        period=8,
        lower=np.array([0, 4]),
        upper=np.array([8, 8]),
        size=np.array([1024, 1024]),
        phase=np.array([0, 0], np.int32),
        site=np.array([-1, -1], np.int32),
        phases=[(0, "forward 0"), (4, "backward 0")],
        sites=[],
    )
    monkeypatch.setattr(curve, "_speaks_unicode", lambda: False)
    lines = curve.draw(live)
    assert lines[0] == "2.0 KiB |    ####"
    assert lines[4] == "        |########"
    assert lines[7] == "    0 B |########"
    assert lines[8] == "         ffffbbbb"


@pytest.mark.parametrize(
    ("limit", "first", "row"),
    [
        (1000, "1000 B |---", 0),  # of 600 bytes at the most
        (300, "600 B |", 3),
        (5000, "4.9 KiB |---", 0),  # far above: not to scale
        (0, "600 B |", 7),
    ],
)
def test_a_limit_is_drawn_where_the_curve_leaves_room(limit: int, first: str, row: int) -> None:
    writer = TraceWriter()
    writer.phase("forward", 0)
    for size in (100, 200, 300):
        writer.alloc(size)
    live = liveness.of_trace(to_trace(writer.document()), whole=True)
    lines = curve.draw(live, limit)
    assert lines[0].lstrip().startswith(first.lstrip())
    assert lines[row].count("-") > 0 or limit == 0
    assert [line for line in lines if "..." in line.partition("|")[0]] == (
        [lines[1]] if limit > 1200 else []
    )
