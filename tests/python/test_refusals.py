"""Invalid files: every command reports them with the same message and the file's name."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from snapshot_documents import dump, trained
from trace_documents import damaged, training_document

from stalloc import cli

TRACE = training_document()
SNAPSHOT = trained(3).document()
FREES = [event for event in SNAPSHOT["device_traces"][0] if event["action"].startswith("free")]
EMPTY = json.loads(json.dumps(TRACE))
EMPTY["requests"] = {name: [] for name in EMPTY["requests"]}
READERS = ("inspect", "plan", "import", "replay", "report", "diff")

ANYWHERE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "blank": (b" \n\n", "the file is empty"),
    "empty gzip": (gzip.compress(b""), "the file is empty"),
    "gzipped twice": (gzip.compress(gzip.compress(dump(SNAPSHOT))), "gzipped twice"),
    "cut gzip": (gzip.compress(dump(SNAPSHOT))[:-20], "the gzip file is cut off"),
    "zap": (json.dumps({"format": "zap"}).encode(), "JSON of the format 'zap'"),
    "no format": (b"{}", "JSON with neither 'format' nor 'traceEvents'"),
    "cut JSON": (b'{"form', "JSON that is cut off"),
    "a number": (b"42", "text that is no JSON"),
    "text": (b"hello\n", "text that is no JSON"),
    "UTF-16": (json.dumps(TRACE).encode("utf-16"), "text in UTF-16: save it as UTF-8"),
    "an archive": (b"PK\x03\x04\0\0", "an archive (of torch.save?)"),
    "zeros": (bytes(100), "no file of a known kind"),
}

SNAPSHOTS: dict[str, tuple[bytes, str]] = {
    "a list": (pickle.dumps([1, 2, 3]), "this pickle holds a list of 3"),
    "a number": (pickle.dumps(42), "this pickle holds a int"),
    "another dictionary": (pickle.dumps({"state_dict": 1}), "holds one with 'state_dict'"),
    "frees only": (
        dump({"segments": [], "device_traces": [FREES]}),
        f"the history lists no allocation, only other events ({len(FREES)})",
    ),
    "protocol 0": (dump({"segments": []}, 0), "the snapshot holds no history"),
    "cut protocol 0": (dump(SNAPSHOT, 0)[:3000], "in the middle of a line: copy it completely"),
    "a global": (pickle.dumps(os.path.join, 0), "asks for the global posixpath.join"),
    "a deep list": (b"\x80\x04" + b"]" * 300_000 + b"a" * 299_999 + b".", "holds a list of 1"),
    "nested keys": (b"\x80\x04}N" + b"\x85" * 3_000_000 + b"Ns.", "a tuple with more elements"),
    "endless keys": (b"\x80\x04}N" + b"2\x86" * 60 + b"Ns.", "a tuple with more elements"),
    "a long number": (
        dump(SNAPSHOT | {"device_traces": [[{"action": "alloc", "addr": 1, "size": 1 << 99999}]]}),
        "a number of 100,000 bits is not between 0",
    ),
    "a late time": (
        dump(
            {
                "segments": [],
                "device_traces": [
                    [{"action": "alloc", "addr": 1, "size": 1, "stream": 0, "time_us": 10**400}]
                ],
            }
        ),
        "time_us: expected a time",
    ),
    "odd names": (
        dump({"segments": [], "device_traces": [[{"action": 1 << 99999}, {"action": "alloc"}]]}),
        "[0].action: expected a word, found a number of 100,000 bits",
    ),
}

JSONS: dict[str, tuple[bytes, str]] = {
    "deep": (b"[" * 200_000, "it is nested too deeply"),
    "deep and whole": (b"[" * 200_000 + b"]" * 200_000, "it is nested too deeply"),
    "cut": (b'{"traceEvents": [{"name": "x"}, {"na', "it was cut off: copy it completely"),
    "no list": (b'{"traceEvents": 3}', "there is no list 'traceEvents'"),
    "digits": (b'{"traceEvents": [' + b"1" * 9999 + b"]}", "no JSON"),
    "comma": (b'{"traceEvents": [1 2]}', "']' is missing at character 19"),
}


def refusal(
    capsys: pytest.CaptureFixture[str], command: str, path: Path, code: int = 1, *more: str
) -> str:
    """The message of a command about a file: one line that names it."""
    output = ["-o", str(path.with_suffix(".out"))]
    options = output if command in ("import", "report", "plan") else []
    second = [str(path)] if command == "diff" else []
    for json_too in ([], ["--json"]):
        assert cli.main([command, str(path), *second, *options, *more, *json_too]) == code
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert err.startswith(f"stalloc {command}: {path}: ")
    assert not path.with_suffix(".out").exists()
    return err


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("name", ANYWHERE)
def test_refuses_unknown_files(
    command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "some file"
    content, message = ANYWHERE[name]
    path.write_bytes(content)
    assert message in refusal(capsys, command, path)


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_refuses_files_that_are_no_snapshot(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "snapshot.pickle"
    content, message = SNAPSHOTS[name]
    path.write_bytes(content)
    for command in ("inspect", "import", "replay", "report", "diff"):
        assert message in refusal(capsys, command, path)
    assert (
        "this is a memory snapshot, and a trace is needed: make one of it with `stalloc import`"
        in (refusal(capsys, "plan", path))
    )


@pytest.mark.parametrize("name", JSONS)
def test_refuses_files_that_are_no_kineto_trace(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kineto.json"
    content, message = JSONS[name]
    path.write_bytes(content)
    for command in ("inspect", "import", "replay", "report", "diff"):
        assert message in refusal(capsys, command, path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps(TRACE)[:-40], "it was cut off: copy it completely, or record it again"),
        (json.dumps(TRACE | {"odd": 1}), "unknown key 'odd': upgrade stalloc if a newer one wrote"),
        (json.dumps({k: v for k, v in TRACE.items() if k != "end"}), "the key 'end' is missing: "),
    ],
)
def test_damaged_files_of_its_own_have_a_remedy(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    for command in ("inspect", "plan", "replay", "report", "diff"):
        assert message in refusal(capsys, command, path)


def test_a_bomb_is_not_unpacked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(1 << 20), 9) * 1100)
    assert "unpacks to more than 300 times its size" in refusal(capsys, "inspect", path)


@pytest.mark.parametrize("command", ["plan", "replay", "report", "diff"])
def test_a_trace_of_nothing_is_no_success(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(EMPTY))
    assert "the trace holds no requests" in refusal(capsys, command, path)


def test_a_csv_of_nothing_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "problem.csv"
    path.write_text("id,lower,upper,size\n")
    assert "holds no buffers" in refusal(capsys, "plan", path)


@pytest.mark.parametrize("command", ["plan", "report", "diff"])
def test_a_trace_without_an_iteration_is_named(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(TRACE | {"iterations": []}))
    assert "the trace holds no complete iteration" in refusal(capsys, command, path)


def test_a_csv_whose_sizes_do_not_add_up_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "problem.csv"
    path.write_text(f"id,lower,upper,size\na,0,4,{(1 << 63) - 1}\nb,0,4,{(1 << 63) - 1}\n")
    assert "more than fits in 63 bits" in refusal(capsys, "plan", path)
    assert "a MiniMalloc CSV: only `stalloc plan` reads it" in refusal(capsys, "inspect", path)


@pytest.mark.parametrize("command", ["inspect", "plan", "replay", "report", "diff"])
@pytest.mark.parametrize("bits", [48, 50, 58, 62])
def test_every_command_refuses_the_same_sizes(
    command: str, bits: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(damaged(TRACE, "requests", "size", 1, value=(1 << bits) + 1)))
    assert "row 1: a request of" in refusal(capsys, command, path)
    path.write_text(json.dumps(damaged(TRACE, "requests", "size", 1, value=1 << 48)))
    args: list[Any] = [path] if command == "diff" else []
    options = ["-o", tmp_path / "out"] if command in ("plan", "report") else []
    assert cli.main([command, str(path), *map(str, [*args, *options])]) == 0


def test_own_files_are_read_gzipped_and_with_a_byte_order_mark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace"
    content = json.dumps(TRACE).encode()
    for packed in (gzip.compress(content), b"\xef\xbb\xbf" + content):
        path.write_bytes(packed)
        for command in ("inspect", "plan", "replay"):
            assert cli.main([command, str(path)]) == 0
    capsys.readouterr()
    assert "a stalloc trace: nothing to import" in refusal(capsys, "import", path)


@pytest.mark.parametrize("command", ["replay", "report"])
def test_refuses_other_files_as_plan(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, plan = tmp_path / "trace.json", tmp_path / "plan"
    trace.write_text(json.dumps(TRACE))
    options = ["-o", str(tmp_path / "out")] if command == "report" else []
    for content, message in {
        b"": "the file is empty",
        dump(SNAPSHOT): "this is a memory snapshot, and a plan is needed: make a trace of it with "
        "`stalloc import`, and a plan of that with `stalloc plan`",
        json.dumps(TRACE).encode(): "this is a stalloc trace, and a plan is needed: make one of it "
        "with `stalloc plan`",
        b'{"format": "stalloc-plan"}': "version",
    }.items():
        plan.write_bytes(content)
        assert cli.main([command, str(trace), "--plan", str(plan), *options]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"stalloc {command}: {plan}: ")
        assert message in err
    plan.unlink()
    assert cli.main(["plan", str(trace), "-o", str(plan)]) == 0
    plan.write_bytes(gzip.compress(plan.read_bytes()))
    assert cli.main([command, str(trace), "--plan", str(plan), *options]) == 0


def test_a_folder_is_no_output_and_force_does_not_help(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(TRACE))
    for force in ([], ["--force"]):
        assert cli.main(["plan", str(trace), "-o", str(tmp_path), *force]) == 1
        assert capsys.readouterr().err == (
            f"stalloc plan: {tmp_path}: is a folder: name a file in it\n"
        )


def test_an_iteration_is_not_repeated_beyond_memory(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["replay", "x", "--repeat", "1001"])
    assert "1001 is more than 1000" in capsys.readouterr().err
