"""`stalloc import` and `stalloc replay`, and the functions behind them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from snapshot_documents import dump, last_step, trained
from trace_documents import to_trace, training_document

from stalloc import _core, cli, replaying
from stalloc.errors import PlanError, StallocError
from stalloc.plans import Plan
from stalloc.trace import Trace

ROW = [
    *("allocator", "load", "reserved", "peak_load", "peak_reserved", "efficiency"),
    *("peak_efficiency", "native_calls", "mallocs", "frees", "maps", "unmaps", "moves", "fits"),
    *("failed_request", "failed_size", "hit_rate", "measured", "scope", "streams", "fallback"),
]

RESERVED = ("pool", "resident")


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    path = tmp_path / "snapshot.pickle"
    document = last_step(unit=13 << 20)
    cached = {"address": 1 << 20, "total_size": 1 << 30, "stream": 0, "device": 0, "blocks": []}
    document["segments"].append(cached)
    path.write_bytes(dump(document))
    return str(path)


def answer(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> dict[str, Any]:
    assert cli.main([*args, "--json"]) == code
    out, _ = capsys.readouterr()
    assert out.count("\n") == 1
    result: dict[str, Any] = json.loads(out)
    return result


def test_import_writes_a_trace(
    snapshot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "trace.json"
    report = answer(capsys, "import", snapshot, "-o", str(out))
    trace = Trace.load(out)
    assert report["requests"] == len(trace.requests)
    assert report["iterations"] == 5
    assert report["kind"] == "pytorch snapshot"
    assert report["fingerprint"] == trace.fingerprint
    assert report["assumptions"]
    assert "is there already" in refusal(capsys, "import", snapshot, "-o", str(out))
    assert cli.main(["import", snapshot, "-o", str(out), "--force"]) == 0
    printed = capsys.readouterr().out
    assert "assumed:" in printed
    assert "\x1b" not in printed


def refusal(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert cli.main(args) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("command", ["import", "replay"])
def test_a_damaged_file_leaves_nothing_behind(
    command: str, snapshot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = Path(snapshot).read_bytes()
    Path(snapshot).write_bytes(content[: len(content) // 2])
    output = ["-o", str(tmp_path / "out.json")] if command == "import" else []
    assert "cut off" in refusal(capsys, command, snapshot, *output)
    assert list(tmp_path.iterdir()) == [Path(snapshot)]


def test_replay_plans_a_snapshot_by_itself(
    snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = answer(capsys, "replay", snapshot)
    rows = report["rows"]
    assert [row["allocator"] for row in rows] == [
        "torch",
        "torch, expandable segments",
        "stalloc",
    ]
    assert all(list(row) == ROW for row in rows)
    assert len({row["load"] for row in rows}) == 1
    for row in rows:
        assert row["reserved"] >= row["load"]
        assert row["efficiency"] == pytest.approx(row["load"] / row["reserved"])
        assert row["peak_efficiency"] == row["peak_load"] / row["peak_reserved"]
        assert row["fits"] is None
    assert rows[0]["measured"] is not None
    assert rows[1]["measured"] is None
    assert rows[2]["hit_rate"] == 1.0
    assert report["saved"] == rows[0]["peak_reserved"] - rows[2]["peak_reserved"]


def test_replay_of_a_trace_of_a_plan_and_of_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace_file, plan_file = tmp_path / "trace.json", tmp_path / "plan.json"
    trace_file.write_text(json.dumps(training_document(5)))
    plan = Trace.load(trace_file).plan()
    plan.save(plan_file)
    by_trace = answer(capsys, "replay", str(trace_file))["rows"][2]
    assert by_trace["load"] == plan.load_bytes
    both = answer(capsys, "replay", str(trace_file), "--plan", str(plan_file))["rows"][2]
    assert (by_trace["scope"], by_trace["streams"]) == ("iteration", "separate")
    assert both == by_trace
    by_plan = answer(capsys, "replay", str(plan_file))
    assert plan.resident > 0, "the weights"
    assert by_plan["rows"][2]["reserved"] == 2 * replaying.PAGE, "the pool, and the resident region"
    assert "no dynamic requests" in by_plan["assumptions"][0]


def test_replay_names_the_allocators_that_run_out_of_memory(
    snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = answer(capsys, "replay", snapshot)["rows"]
    torch, stalloc = rows[0]["peak_reserved"], rows[2]["peak_reserved"]
    assert stalloc < torch
    between = answer(capsys, "replay", snapshot, "--capacity", str(torch - 1))["rows"]
    assert [row["fits"] for row in between][::2] == [False, True]
    assert between[0]["failed_request"] >= 0
    assert between[0]["peak_reserved"] <= torch - 1
    assert cli.main(["replay", snapshot, "--capacity", str(torch - 1)]) == 0
    assert "torch runs out of memory" in capsys.readouterr().out
    assert cli.main(["replay", snapshot, "--capacity", "1MiB"]) == 3
    assert "stalloc does not fit 1.0 MiB" in capsys.readouterr().err


def test_replay_says_that_the_pool_exceeds_the_capacity(
    snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = answer(capsys, "replay", snapshot)["plan"]
    pool, resident = (-(-plan[key] // replaying.PAGE) * replaying.PAGE for key in RESERVED)
    for capacity, what, size in (
        (pool - 1, "the plan's pool takes", pool),
        (pool + resident - 1, "the plan's pool and resident region take", pool + resident),
    ):
        assert cli.main(["replay", snapshot, "--capacity", str(capacity)]) == 3
        out, err = capsys.readouterr()
        assert f"{what} {_core.format_bytes(size)} " in err
        assert f"{_core.format_bytes(capacity)} " in err
        assert "train with smaller batches" in err
        assert "request 0" not in err
        assert "stalloc " in out


def test_a_pool_that_does_not_fit_has_the_figures_of_a_device_without_limit() -> None:
    trace = to_trace(training_document())
    plan = trace.plan()
    free = replaying.replay_stalloc(trace, plan)
    row = replaying.replay_stalloc(trace, plan, capacity=1)
    assert (row.fits, row.efficiency, row.peak_efficiency) == (False, None, None)
    assert (row.failed_request, row.failed_size) == (-1, replaying.PAGE)
    assert row.peak_load == free.peak_load > 0
    assert row.peak_reserved == free.peak_reserved > 0


def test_replay_prints_the_savings(snapshot: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = answer(capsys, "replay", snapshot)
    assert cli.main(["replay", snapshot]) == 0
    out = capsys.readouterr().out
    assert f"With stalloc you would save {_core.format_bytes(report['saved'])}" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("capacity", ["0", "-1", "5GB", "99999999TiB", "many"])
def test_capacities_that_make_no_sense_are_wrong_usage(capacity: str, snapshot: str) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["replay", snapshot, f"--capacity={capacity}"])
    assert exit_.value.code == 2


def test_the_model_takes_one_request_at_a_time() -> None:
    model = _core.CachingModel(_core.CachingSettings(capacity=30 << 20))
    first = model.malloc(5 << 20)
    assert first is not None
    assert model.stats()["reserved"] == 20 << 20
    assert model.malloc(11 << 20, stream=1) is None
    model.free(first)
    second = model.malloc(11 << 20, stream=1)
    assert second is not None
    assert model.stats()["retries"] == 2
    with pytest.raises(StallocError, match="not live"):
        model.free(second + 1000)
    model.check()


def test_settings_have_a_limited_number_of_divisions() -> None:
    with pytest.raises(StallocError, match="16 intervals"):
        _core.CachingSettings(roundup_power2_divisions=[1] * 17)


def test_a_trace_that_is_no_trace_is_refused() -> None:
    trace = to_trace(training_document(2))
    rows = replaying.replay_all(trace, trace.plan())
    assert [row.fits for row in rows] == [None] * 3


def test_a_plan_with_too_long_a_period_is_refused() -> None:
    document = json.loads(to_trace(training_document(3)).plan()._core.to_json())
    for table in ("phases", "decisions", "groups", "reusable", "startup"):
        document[table] = {name: [] for name in document[table]}
    document |= {"absent": [], "pool": 0, "bound": 0, "period": 1 << 62}
    plan = Plan.from_json(json.dumps(document).encode(), "plan.json")
    with pytest.raises(PlanError, match="too long"):
        replaying.unroll(plan)


def test_a_measurement_below_the_load_is_none() -> None:
    trace = to_trace(training_document(3))
    load = trace.profile().load_bytes
    for reserved, expected in ((load - 1, None), (load, load), ("unknown", None)):
        trace.info = {"torch_reserved": str(reserved)}
        assert replaying.replay_torch(trace).measured == expected
        assert replaying.replay_torch(trace, expandable_segments=True).measured is None
        trace.info = {"torch_reserved": str(reserved), "torch_expandable_segments": "True"}
        assert replaying.replay_torch(trace).measured is None
        assert replaying.replay_torch(trace, expandable_segments=True).measured == expected


def test_torch_is_replayed_with_the_settings_that_were_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "snapshot.pickle"
    document = last_step(unit=3 << 20)
    document["segments"][0]["total_size"] += 1 << 30
    path.write_bytes(dump(document))
    default = answer(capsys, "replay", str(path))
    assert not any("settings it had" in text for text in default["assumptions"])
    divisions = {str(1 << power): 2 for power in range(16)}
    document["allocator_settings"] |= {
        "max_split_size": 64 << 20,
        "garbage_collection_threshold": 0.8,
        "roundup_power2_divisions": divisions,
        "expandable_segments": True,
    }
    path.write_bytes(dump(document))
    report = answer(capsys, "replay", str(path))
    assert (
        "torch is replayed with the settings it had: expandable_segments (the other row is "
        "without), max_split_size of 64.0 MiB, "
        f"garbage_collection_threshold 0.8, roundup_power2_divisions {','.join('2' * 16)}"
    ) in report["assumptions"]
    torch, expandable, stalloc = report["rows"]
    assert torch["reserved"] > default["rows"][0]["reserved"]
    assert expandable["reserved"] > default["rows"][1]["reserved"]
    assert stalloc["reserved"] == default["rows"][2]["reserved"]
    # The recording is the truth for its own settings.
    assert torch["measured"] is None
    assert expandable["measured"] is not None
    assert report["saved"] == expandable["peak_reserved"] - stalloc["peak_reserved"]
    assert cli.main(["replay", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    share = report["saved"] / expandable["peak_reserved"]
    assert f"({share:.1%} of what torch with expandable segments reserves)" in said
    output = tmp_path / "report.html"
    rows = answer(capsys, "report", str(path), "-o", str(output))["rows"]
    assert rows[0]["allocator"] == expandable["allocator"]
    assert rows[0]["reserved"] == expandable["reserved"]


@pytest.mark.parametrize(
    "settings",
    [
        {"max_split_size": -1, "garbage_collection_threshold": 0.0},
        {"max_split_size": (1 << 64) - 1, "roundup_power2_divisions": {"1": -5, "2": "x"}},
        {"max_split_size": "many", "garbage_collection_threshold": "nan"},
        {"roundup_power2_divisions": {"1": 1 << 70, "4": None, 3: 3}},
        {"roundup_power2_divisions": [1, 2], "expandable_segments": "perhaps"},
    ],
)
def test_settings_that_make_no_sense_are_none(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "snapshot.pickle"
    document = trained(3).document()
    path.write_bytes(dump(document))
    default = answer(capsys, "replay", str(path))
    document["allocator_settings"] = settings
    path.write_bytes(dump(document))
    report = answer(capsys, "replay", str(path))
    assert report["rows"] == default["rows"]
    assert report["assumptions"] == default["assumptions"]


def test_replay_out_of_memory_has_no_efficiency(
    snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["replay", snapshot, "--capacity", "1", "--json"]) == 3
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert [row["efficiency"] for row in report["rows"]] == [None] * 3
    assert [row["fits"] for row in report["rows"]] == [False] * 3
    assert report["saved"] is None
    assert err.count("\n") == 1
    assert cli.main(["replay", snapshot, "--capacity", "1"]) == 3
    assert "1.0000" not in capsys.readouterr().out
