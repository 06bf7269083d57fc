"""Runs that are ended from outside by SIGTERM or SIGHUP while they are profiled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from stalloc import Plan, Trace
from stalloc.commands.termination import SIGNALS, saved_when_terminated

# Four iterations, of which the last one ends with the forward after it.
TRAINS = """
import ctypes, multiprocessing, os, signal, sys, torch

model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(steps):
    for _ in range(steps):
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

train(4)
model(torch.ones(4, 8))
"""
READY = "print('ready', flush=True)\n"
FOREVER = {
    "in Python": READY + "while True: model(torch.ones(4, 8)).detach()\n",
    "in a forward": "def wait(*_):\n    "
    + READY
    + "    sys.stdin.read()\nmodel.register_forward_pre_hook(wait)\ntrain(1)\n",
    # As in a collective: no signal's handler is run before the call returns.
    "in a call": "ctypes.CDLL(None).system(b'echo ready; exec cat')\n",
}
HANGS = 120  # seconds
FILES = ["rank0.plan.json", "rank0.trace.json"]


@contextmanager
def running(
    script: str, folder: Path, *arguments: str, launcher: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    """`stalloc run --profile plans` of a script that has said it is ready."""
    (folder / "train.py").write_text(script)
    # The parent may ignore these signals, as a shell does for background jobs.
    default = ["env", *(f"--default-signal={number.name[3:]}" for number in SIGNALS)]
    command = launcher or (sys.executable, "-m", "stalloc")
    with subprocess.Popen(
        [*default, *command, *(arguments or ("run", "--profile", "plans")), "train.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        assert pipe(process.stdout).readline() == "ready\n", process.communicate()
        try:
            yield process
        finally:
            process.kill()  # of a test that has failed


def pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def ended(process: subprocess.Popen[str], status: int) -> list[str]:
    """Its last output. Until then its stdin is open."""
    process.wait(HANGS)
    _, said = process.communicate(timeout=HANGS)
    assert process.returncode == status, said
    return [line for line in said.splitlines() if line.startswith("stalloc")]


def assert_kept(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert len(Trace.load(folder / FILES[1]).iterations) == 1 + 4
    Plan.load(folder / FILES[0]).check()


@pytest.mark.parametrize("where", FOREVER)
@pytest.mark.parametrize("number", SIGNALS)
def test_keeps_the_recording(number: signal.Signals, where: str, tmp_path: Path) -> None:
    with running(TRAINS + FOREVER[where], tmp_path) as process:
        process.send_signal(number)
        first, *said = ended(process, -number)
    assert first == f"stalloc run: {number.name}: the recording is saved"
    assert [line.rpartition(": ")[2] for line in said] == [f"plans/{FILES[1]}", f"plans/{FILES[0]}"]
    assert_kept(tmp_path / "plans")


def test_reports_too_few_iterations_to_plan(tmp_path: Path) -> None:
    with running(READY + "import sys; sys.stdin.read()", tmp_path) as process:
        process.send_signal(signal.SIGTERM)
        said = ended(process, -signal.SIGTERM)
    assert said[1].startswith("stalloc run: plans/rank0.trace.json: the trace holds no complete")


def test_a_plan_that_is_served_ends_as_it_did(tmp_path: Path) -> None:
    with running(TRAINS + READY, tmp_path) as process:
        ended(process, 0)
    script = TRAINS + FOREVER["in Python"]
    with running(script, tmp_path, "run", "--plan", "plans") as process:
        process.send_signal(signal.SIGTERM)
        assert ended(process, -signal.SIGTERM) == []


# Not print(): the signal may come while "ready" is flushed, and a stream is not reentrant.
OWN_HANDLER = """
before = signal.getsignal(signal.SIGTERM)
def handler(number, frame):
    os.write(1, b"mine\\n")
    {then}
    sys.exit(7)
