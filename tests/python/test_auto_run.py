"""`stalloc run` with neither --profile nor --plan, and the ends of processes that plan."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from documented import documented_keys
from processes import python, torchrun

import stalloc
from stalloc import cli

SCRIPT = """
import sys, torch

torch.manual_seed(0)
model = torch.nn.Sequential(
    *[torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 64))
      for _ in range(3)]
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for i in range(int(sys.argv[1])):
    x = torch.randn(512, 64)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
    {0}
"""

# The thread that plans has the lowest priority: the next iteration waits for it.
WAITS = """
    import threading
    for thread in threading.enumerate():
        if thread.name == "stalloc-planner":
            thread.join()
"""

LIBRARY = """
import os, sys
import stalloc
sys.argv[1:] = ["6"]
stalloc.auto()
exec(open("train.py").read())
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(WAITS))
    return path


def run(
    *arguments: str | Path, cwd: Path, code: int = 0, plain: bool = False, **environment: str
) -> tuple[list[str], list[str]]:
    """Runs a command in a process of its own; the lines of stdout and stderr."""
    command = [] if plain else ["-m", "stalloc", "run"]
    done = python(*command, *arguments, cwd=cwd, code=code, environment=environment)
    return done.stdout.splitlines(), done.stderr.splitlines()


def test_an_unchanged_script_is_planned_while_it_runs(script: Path, tmp_path: Path) -> None:
    losses, _ = run(script, "16", cwd=tmp_path, plain=True)
    for how in ([script], ["-m", "train"]):
        out, said = run("--json", *how, "16", cwd=tmp_path)
        assert out[:-1] == losses
        status = json.loads(out[-1])
        assert set(status) == documented_keys()["run"]
        assert set(status) == {"mode"} | set(stalloc.AutoStatus.__annotations__)
        (change,) = status["changes"]
        assert set(change) == documented_keys()["an entry of changes"]
        assert status["stage"] == "serving"
        assert change["in_force"]
        assert change["iteration"] <= 7
        assert len(said) == 2
        assert said[0].startswith("stalloc: iteration 6: plan in force (first plan): ")
        assert said[1] == "stalloc: 8 of 15 iterations under a plan, 100.00% of requests as planned"


def test_nothing_is_planned_if_the_environment_says_so(script: Path, tmp_path: Path) -> None:
    losses, _ = run(script, "3", cwd=tmp_path, plain=True)
    out, said = run("--json", script, "3", cwd=tmp_path, STALLOC_AUTO="0")
    assert (out[:-1], said) == (losses, [])
    assert json.loads(out[-1])["reason"] == "switched off by STALLOC_AUTO=0"


def test_a_short_script_is_told_why_it_had_no_plan(script: Path, tmp_path: Path) -> None:
    _, said = run(script, "3", cwd=tmp_path)
    assert said == [
        "stalloc: 0 of 2 iterations under a plan; it ended while iterations were being recorded"
    ]
    script.write_text("import torch; torch.ones(1000)\n")
    _, said = run(script, cwd=tmp_path)
    assert len(said) == 1
    assert "no call of a module with parameters to train was seen" in said[0]
    assert "stalloc run --profile" in said[0]


def test_a_script_that_logs_is_told_once(script: Path, tmp_path: Path) -> None:
    script.write_text(
        "import logging\nlogging.basicConfig(level=logging.INFO)\n" + script.read_text()
    )
    _, said = run(script, "16", cwd=tmp_path)
    assert len(said) == 2
    assert said[0].startswith("INFO:stalloc:iteration 6: plan in force (first plan): ")
    assert said[1].startswith("INFO:stalloc:8 of 15 iterations under a plan")


def test_a_script_that_fails_has_the_last_word(script: Path, tmp_path: Path) -> None:
    script.write_text(SCRIPT.format("if i == 4: raise ValueError('its own')"))
    _, said = run(script, "6", cwd=tmp_path, code=1)
    assert said[-1] == "ValueError: its own"
    assert not [line for line in said if line.startswith("stalloc")]
    script.write_text(SCRIPT.format("if i == 4: sys.exit(3)"))
    run(script, "6", cwd=tmp_path, code=3)
    script.write_text(SCRIPT.format("if i == 4: raise KeyboardInterrupt"))
    _, said = run(script, "6", cwd=tmp_path, code=130)
    assert said[0] == "stalloc run: interrupted"


def test_mistakes_are_one_line(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(script.parent)
    assert cli.main(["run", "nowhere.py"]) == 1
    assert capsys.readouterr() == (
        "",
        "stalloc run: nowhere.py: there is no such script\n",
    )
    for options, message in (
        (["--iterations", "2"], "--iterations 2: without --profile at least 3 are needed"),
        (["--pinned"], "--pinned needs --profile DIR, or --plan DIR"),
        (["--device", "nonsense"], "'nonsense' is no device"),
        (["--device", ""], "'' is no device"),
        (["--device", "meta"], "--device meta needs --profile DIR"),
        (["--plan", "plans", "--device", "meta"], "--device meta needs --profile DIR"),
    ):
        with pytest.raises(SystemExit) as exit_:
            cli.main(["run", *options, "train.py"])
        assert exit_.value.code == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert message in err.splitlines()[-1]


@pytest.mark.parametrize("forks", [False, True])
def test_a_process_may_end_while_a_plan_is_solved(forks: bool, tmp_path: Path) -> None:
    end = "if i == 6 and os.fork() == 0: sys.exit()" if forks else ""
    (tmp_path / "train.py").write_text(SCRIPT.format(end))
    (tmp_path / "library.py").write_text(LIBRARY.replace('"6"', '"7"'))
    _, said = run("library.py", cwd=tmp_path, plain=True)
    assert len([line for line in said if "iterations under a plan" in line]) == 1
    assert "Traceback" not in "".join(said)


def test_under_torchrun_each_rank_plans_for_itself(script: Path, tmp_path: Path) -> None:
    ranks = torchrun("-m", "stalloc", "run", "--json", script, "12", logs=tmp_path / "logs")
    assert [json.loads(out[-1])["stage"] for out, _ in ranks] == ["serving", "serving"]
    said = [[line for line in err if line.startswith("stalloc: ")] for _, err in ranks]
    assert [len(lines) for lines in said] == [2, 0], "rank 0 alone speaks"


GATHERS = """
import torch.distributed as dist

dist.init_process_group("gloo")
{script}
dist.barrier()
dist.destroy_process_group()
"""


def test_rank_0_tells_about_all_ranks_once(tmp_path: Path) -> None:
    script, cache = tmp_path / "train.py", tmp_path / "cache"
    script.write_text(GATHERS.format(script=SCRIPT.format(WAITS)))
    left = cache / "runs" / "of an old job"
    left.mkdir(parents=True)
    os.utime(left, (0, 0))
    command = ("-m", "stalloc", "run", script, "12")
    for kept in (cache, "0"):
        environment = {"STALLOC_CACHE": str(kept)}
        ranks = torchrun(*command, logs=tmp_path / "logs", environment=environment)
        said = [[line for line in err if "ranks under a plan" in line] for _, err in ranks]
        if kept == "0":
            assert said == [[], []]
            continue
        (line,), others = said
        assert others == []
        assert line.startswith("stalloc: 2 of 2 ranks under a plan; the largest reserves ")
        assert not (cache / "runs").exists(), "the folders are deleted"
    (cache / "runs").write_text("in the way")
    environment = {"STALLOC_CACHE": str(cache)}
    ranks = torchrun(*command, logs=tmp_path / "logs", environment=environment)
    assert "stalloc: 0 of 2 ranks under a plan, 2 unknown" in ranks[0][1]
