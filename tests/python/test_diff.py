"""`stalloc diff`: what changed, and whether a plan still fits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshot_documents import dump, trained
from trace_documents import TraceWriter, random_document, to_trace, training_document

from stalloc import cli
from stalloc.comparison import Change, compare, run_of
from stalloc.plans import Plan

MIB = 1 << 20


def trace_of(
    forward: Sequence[int], backward: Sequence[int] = (512,), dynamic: int = 0, phases: int = 1
) -> dict[str, Any]:
    writer = TraceWriter()
    for iteration in range(3):
        for microbatch in range(phases):
            writer.phase("forward", microbatch)
            for size in forward:
                writer.free(writer.alloc(size))
            if dynamic:
                writer.free(writer.alloc(dynamic + iteration, dynamic=True))
        writer.phase("backward", 0)
        for size in backward:
            writer.free(writer.alloc(size))
        writer.step()
    return writer.document()


def changes(a: dict[str, Any], b: dict[str, Any]) -> list[tuple[str, str, int, int, int, int]]:
    found = compare(run_of(to_trace(a)), run_of(to_trace(b)))
    return [(c.phase, c.what, c.requests, c.size_a, c.size_b, c.bytes) for c in found.changes]


def test_the_same_is_the_same() -> None:
    run = run_of(to_trace(training_document()))
    found = compare(run, run)
    assert found.same
    assert found.fits == 1.0
    assert found.changes == []


def test_sizes_that_changed_are_paired_by_number() -> None:
    assert changes(trace_of([MIB, MIB, 3 * MIB]), trace_of([2 * MIB, 2 * MIB, 6 * MIB])) == [
        ("forward 0", "resized", 1, 3 * MIB, 6 * MIB, 3 * MIB),
        ("forward 0", "resized", 2, MIB, 2 * MIB, 2 * MIB),
    ]


def test_more_fewer_and_in_another_order() -> None:
    a = trace_of([MIB, MIB, 5 * MIB], [512, 1024])
    b = trace_of([MIB, 7 * MIB, 7 * MIB, 5 * MIB], [1024, 512])
    assert changes(a, b) == [
        ("forward 0", "more", 2, 0, 7 * MIB, 14 * MIB),
        ("forward 0", "fewer", 1, MIB, 0, -MIB),
        ("backward 0", "order", 2, 0, 0, 0),
    ]


def test_phases_that_are_new_or_gone() -> None:
    one, two = trace_of([MIB]), trace_of([MIB], phases=2)
    assert changes(one, two) == [("forward 1", "new phase", 1, 0, 0, MIB)]
    assert changes(two, one) == [("forward 1", "phase gone", 1, 0, 0, -MIB)]


def test_dynamic_requests_are_counted() -> None:
    found = changes(trace_of([MIB], dynamic=MIB), trace_of([MIB], dynamic=3 * MIB))
    assert found == [("forward 0", "dynamic", 0, 0, 0, 2 * MIB)]


def test_the_site_of_a_change_is_told() -> None:
    a, b = to_trace(trace_of([MIB])), to_trace(trace_of([2 * MIB]))
    assert compare(run_of(a), run_of(b)).changes == [
        Change("forward 0", "resized", 1, MIB, 2 * MIB, MIB, "model[0]")
    ]


def kept_for(requests: int) -> dict[str, Any]:
    """The fourth of 6 requests is freed when so many others have been allocated after it."""
    writer = TraceWriter()
    pending: list[list[int]] = []  # the request, and for how many others it stays
    for _ in range(4):
        writer.phase("forward", 0)
        for size in range(1, 7):
            for entry in pending:
                entry[1] -= 1
            new = writer.alloc(size * MIB)
            pending.append([new, requests if size == 4 else 0])
            for request, _ in (entry for entry in pending if entry[1] <= 0):
                writer.free(request)
            pending = [entry for entry in pending if entry[1] > 0]
        writer.step()
    return writer.document()


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 4), (3, 5)])  # 2 end the turn
def test_lives_that_grew_or_shrank(
    before: int, after: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short, long = kept_for(before), kept_for(after)
    assert changes(short, short) == []
    assert changes(short, long) == [("forward 0", "longer", 1, 4 * MIB, 4 * MIB, 0)]
    assert changes(long, short) == [("forward 0", "shorter", 1, 4 * MIB, 4 * MIB, 0)]
    plan, trace = str(tmp_path / "plan.json"), tmp_path / "trace.json"
    for old, new, verdict in ((short, long, "Profile again"), (long, short, "fits b")):
        to_trace(old).plan().save(plan, overwrite=True)
        trace.write_text(json.dumps(new))
        assert cli.main(["diff", plan, str(trace)]) == 0
        assert capsys.readouterr().out.rstrip().endswith(verdict + ".")
        assert cli.main(["diff", plan, str(trace), "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert not report["same"]
        assert report["fits"] == 1.0
        assert (report["a"]["pool"], report["b"]["pool"]) == (Plan.load(plan).pool, None)


@given(st.integers(0, 5000), st.integers(0, 5000))
@settings(max_examples=60, deadline=None)
def test_changes_account_for_all_bytes(seed_a: int, seed_b: int) -> None:
    a, b = (to_trace(random_document(seed)) for seed in (seed_a, seed_b))
    run_a, run_b = run_of(a), run_of(b)
    found = compare(run_a, run_b)

    def total(run: Any) -> int:
        return sum(size for shapes in run.planned.values() for size, _ in shapes)

    static = [c for c in found.changes if c.what != "dynamic"]
    assert sum(c.bytes for c in static) == total(run_b) - total(run_a)
    assert 0.0 <= found.fits <= 1.0
    assert found.same == (not found.changes)
    sizes = [abs(c.bytes) for c in found.changes]
    assert sizes == sorted(sizes, reverse=True)
    back = compare(run_b, run_a)
    assert sum(c.bytes for c in back.changes) == -sum(c.bytes for c in found.changes)
    # A plan has what its trace would get an address for.
    planned = compare(run_of(a.plan(time_limit=0.1)), run_a)
    assert planned.same


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(trace_of([MIB, MIB])))
    document = trace_of([2 * MIB, 2 * MIB])
    document["info"] = {"device": "cpu", "torch": "9.9"}
    b.write_text(json.dumps(document))
    return str(a), str(b)


def test_diff_for_programs(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", *files, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["same"] is False
    assert report["fits"] == pytest.approx(1 / 3)
    assert report["info"] == {"torch": ["", "9.9"]}
    assert report["a"]["bytes"] == 2 * MIB + 512
    assert report["changes"][0]["what"] == "resized"


def test_diff_for_people(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", *files]) == 0
    out = capsys.readouterr().out
    assert "1.0 MiB -> 2.0 MiB" in out
    assert "+2.0 MiB" in out
    assert "no longer fits" in out
    assert "\x1b" not in out
    assert cli.main(["diff", files[0], files[0]]) == 0
    assert "are the same" in capsys.readouterr().out


def test_diff_of_a_plan_and_a_newer_trace(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = str(tmp_path / "plan.json")
    assert cli.main(["plan", files[0], "-o", plan, "--json"]) == 0
    capsys.readouterr()
    assert cli.main(["diff", plan, files[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["same"] is True
    assert cli.main(["diff", plan, files[1], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fits"] == pytest.approx(1 / 3)


def test_diff_takes_snapshots_and_refuses_an_empty_trace(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = tmp_path / "snapshot.pickle"
    snapshot.write_bytes(dump(trained(4).document()))
    assert cli.main(["diff", str(snapshot), str(snapshot), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["same"] is True
    empty = tmp_path / "empty.json"
    empty.write_text(json.dumps(TraceWriter().document()))
    assert cli.main(["diff", str(empty), files[0]]) == 1
    assert "the trace holds no requests" in capsys.readouterr().err