signal.signal(signal.SIGTERM, handler)
"""


# As Lightning's do, which calls what there was before and ends, or goes on, where it likes.
@pytest.mark.parametrize("then", ["pass", "before(number, frame)"])
def test_a_handler_of_the_scripts_own_is_called(then: str, tmp_path: Path) -> None:
    script = TRAINS + OWN_HANDLER.format(then=then) + FOREVER["in Python"]
    with running(script, tmp_path) as process:
        process.send_signal(signal.SIGTERM)
        assert pipe(process.stdout).readline() == "mine\n"
        ended(process, 7)
    assert_kept(tmp_path / "plans")


def test_a_signal_that_is_ignored_stays_so(tmp_path: Path) -> None:
    script = TRAINS + READY + "sys.stdin.readline()\ntrain(1)\n"
    nohup = ("nohup", sys.executable, "-m", "stalloc")
    with running(script, tmp_path, launcher=nohup) as process:
        process.send_signal(signal.SIGHUP)
        print(file=process.stdin, flush=True)
        ended(process, 0)
    assert_kept(tmp_path / "plans")


# Some are ended while they come to be, and some while they wait.
CHILDREN = """
fork = multiprocessing.get_context("fork")
children = [fork.Process(target=signal.pause) for _ in range(20)]
for child in children:
    child.start()
    child.terminate()
for child in children:
    child.join()
    assert child.exitcode == -signal.SIGTERM, child.exitcode
assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
train(1)
"""


def test_a_forked_child_is_ended_as_any_is(tmp_path: Path) -> None:
    with running(TRAINS + READY + CHILDREN, tmp_path) as process:
        said = ended(process, 0)
    assert not any("SIGTERM" in line for line in said)
    assert_kept(tmp_path / "plans")


# A child that kept its signals blocked would not end.
WAKES = """
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)
os.close(writer)
child = multiprocessing.get_context("fork").Process(target=signal.pause)
child.start()
child.terminate()
child.join(60)
assert child.exitcode == -signal.SIGTERM, child.kill()
"""


def test_a_wakeup_descriptor_of_the_scripts_that_is_closed_is_its_own(tmp_path: Path) -> None:
    with running(TRAINS + READY + WAKES, tmp_path) as process:
        ended(process, 0)
    assert_kept(tmp_path / "plans")


@pytest.mark.parametrize("ends", [False, True])
def test_a_script_may_close_every_descriptor_there_is(ends: bool, tmp_path: Path) -> None:
    launcher = (sys.executable, "-c", SLOW.format(grace=0.1)) if ends else ()
    script = TRAINS + READY + "os.closerange(3, 200)\n"
    with running(script + FOREVER["in Python"] * ends, tmp_path, launcher=launcher) as process:
        if ends:
            assert pipe(process.stdout).readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
        assert ended(process, -signal.SIGTERM if ends else 0) or ends
    if not ends:
        assert_kept(tmp_path / "plans")


# Each file takes a number at the moment in which the descriptor of that number closes.
REPLACES = """
import threading
waiting = [thread for thread in threading.enumerate() if thread.name == "stalloc-termination"]
null = os.open(os.devnull, os.O_RDONLY)
replaced = [number for number in range(3, 100) if os.dup2(null, number)]
for thread in waiting:
    thread.join()
assert len(waiting) == 1 and all(os.fstat(number).st_rdev for number in replaced)
os.closerange(3, 100)
"""


def test_a_file_that_takes_the_number_of_a_closed_descriptor_stays_open(tmp_path: Path) -> None:
    with running(TRAINS + READY + REPLACES, tmp_path) as process:
        ended(process, 0)
    assert_kept(tmp_path / "plans")


LATE = """
import signal
from stalloc.commands import termination

leave = termination._Watch._leave
def late(watch):
    signal.raise_signal(signal.SIGTERM)
    leave(watch)
termination._Watch._leave = late
signal.signal(signal.SIGTERM, signal.SIG_DFL)
with termination.saved_when_terminated(print):
    pass
