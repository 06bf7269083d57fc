"""The command line: its output, files and exit codes."""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from documented import documented_keys
from snapshot_documents import dump, trained
from trace_documents import TraceWriter, to_trace, training_document

from stalloc import _core, cli, planner
from stalloc.commands.inputs import bytes_of
from stalloc.dynamic import DEFAULT_DYNAMIC
from stalloc.plans import Plan

CSV = "id,lower,upper,size\na,0,4,100\nb,0,9,50\nc,4,9,80\n"
KEYS = ["buffers", "bound", "pool", "gap", "optimal", "algorithm", "seconds", "validated"]
DOCUMENTED = documented_keys()


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(training_document()))
    return str(path)


@pytest.fixture
def csv(tmp_path: Path) -> str:
    path = tmp_path / "problem.csv"
    path.write_text(CSV)
    return str(path)


def answer(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    """The JSON of a successful command: one line, and nothing else."""
    assert cli.main([*args, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("\n") == 1
    result: dict[str, Any] = json.loads(out)
    return result


def refusal(capsys: pytest.CaptureFixture[str], code: int, *args: str) -> str:
    """The message of a failing command: one line on stderr, and nothing else."""
    assert cli.main(args) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"stalloc {args[0]}: ")
    return err


def test_plan_turns_a_trace_into_a_plan(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.json"
    report = answer(capsys, "plan", trace, "-o", str(out))
    assert list(report) == KEYS
    plan = Plan.load(out)
    assert report["buffers"] == len(plan.decisions) == 4
    assert report["pool"] == report["bound"] == plan.pool == 6144
    assert report["gap"] == 0.0
    assert report["optimal"] is True
    assert report["validated"] is True
    assert report["algorithm"] == plan.algorithm


def test_plan_lets_streams_share_addresses(
    csv: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = TraceWriter()
    for _ in range(3):
        writer.phase("forward", 0)
        for stream in (0, 1):
            writer.free(writer.alloc(4096, stream))
        writer.step()
    trace, out = tmp_path / "streams.json", tmp_path / "plan.json"
    to_trace(writer.document()).save(trace)
    assert answer(capsys, "plan", str(trace))["pool"] == 8192
    assert (
        answer(capsys, "plan", str(trace), "--streams", "ordered", "-o", str(out))["pool"] == 4096
    )
    assert Plan.load(out).streams == "ordered"
    assert cli.main(["inspect", str(out)]) == 0
    assert "2, which share addresses" in capsys.readouterr().out
    assert answer(capsys, "inspect", str(out))["ordered"] is True
    assert "names no streams: leave out --streams" in refusal(
        capsys, 1, "plan", csv, "--streams", "ordered"
    )


def test_plan_turns_a_csv_into_one_with_offsets(
    csv: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "solution.csv"
    report = answer(capsys, "plan", csv, "-o", str(out))
    assert list(report) == KEYS
    assert report["buffers"] == 3
    assert report["pool"] == 150
    solution = planner.load_csv(out)
    assert solution.ids == ["a", "b", "c"]
    assert solution.offsets is not None
    planner.validate(solution.offsets, solution.lower, solution.upper, solution.size, height=150)
    again = answer(capsys, "plan", str(out))
    assert again["pool"] == 150


def test_plan_takes_alignment_algorithm_and_time_limit(
    csv: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--algorithm", "first-fit-size", "--time-limit", "0.5")
    report = answer(capsys, "plan", csv, "--alignment", "64", *options)
    assert report["pool"] == 192
    assert report["algorithm"] == "first-fit-size"
    report = answer(capsys, "plan", trace, "--alignment", "1KiB", *options)
    assert report["pool"] % 1024 == 0


@pytest.mark.parametrize("option", ["--streams=ordered", "--extent=ids.1=8"])
def test_plan_refuses_options_that_a_csv_has_no_use_for(
    option: str, csv: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.csv"
    message = refusal(capsys, 1, "plan", csv, option, "-o", str(out))
    assert f"leave out {option.partition('=')[0]}" in message
    assert not out.exists()


def test_plan_says_the_same_to_people(csv: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", csv]) == 0
    out, _ = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert ["pool", "150", "B"] in lines
    assert ["gap", "0.000%,", "proven", "optimal"] in lines
    assert "\x1b" not in out


def test_plan_never_replaces_a_file_unasked(
    csv: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "solution.csv"
    out.write_text("mine")
    assert "--force" in refusal(capsys, 1, "plan", csv, "-o", str(out))
    assert out.read_text() == "mine"
    answer(capsys, "plan", csv, "-o", str(out), "--force")
    assert out.read_text() != "mine"


@pytest.mark.parametrize("kind", ["csv", "trace"])
def test_plan_exits_with_3_when_it_does_not_fit(
    kind: str, csv: str, trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, enough, too_little = {"csv": (csv, "150", "149"), "trace": (trace, "6KiB", "6143")}[kind]
    out = tmp_path / "out"
    message = refusal(capsys, 3, "plan", path, "-o", str(out), "--capacity", too_little)
    assert path in message
    assert too_little in message.replace(",", "")
    assert not out.exists()
    answer(capsys, "plan", path, "-o", str(out), "--capacity", enough)
    assert out.exists()


def test_bad_input_exits_with_1_and_one_line(
    csv: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad"
    for content, message in {
        b"": "the file is empty",
        b"id,lower,upper,size\n0,0,1\n": "line 2",
        b"\xff\xfe": "text in UTF-16",
        b"{": "JSON that is cut off",
        b'{"format": "stalloc-plan", "version": 1}': "this is a stalloc plan, and a trace is "
        "needed: give the trace that the plan was made of",
        b'{"format": "stalloc-trace", "version": 9}': "version 9",
        json.dumps(training_document() | {"iterations": []}).encode(): "no complete iteration",
    }.items():
        bad.write_bytes(content)
        said = refusal(capsys, 1, "plan", str(bad))
        assert message in said
        assert said.startswith(f"stalloc plan: {bad}: ") or "iteration" in said
    assert "No such file" in refusal(capsys, 1, "plan", str(tmp_path / "nowhere"))
    assert "is a folder: name a file in it" in refusal(capsys, 1, "inspect", str(tmp_path))
    assert "No such file" in refusal(capsys, 1, "plan", csv, "-o", str(tmp_path / "no" / "where"))


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["sing"],
        ["plan"],
        ["plan", "in", "--alignment", "0"],
        ["plan", "in", "--alignment", "many"],
        ["plan", "in", "--time-limit", "nan"],
        ["plan", "in", "--time-limit", "-1"],
        ["plan", "in", "--algorithm", "by magic"],
        ["plan", "in", "--capacity", "-5"],
        ["plan", "in", "--extent", "ids.1=0"],
        ["inspect", "in", "--at", "-1"],
        ["inspect", "in", "--at", "later"],
        ["inspect", "in", "--at", ""],
        ["inspect", "in", "--at", "9" * 19],
        ["cache", "show"],
    ],
)
def test_wrong_usage_exits_with_2(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(args)
    assert exit_.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_an_extent_of_too_many_digits_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["plan", "in", "--extent", "ids.1=1" + 18 * "0"])
    assert exit_.value.code == 2
    assert "'ids.1=1000000000000000000' is too large: at most 18 digits" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["run", "plan", "import", "inspect", "replay", "diff", "report"]
)
def test_an_unknown_option_is_told_with_the_usage_of_its_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = {"run": ["--plan", "p", "s"], "import": ["x", "-o", "y"], "diff": ["x", "y"]}
    options = needed.get(command, ["x"])
    with pytest.raises(SystemExit) as exit_:
        cli.main([command, "--odd", *options])
    assert exit_.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"usage: stalloc {command} ")
    assert said.endswith(f"stalloc {command}: error: unrecognized arguments: --odd\n")


def test_inspect_shows_a_trace(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = answer(capsys, "inspect", trace)
    assert report["kind"] == "trace"
    assert report["requests"] == 19
    assert report["iterations"] == 3
    assert report["info"] == {"device": "cpu"}
    assert report["profile"]["tallies"]["wrap-around"] == {"requests": 1, "bytes": 3000}
    assert {"phase": "forward 0", "requests": 3, "bytes": 3702} in report["profile"]["per_phase"]
    dynamic = report["profile"]["dynamic"]
    assert [(d["groups"], d["requests"], d["bytes"]) for d in dynamic] == [(1, 1, 702)]
    assert cli.main(["inspect", trace]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["requests", "19"] in lines
    assert ["wrap-around", "1", "2.9", "KiB"] in lines
    assert ["backward", "0", "1", "2.9", "KiB"] in lines
    ends = [str(dynamic[0][end]).split() for end in ("phase", "phase_end")]
    assert [*ends[0], *ends[1], "1", "1", "702", "B"] in lines


def test_inspect_shows_as_many_phases_as_asked_for(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pipelines have thousands."""
    plan = str(tmp_path / "plan.json")
    answer(capsys, "plan", trace, "-o", plan)
    for path, title in ((trace, "Requests by phase"), (plan, "Decisions by phase")):
        figures = answer(capsys, "inspect", path)
        phases = figures.get("profile", figures)["per_phase"]
        assert len(phases) > 2
        rest = sum(phase["bytes"] for phase in phases[2:])
        assert cli.main(["inspect", path, "--top", "2"]) == 0
        table = capsys.readouterr().out.split(title)[1].split("\n\n")[0].splitlines()
        assert [line.split()[0] for line in table[2:4]] == [
            p["phase"].split()[0] for p in phases[:2]
        ]
        assert table[4] == f"and {len(phases) - 2} more, of {_core.format_bytes(rest)} (--top)"
        assert len(table) == 5
        assert cli.main(["inspect", path]) == 0
        assert "(--top)" not in capsys.readouterr().out


def test_inspect_shows_a_trace_without_iterations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(training_document() | {"iterations": []}))
    assert answer(capsys, "inspect", str(path))["profile"] is None
    assert cli.main(["inspect", str(path)]) == 0
    assert "no complete iteration" in capsys.readouterr().out


def test_inspect_shows_a_plan(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "plan.json")
    answer(capsys, "plan", trace, "-o", path)
    report = answer(capsys, "inspect", path)
    assert report["kind"] == "plan"
    assert report["pool"] == 6144
    assert report["decisions"] == 4
    assert cli.main(["inspect", path]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["pool", "6.0", "KiB", "(6,144", "B)"] in lines
    assert ["forward", "0", "2", "2.9", "KiB"] in lines


def test_inspect_of_a_plan_shows_sizes_and_assumptions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan keeps the notes of its trace, among them the imported snapshot's."""
    snapshot, trace, plan = (str(tmp_path / name) for name in ("s.pickle", "t.json", "p.json"))
    writer = trained(3)
    Path(snapshot).write_bytes(dump(writer.document()))
    assumptions = answer(capsys, "import", snapshot, "-o", trace)["assumptions"]
    answer(capsys, "plan", trace, "-o", plan)
    reserved = Plan.load(plan).info["torch_reserved"]
    for path in (trace, plan):
        assert cli.main(["inspect", path]) == 0
        out = capsys.readouterr().out
        assert re.search(rf"\ntorch_reserved +[\d.]+ MiB \({int(reserved):,} B\)\n", out)
        facts, _, assumed = out.partition("\nassumed:\n")
        assert assumed.splitlines() == [f"  - {text}" for text in assumptions]
        assert "annotations are" not in facts
        assert ("by call site" in facts) == (path == trace)
        assert ("by phase" in facts.rpartition("Allocated in one iteration")[2]) == (path == plan)


def test_inspect_keeps_lists_of_notes_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = {
        "dynamic": json.dumps([f"Experts{i}" for i in range(80)]),
        "inputs": '["(float32[4,8])"]',
        "other_models": "[" * 10_000,
    }
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(training_document() | {"info": notes}))
    assert answer(capsys, "inspect", str(path))["info"] == notes
    assert cli.main(["inspect", str(path)]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["dynamic", "Experts0, Experts1, Experts2 and 77 more"] in lines
    assert ["inputs", "(float32[4,8])"] in lines
    assert ["other_models", notes["other_models"]] in lines
    notes["dynamic"] = json.dumps(DEFAULT_DYNAMIC)
    path.write_text(json.dumps(training_document() | {"info": notes}))
    assert cli.main(["inspect", str(path)]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["dynamic", f"the default: {len(DEFAULT_DYNAMIC)} names of routed experts"] in lines


def test_plan_reports_the_resident_region(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(training_document()))
    assert cli.main(["plan", str(path), "-o", str(tmp_path / "plan.json")]) == 0
    resident = Plan.load(tmp_path / "plan.json").resident
    assert resident > 0
    assert f"({resident:,} B) above the pool" in capsys.readouterr().out


def test_it_runs_as_a_module(csv: str) -> None:
    command = [sys.executable, "-m", "stalloc", "plan", csv, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["pool"] == 150


def test_a_reader_that_stops_reading_is_no_error(trace: str) -> None:
    command = f"{sys.executable} -m stalloc inspect {trace} | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize("command", ["plan", "report"])
def test_never_replaces_the_input_by_the_output(
    command: str, trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = Path(trace).read_bytes()
    link = tmp_path / "other-name"
    link.symlink_to(trace)
    for output in (trace, str(link)):
        code = cli.main([command, trace, "-o", output, "--force"])
        assert code == 1
        assert f"{output}: is the input itself" in capsys.readouterr().err
    assert Path(trace).read_bytes() == content


def test_an_output_that_cannot_be_is_named_as_it_was_given(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = str(tmp_path / "nowhere" / "plan.json")
    assert cli.main(["plan", trace, "-o", nowhere]) == 1
    assert f"{nowhere}: No such file or directory: make its folder" in capsys.readouterr().err
    assert cli.main(["plan", trace, "-o", str(tmp_path), "--force"]) == 1
    assert f"{tmp_path}: is a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content", [b"\x80\x04.", gzip.compress(b"\x80\x04.", mtime=0), b"(dp0\n."]
)
def test_planning_a_snapshot_says_to_import_it(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = tmp_path / "snapshot.pickle"
    snapshot.write_bytes(content)
    assert cli.main(["plan", str(snapshot)]) == 1
    assert "`stalloc import`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "count"),
    [("512", 512), ("80GiB", 80 << 30), ("1.5 KiB", 1536), ("0.1TiB", 109951162777)],
)
def test_bytes_on_the_command_line(text: str, count: int) -> None:
    assert bytes_of(text) == count


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1.5", "1e9", "8GB", "GiB", "٣KiB", "9" * 30, "99999999TiB", "0.0KiB"]
)
def test_refuses_malformed_byte_counts(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no number of bytes"):
        bytes_of(text)


def test_json_has_the_documented_keys(
    csv: str, trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = str(tmp_path / "plan.json")
    snapshot = tmp_path / "snapshot.pickle"
    snapshot.write_bytes(dump(trained().document()))

    assert set(answer(capsys, "plan", csv)) == DOCUMENTED["plan"]
    assert set(answer(capsys, "plan", trace, "-o", plan)) == DOCUMENTED["plan"]
    imported = answer(capsys, "import", str(snapshot), "-o", str(tmp_path / "imported.json"))
    assert set(imported) == DOCUMENTED["import"]

    seen = answer(capsys, "inspect", trace)
    assert set(seen) == DOCUMENTED["inspect, a trace"]
    assert set(seen["profile"]) == DOCUMENTED["profile"]
    assert set(seen["profile"]["per_phase"][0]) == DOCUMENTED["per_phase[]"]
    assert set(seen["profile"]["tallies"]["static"]) == {"requests", "bytes"}
    assert set(seen["live"]) == DOCUMENTED["live"]
    assert set(seen["live"]["at"]) == DOCUMENTED["live.at"]
    for holder in (seen["live"]["at"]["holders"][0], seen["live"]["sites"][0]):
        assert set(holder) == DOCUMENTED["sites[], holders[]"]
    seen = answer(capsys, "inspect", plan)
    assert set(seen) == DOCUMENTED["inspect, a plan"]
    assert set(seen["per_phase"][0]) == DOCUMENTED["per_phase[]"]

    replayed = answer(capsys, "replay", trace)
    assert set(replayed) == DOCUMENTED["replay"]
    assert set(replayed["rows"][0]) == DOCUMENTED["rows[] of replay"]
    assert set(replayed["plan"]) == DOCUMENTED["a plan"]
    drawn = answer(capsys, "report", trace, "-o", str(tmp_path / "report.html"))
    assert set(drawn) == DOCUMENTED["report"]
    assert set(drawn["rows"][0]) == DOCUMENTED["rows[] of report"]

    found = answer(capsys, "diff", str(snapshot), trace)
    assert set(found) == DOCUMENTED["diff"]
    assert set(found["a"]) == set(found["b"]) == DOCUMENTED["a and b"]
    assert set(found["changes"][0]) == DOCUMENTED["changes[]"]
