"""Ctrl-C while a plan is searched for."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stalloc import planner
from stalloc.commands.search import Search, searching

# Presses Ctrl-C at the third report of progress; with `more` at all after it, and never ends.
PRESSES = """
import os, signal, sys
from stalloc import __main__
from stalloc.commands.search import Search

reports = 0

def progress(self, _):
    global reports
    reports += 1
    if reports == 3 or ({more} and reports > 3):
        os.kill(os.getpid(), signal.SIGINT)
    return {more} or not self.interrupted

Search.progress = progress
sys.exit(__main__.main())
"""


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that takes so long that progress is reported often."""
    rng = random.Random(1)
    rows = ["id,lower,upper,size"]
    for lower in range(5000):
        rows.append(f"{lower},{lower},{lower + rng.randrange(1, 60)},{rng.randrange(1, 1 << 20)}")
    path = tmp_path_factory.mktemp("problem") / "hard.csv"
    path.write_text("\n".join(rows))
    return path


def plan(problem: Path, output: Path, more: bool) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PRESSES.format(more=more), "plan", str(problem), "--json"]
    return subprocess.run(
        # The parent may ignore the signal, as a shell does for background jobs.
        ["env", "--default-signal=INT", *command, "-o", str(output), "--time-limit", "3600"],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=300,
        check=False,
    )


def test_ctrl_c_takes_the_best_plan_so_far(problem: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    done = plan(problem, output, more=False)
    assert done.returncode == 130, done.stderr
    report = json.loads(done.stdout)
    gap = f"{report['gap']:.3%}"
    assert not report["optimal"]
    assert done.stderr == f"stalloc plan: interrupted: this is the best plan so far, gap {gap}\n"
    solved = planner.load_csv(output)
    assert solved.offsets is not None
    planner.validate(solved.offsets, solved.lower, solved.upper, solved.size, height=report["pool"])


def test_a_second_ctrl_c_leaves_nothing(problem: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    done = plan(problem, output, more=True)
    assert done.returncode == 130
    assert (done.stdout, done.stderr) == ("", "stalloc: interrupted\n")
    assert not output.exists()


PRESSES_AT_ONCE = """
import os, signal, sys
from stalloc import Trace, cli

def plan(*args, of=Trace.plan, **options):
    os.kill(os.getpid(), signal.SIGINT)
    return of(*args, **options)

Trace.plan = plan
sys.exit(cli.main())
"""
TRAINS = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""


def test_ctrl_c_while_a_profile_is_planned_leaves_both_files(tmp_path: Path) -> None:
    script, plans = tmp_path / "train.py", tmp_path / "plans"
    script.write_text(TRAINS)
    command = [sys.executable, "-c", PRESSES_AT_ONCE, "run", "--profile", str(plans), str(script)]
    done = subprocess.run(
        ["env", "--default-signal=INT", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 130, done.stderr
    assert sorted(path.name for path in plans.iterdir()) == ["rank0.plan.json", "rank0.trace.json"]


def test_refuses_a_stack_as_plan() -> None:
    search = Search(None)
    search.check(gap=100.0)  # nobody was in a hurry
    search.interrupted = True
    search.check(gap=0.5)
    with pytest.raises(KeyboardInterrupt):
        search.check(gap=1.5)


def test_ctrl_c_is_noted_once_and_then_as_it_was() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with searching(show=False) as search:
            os.kill(os.getpid(), signal.SIGINT)
            assert not search.progress(0.5)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with searching(show=False) as search:
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert search.progress(0.5)
    finally:
        signal.signal(signal.SIGINT, before)