"""


def test_a_signal_when_all_is_over_ends_the_process_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], timeout=HANGS, check=False)
    assert done.returncode == -signal.SIGTERM


# Stops where all has been written and nothing has its name, until a line comes.
# Without sys.stdin, whose lock a thread that stands still in a handler would keep.
SLOW = """
import os, sys, stalloc.cli
from stalloc.commands import termination
termination.GRACE = {grace}
os.fsync = lambda _: (os.write(1, b"saving\\n"), os.read(0, 1))
stalloc.cli.main(sys.argv[1:])
"""


def test_further_signals_while_it_saves_change_nothing(tmp_path: Path) -> None:
    launcher = (sys.executable, "-c", SLOW.format(grace=1e6))
    script = TRAINS + FOREVER["in Python"]
    with running(script, tmp_path, launcher=launcher) as process:
        process.send_signal(signal.SIGTERM)
        assert pipe(process.stdout).readline() == "saving\n"
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            process.send_signal(number)
        print(*"go on" * 5, sep="\n", file=process.stdin, flush=True)
        ended(process, -signal.SIGTERM)
    assert_kept(tmp_path / "plans")


def test_saving_takes_no_longer_than_it_may(tmp_path: Path) -> None:
    launcher = (sys.executable, "-c", SLOW.format(grace=0.1))
    script = TRAINS + FOREVER["in Python"]
    with running(script, tmp_path, launcher=launcher) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANGS) == -signal.SIGTERM
    assert list((tmp_path / "plans").iterdir()) == []


def test_a_signal_while_all_is_saved_anyway_loses_nothing(tmp_path: Path) -> None:
    launcher = (sys.executable, "-c", SLOW.format(grace=1e6))
    with running(TRAINS + READY, tmp_path, launcher=launcher) as process:
        for _ in range(3):  # the trace, the folder, and then the plan
            assert pipe(process.stdout).readline() == "saving\n"
            print(file=process.stdin, flush=True)
        process.send_signal(signal.SIGTERM)
        print(*"go on" * 5, sep="\n", file=process.stdin, flush=True)
        ended(process, -signal.SIGTERM)
    assert_kept(tmp_path / "plans")


# The signal comes in the middle of the recording's end.
ENDING = """
import signal, sys, stalloc.cli
from stalloc.profiling import Profile

end = Profile._end
def late(prof):
    signal.raise_signal(signal.SIGTERM)
    return end(prof)
Profile._end = late
stalloc.cli.main(sys.argv[1:])
"""


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_signal_while_the_recording_ends_loses_nothing(goes_on: bool, tmp_path: Path) -> None:
    script = TRAINS + (FOREVER["in Python"] if goes_on else "")
    arguments = ("run", "--profile", "plans", "--iterations", "4")
    launcher = (sys.executable, "-c", ENDING)
    with running(READY + script, tmp_path, *arguments, launcher=launcher) as process:
        assert ended(process, -signal.SIGTERM)
    assert_kept(tmp_path / "plans")


# The call in which the signal finds the training returns while the recording ends.
RETURNS = """
import os, sys, threading, time, stalloc.cli
from stalloc.profiling import Profile

reader, writer = os.pipe()
os.set_inheritable(reader, True)
os.environ["READER"] = str(reader)

def functions():
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back

end = Profile._end
def slow(prof):
    os.write(writer, b"1")
    while "WENT_ON" not in os.environ and "_stand_still" not in functions():
        time.sleep(0.01)
    return end(prof)
Profile._end = slow
stalloc.cli.main(sys.argv[1:])
"""
IN_A_CALL = """
command = f"echo ready; exec head -c1 <&{os.environ['READER']} >&2"
ctypes.CDLL(None).system(command.encode())
os.environ["WENT_ON"] = "1"
os.write(1, b"went on\\n")
"""


def test_training_does_not_go_on_while_it_saves(tmp_path: Path) -> None:
    script = TRAINS + IN_A_CALL + FOREVER["in Python"].replace(READY, "")
    with running(script, tmp_path, launcher=(sys.executable, "-c", RETURNS)) as process:
        process.send_signal(signal.SIGTERM)
        assert pipe(process.stdout).read() == ""
        ended(process, -signal.SIGTERM)
    assert_kept(tmp_path / "plans")


def test_an_error_while_it_saves_is_shown(tmp_path: Path) -> None:
    broken = SLOW.format(grace=1e6).replace("stalloc.cli.main", "del os.fsync; stalloc.cli.main")
    launcher = (sys.executable, "-c", broken)
    with running(TRAINS + FOREVER["in Python"], tmp_path, launcher=launcher) as process:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=HANGS)
    assert process.returncode == -signal.SIGTERM
    assert said.rstrip().endswith("AttributeError: module 'os' has no attribute 'fsync'")


def test_torchrun_that_is_ended_leaves_every_ranks_files(tmp_path: Path) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    script = TRAINS + FOREVER["in a call"]
    with running(script, tmp_path, launcher=(*torchrun, "-m", "stalloc")) as process:
        assert pipe(process.stdout).readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        process.wait(HANGS)
        _, said = process.communicate()
    assert sum("SIGTERM: the recording is saved" in line for line in said.splitlines()) == 2
    for rank in "01":
        files = [tmp_path / "plans" / name.replace("0", rank) for name in FILES]
        assert len(Trace.load(files[1]).iterations) == 1 + 4
        Plan.load(files[0]).check()


def test_signals_are_left_as_they_were() -> None:
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    threads = threading.active_count()
    try:
        with saved_when_terminated(lambda _: None):
            assert threading.active_count() == threads + 1
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
