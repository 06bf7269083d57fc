"""The command line as a process: its streams, signals and file names."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from snapshot_documents import dump, last_step, trained
from trace_documents import training_document

from stalloc import cli, importers

STALLOC = [sys.executable, "-m", "stalloc"]
EVIL = "evil\x1b[2J\x07\u202e\x9b31m"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(training_document()))
    return path


def run(
    *args: str | Path, stdout: Any = subprocess.PIPE, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*STALLOC, *map(os.fsencode, args)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=os.environ | (environment or {}),
        text=True,
        check=False,
        errors="surrogateescape",
    )


@pytest.mark.parametrize("module", ["numpy", "rich"])
def test_ctrl_c_while_modules_are_imported_is_no_traceback(module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text("raise KeyboardInterrupt\n")
    done = run("inspect", "x", environment={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 130
    assert done.stderr == "stalloc: interrupted\n"


def test_ctrl_c_while_it_works_leaves_nothing(tmp_path: Path) -> None:
    """The input is a pipe that nobody closes, so that the command is at work for sure."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [*STALLOC, "import", str(pipe), "-o", str(tmp_path / "out.json")]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process,
        pipe.open("wb") as writer,
    ):
        writer.write(dump(trained(3).document())[:100])
        writer.flush()
        while process.poll() is None:  # one that comes just before it waits, it notices afterwards
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 130
    assert said == "stalloc: interrupted\n"
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_write_leaves_no_half_file(number: int, trace: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "plan.json").write_text("mine")
    # Stops where all has been written, and nothing has its name yet.
    code = (
        "import os, sys, time, stalloc.cli\n"
        "os.fsync = lambda _: (os.write(2, b'written'), time.sleep(60))\n"
        "stalloc.cli.main(['plan', sys.argv[1], '-o', sys.argv[2], '--force'])"
    )
    command = [sys.executable, "-c", code, str(trace), str(folder / "plan.json")]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.read(7) == b"written"
        process.send_signal(number)
    assert process.returncode == -number
    assert [path.name for path in folder.iterdir()] == ["plan.json"]
    assert (folder / "plan.json").read_text() == "mine"


def test_a_full_disk_is_one_line(trace: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = run("inspect", trace, stdout=full)
    assert done.returncode == 1
    assert done.stderr == "stalloc inspect: standard output: No space left on device\n"
    done = run("plan", trace, "-o", "/dev/full")
    assert done.returncode == 1
    assert done.stderr == "stalloc plan: /dev/full: No space left on device\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_streams_are_no_error(closed: str, trace: Path) -> None:
    command = f"{sys.executable} -m stalloc inspect {trace} {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == ""


def test_a_reader_that_leaves_is_no_error(trace: Path) -> None:
    """The reader is gone before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as stdout:
        done = run("inspect", trace, stdout=stdout)
    assert done.returncode == 141
    assert done.stderr == ""


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_names_that_are_no_text(encoding: str, tmp_path: Path) -> None:
    document = training_document() | {"layers": ["modèle.층"]}
    path = tmp_path / os.fsdecode(b"tr\xffce \xc3\xa9.json")
    path.write_text(json.dumps(document))
    environment = {"PYTHONIOENCODING": encoding}
    done = run("inspect", path, environment=environment)
    assert (done.returncode, done.stderr) == (0, "")
    done = run("inspect", tmp_path / os.fsdecode(b"gone\xff"), environment=environment)
    assert done.returncode == 1
    assert "gone\\udcff: No such file or directory" in done.stderr
    done = run("report", path, "-o", tmp_path / "r.html", "--json", environment=environment)
    assert json.loads(done.stdout)["output"] == str(tmp_path / "r.html")
    assert b"tr\\udcffce" in (tmp_path / "r.html").read_bytes()


@pytest.mark.parametrize("command", ["inspect", "replay", "report", "plan", "diff", "import"])
def test_file_content_does_not_reach_the_terminal_as_a_command(
    command: str, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = training_document() | {"layers": [EVIL], "info": {"device": EVIL, EVIL: "x"}}
    other = tmp_path / f"{EVIL}.json"
    other.write_text(json.dumps(document))
    snapshot = tmp_path / f"{EVIL}.pickle"
    writer = trained(3)
    for event in writer.events:
        event["frames"] = [{"name": EVIL, "filename": f"/{EVIL}.py", "line": 1}]
    snapshot.write_bytes(dump(writer.document()))
    damaged = tmp_path / f"damaged {EVIL}.json"
    damaged.write_text(json.dumps({"format": EVIL}))
    strange = tmp_path / "strange.pickle"
    writer.events[3]["action"] = EVIL
    strange.write_bytes(dump(writer.document()))
    second = [str(trace)] if command == "diff" else []
    output = ["-o", str(tmp_path / f"{EVIL}.out"), "--force"]
    options = output if command in ("report", "import") else []
    for path in (other, snapshot, damaged, strange):
        assert cli.main([command, str(path), *second, *options]) in (0, 1)
        for text in capsys.readouterr():
            assert all(character.isprintable() or character == "\n" for character in text)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null"])
def test_a_device_is_no_input(path: str) -> None:
    done = run("inspect", path)
    assert (done.returncode, done.stderr) == (
        1,
        f"stalloc inspect: {path}: is a device: name a file\n",
    )


def test_a_folder_and_an_unreadable_file_are_no_input(tmp_path: Path) -> None:
    done = run("inspect", tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"stalloc inspect: {tmp_path}: is a folder: name a file in it\n"
    done = run("inspect", tmp_path / "nowhere")
    assert done.stderr.endswith("nowhere: No such file or directory: check the name\n")
    done = run("inspect", "/proc/self/mem")
    assert done.returncode == 1
    assert done.stderr == (
        "stalloc inspect: /proc/self/mem: Input/output error: copy it to another folder first\n"
    )
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    done = run("inspect", loop)
    assert done.returncode == 1
    assert done.stderr.startswith(f"stalloc inspect: {loop}: Too many levels of symbolic links")
    done = run("inspect", "a" * 300)
    assert done.returncode == 1
    assert "File name too long" in done.stderr


@pytest.mark.parametrize("command", [["plan"], ["report"], ["run", "--profile", "/proc"]])
def test_a_folder_that_takes_no_files_is_no_output(command: list[str], trace: Path) -> None:
    options = [trace] if command[0] == "run" else [trace, "-o", "/proc/out"]
    done = run(*command, *options)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("No such file or directory: choose another folder\n")


def test_no_color_and_no_terminal_are_plain_text(trace: Path) -> None:
    done = run("inspect", trace)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert any("\x1b" in line for line in in_terminal(80, "inspect", trace))
    shown = in_terminal(80, "inspect", trace, environment={"NO_COLOR": "1"})
    assert not any("\x1b" in line for line in shown)


def test_help_and_usage_go_to_the_right_stream() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: stalloc ")
    for args in ([], ["nonsense"], ["inspect"], ["plan", "x", "--capacity", "-1"]):
        done = run(*args)
        assert done.returncode == 2
        assert "usage: stalloc" in done.stderr
        assert "Traceback" not in done.stderr


def test_the_console_script_is_this_one() -> None:
    from importlib.metadata import entry_points

    (script,) = (e for e in entry_points(group="console_scripts") if e.name == "stalloc")
    assert script.value == "stalloc.__main__:main"


def in_terminal(
    columns: int, *args: str | Path, environment: dict[str, str] | None = None
) -> list[str]:
    """The lines that a command shows in a terminal."""
    main, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    with subprocess.Popen(
        [*STALLOC, *map(str, args)],
        stdin=terminal,
        stdout=terminal,
        stderr=subprocess.PIPE,
        env=inherited | {"TERM": "xterm-256color"} | (environment or {}),
    ) as process:
        os.close(terminal)
        shown = b""
        with suppress(OSError):  # how Linux says that nobody writes any more
            while piece := os.read(main, 1 << 16):
                shown += piece
        os.close(main)
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0
    return shown.decode().splitlines()


def plain(lines: list[str]) -> list[str]:
    """Lines without their colours."""
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]


def test_a_terminal_of_80_columns_is_wide_enough(tmp_path: Path) -> None:
    snapshot, plan = tmp_path / "snapshot.pickle", tmp_path / "plan.json"
    snapshot.write_bytes(dump(last_step(unit=39_000_000)))
    trace = importers.read(snapshot).trace
    trace.plan().save(plan)
    for args in (
        ["inspect", snapshot],
        ["inspect", plan],
        ["replay", snapshot, "--capacity", "1000GiB"],
        ["diff", plan, snapshot],
        ["diff", tmp_path / "other.pickle", snapshot],
    ):
        (tmp_path / "other.pickle").write_bytes(dump(last_step(unit=40_000_000)))
        lines = plain(in_terminal(80, *args))
        # The paths of tests' folders alone may be too long, which a terminal wraps by itself.
        wide = [line for line in lines if len(line.rstrip()) > 80 and str(tmp_path) not in line]
        assert wide == []
    lines = plain(in_terminal(80, "replay", snapshot, "--capacity", "1000GiB"))
    (row,) = (line for line in lines if line.startswith("stalloc "))
    assert re.search(r"stalloc( +[\d,.]+ [MG]iB){2} +[01]\.\d{4} +\d+ +yes", row), row
