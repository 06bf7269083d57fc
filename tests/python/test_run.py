"""`stalloc run`: scripts that are profiled and planned unchanged, and what goes wrong with them."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documented import documented_keys
from processes import python

from stalloc import MemoryStats, Plan, _core, cli

SCRIPT = """
import os, sys, torch

model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.ones(int(sys.argv[1]), 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

WHOLE = """
import sys, torch

if "--detour" in sys.argv:
    kept = [torch.ones(64, 64), torch.ones(1000)]  # the profile had none of them
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64), torch.nn.ReLU()
)
if "--detour" in sys.argv:
    del kept[0]
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = torch.randn(20, 16, 64)
for batch in data[:8]:
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    print(loss.item().hex())
tensors = [t for p in model.parameters() for t in (p, p.grad, *optimizer.state[p].values())]
large = [t for t in tensors if t.numel() > 1]
begin, end = min(t.data_ptr() for t in large), max(t.data_ptr() + t.nbytes for t in large)
print("lie within", end - begin, "make", sum(t.nbytes for t in large))
"""

FORKS = """
    if _ == 2 and (child := os.fork()) == 0:
        torch.ones(1000)
        {end}
if child:
    assert os.waitpid(child, 0)[1] == {code} << 8
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def run(*arguments: str | Path, cwd: Path, code: int = 0) -> tuple[str, list[str]]:
    """Runs the command in a process of its own; stdout, and the lines of stderr."""
    done = python("-m", "stalloc", "run", *arguments, cwd=cwd, code=code)
    return done.stdout, done.stderr.splitlines()


def test_a_script_runs_under_the_plan_of_its_profile(script: Path, tmp_path: Path) -> None:
    documented = documented_keys()
    out, _ = run("--profile", "plans", "--json", script, "4", cwd=tmp_path)
    profiled = json.loads(out)
    assert profiled["iterations"] == 5
    assert set(profiled) == documented["run --profile"]
    assert {p.name for p in (tmp_path / "plans").iterdir()} == {
        "rank0.trace.json",
        "rank0.plan.json",
    }
    _, said = run("--profile", "plans", "--force", script, "4", cwd=tmp_path)
    pool, resident = (_core.format_bytes(int(profiled[name])) for name in ("pool", "resident"))
    assert re.fullmatch(
        rf"stalloc run: pool {pool} \([\d,]+ B\), gap 0.000%, proven optimal, "
        rf"resident region {resident}( .*)?: plans/rank0.plan.json",
        said[-2],
    )
    assert said[-1] == f"stalloc run: next: stalloc run --plan plans {script} 4"
    out, _ = run("--plan", "plans", "--json", "-m", "train", "4", cwd=tmp_path)
    stats = json.loads(out)
    assert set(stats) == documented["run --plan"] | set(MemoryStats.__annotations__)
    assert stats["enabled"]
    assert stats["refusal"] is None
    assert stats["hits"] > 0
    _, said = run("--plan", "plans", script, "4", cwd=tmp_path)
    assert "hit rate" in said[-1]


def test_a_new_profile_replaces_the_plan_of_pinned_memory_too(script: Path, tmp_path: Path) -> None:
    stale = [tmp_path / f"rank0.pinned.{kind}.json" for kind in ("trace", "plan")]
    for file in stale:
        file.write_text("of an earlier profile")
    run("--profile", ".", script, "4", cwd=tmp_path)
    assert all(file.exists() for file in stale)  # nothing goes unless --force allows it
    run("--profile", ".", "--force", script, "4", cwd=tmp_path)
    assert not any(file.exists() for file in stale)
    _, said = run("--plan", ".", script, "4", cwd=tmp_path)
    assert "hit rate" in said[-1]


def test_permanent_startup_requests_lie_in_the_pool(tmp_path: Path) -> None:
    script = tmp_path / "whole.py"
    script.write_text(WHOLE)
    plain = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    *losses, _ = plain.stdout.splitlines()
    out, _ = run("--profile", "plans", script, cwd=tmp_path)
    assert out.splitlines()[:-1] == losses
    plan = Plan.load(tmp_path / "plans" / "rank0.plan.json")

    out, _ = run("--plan", "plans", "--json", script, cwd=tmp_path)
    *said, lie, figures = out.splitlines()
    assert said == losses
    stats = json.loads(figures)
    assert stats["startup_requests"] == stats["startup"] == (plan.startup.offset >= 0).sum() > 16
    # From the second iteration on the four gradients are made only to be added to those there are.
    assert len(plan.absent) == 4
    assert (stats["misses"], stats["conflicts"]) == (0, 0)
    assert stats["fallback_requests"] == 0, "the loss, which outlives the next one, has a slot"
    within, make = (int(word) for word in lie.split() if word.isdecimal())
    assert make <= within <= stats["resident"] == plan.resident
    # The states' step counts and biases, which are rounded up, and the data.
    assert plan.resident <= make + 20 * 16 * 64 * 4 + 20 * plan.alignment
    assert stats["peak_reserved"] <= plan.pool + plan.resident + (128 << 10)

    out, _ = run("--plan", "plans", "--json", script, "--detour", cwd=tmp_path)
    *said, _, figures = out.splitlines()
    assert said == losses
    stats = json.loads(figures)
    assert stats["startup_requests"] > stats["startup"] // 2
    assert stats["misses"] <= 4


def test_a_plan_that_does_not_fit_is_told(script: Path, tmp_path: Path) -> None:
    run("--profile", "plans", script, "4", cwd=tmp_path)
    out, _ = run("--plan", "plans", "--json", script, "5", cwd=tmp_path)
    stats = json.loads(out)
    assert stats["enabled"] is False
    assert "[5,8]" in stats["refusal"]
    _, said = run("--plan", "plans", script, "5", cwd=tmp_path)
    assert said[-1].startswith("stalloc run: the plan was not used: ")
    assert "[5,8]" in said[-1]
    out, said = run("--plan", "plans", "--strict", "--json", script, "5", cwd=tmp_path, code=1)
    assert out == ""
    assert len(said) == 1
    assert "[5,8]" in said[0]


def test_its_own_warnings_are_one_line_and_the_scripts_are_as_in_python(
    script: Path, tmp_path: Path
) -> None:
    run("--profile", "plans", script, "4", cwd=tmp_path)
    script.write_text("import warnings; warnings.warn('mine')\n" + SCRIPT)
    plain = python(script, "5", cwd=tmp_path).stderr.splitlines()
    assert plain[0].endswith("UserWarning: mine")
    _, said = run("--plan", "plans", script, "5", cwd=tmp_path)
    assert said[: len(plain)] == plain
    assert said[len(plain)].startswith("stalloc: warning: the plan does not fit this run ")
    assert len(said) == len(plain) + 2
    assert "StallocWarning" not in "".join(said)


@pytest.mark.parametrize(("end", "code"), [("sys.exit(3)", 3), ("break", 0)])
def test_a_forked_child_leaves_files_and_words_to_its_parent(
    end: str, code: int, script: Path, tmp_path: Path
) -> None:
    script.write_text(SCRIPT.rstrip() + FORKS.format(end=end, code=code))
    out, said = run("--profile", "plans", "--json", script, "4", cwd=tmp_path)
    assert json.loads(out)["iterations"] == 5
    assert not [line for line in said if line.startswith("stalloc")]
    _, said = run("--plan", "plans", script, "4", cwd=tmp_path)
    assert [line for line in said if line.startswith("stalloc")] == said[-1:]
    assert "hit rate" in said[-1]


def test_a_device_that_was_not_used_is_told(script: Path, tmp_path: Path) -> None:
    _, said = run("--profile", "plans", "--device", "meta", script, "4", cwd=tmp_path, code=1)
    assert "asked for no memory on meta: name the device it trains on with --device" in said[-1]
    assert list((tmp_path / "plans").iterdir()) == []


def test_too_few_steps_are_told_with_their_number(script: Path, tmp_path: Path) -> None:
    script.write_text(SCRIPT.replace("range(6)", "range(int(sys.argv[2]))"))
    _, said = run("--profile", "plans", script, "4", "1", cwd=tmp_path, code=1)
    assert len(said) == 1
    assert "0 complete iterations were seen, and at least 2 are needed, better 3" in said[0]
    assert "train for more steps" in said[0]
    assert list((tmp_path / "plans").iterdir()) == []
    _, said = run("--profile", "plans", script, "4", "3", cwd=tmp_path)
    assert said[0].startswith("stalloc run: 2 iterations, ")
    assert said[2].endswith("at least 3 iterations: train for more steps, and profile again")
    options = ("--force", "--iterations", "1")
    _, said = run("--profile", "plans", *options, script, "4", "6", cwd=tmp_path)
    assert said[0].startswith("stalloc run: 1 iteration, ")
    assert said[2].endswith("at least 3 iterations: raise --iterations, and profile again")


def test_a_script_without_iterations_is_told_under_a_plan(script: Path, tmp_path: Path) -> None:
    run("--profile", "plans", script, "4", cwd=tmp_path)
    script.write_text("import torch\n\ntorch.ones(8)\n")
    _, said = run("--plan", "plans", script, cwd=tmp_path)
    assert len(said) == 1
    assert said[0].startswith("stalloc run: no complete iteration was seen (an iteration ends with")
    assert "hit rate" not in said[0]
    assert "reserved at the peak" in said[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py"], "nowhere.py: there is no such script"),
        (["no_main"], "no_main: is a folder: name a script in it, or run a package with -m"),
        (["-m", "nowhere"], "nowhere: there is no such module"),
        (["-m", "nowhere.inside"], "nowhere.inside: there is no such module"),
        (["-m", "..train"], "..train: there is no such module"),
        (["-m", "no_main"], "no_main: a package that cannot be run: it has no __main__"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    arguments: list[str],
    message: str,
    script: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(script.parent)
    Path("no_main").mkdir()
    Path("no_main/__init__.py").touch()
    before = sys.argv, sys.path[:]
    assert cli.main(["run", "--profile", "plans", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("stalloc run: ")
    assert message in err
    assert not Path("plans").exists()
    assert (sys.argv, sys.path) == before


_SAFE_PATH = ["-P"] if sys.version_info >= (3, 11) else []


@pytest.mark.parametrize("options", [[], _SAFE_PATH], ids=["usual", "safe-path"])
@pytest.mark.parametrize("as_module", [False, True], ids=["script", "module"])
def test_a_script_finds_the_modules_that_it_finds_without_stalloc(
    options: list[str], as_module: bool, tmp_path: Path
) -> None:
    """Neither the folder of the command, nor another current folder, comes before others."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "shows.py").write_text("import sys; print(sys.path)")
    what = ["-m", "inside.shows"] if as_module else ["inside/shows.py"]
    stalloc = Path(sys.executable).with_name("stalloc")

    def shown(command: list[str | Path]) -> str:
        environment = os.environ | {"STALLOC_CACHE": "0"}
        environment |= {"PYTHONPATH": str(tmp_path)} if as_module else {}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    expected = shown([sys.executable, *options, *what])
    assert shown([sys.executable, *options, "-m", "stalloc", "run", *what]) == expected
    assert shown([sys.executable, *options, stalloc, "run", *what]) == expected


@pytest.mark.parametrize("device", ["nonsense", "xla", "cuda:x", "cuda:-1", "0", "", "meta:1"])
def test_unknown_devices_are_wrong_usage(
    device: str, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["run", "--profile", str(tmp_path / "plans"), f"--device={device}", str(script)])
    assert exit_.value.code == 2
    assert f"{device!r} is no device" in capsys.readouterr().err
    assert not (tmp_path / "plans").exists()


def test_a_script_fails_as_it_would_without(script: Path, tmp_path: Path) -> None:
    script.write_text("import nowhere\n")
    _, said = run("--plan", "plans", script, cwd=tmp_path, code=1)
    assert said == [
        "stalloc run: plans: there is no such plan; make it with stalloc run --profile DIR"
    ]
    _, said = run("--profile", "plans", script, cwd=tmp_path, code=1)
    assert said[-1] == "ModuleNotFoundError: No module named 'nowhere'"


def test_a_script_is_the_main_module_as_under_python(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        """
import inspect, os, pickle, sys, threading, time

class Checkpoint: ...

def save():
    time.sleep(0.3)
    print(len(pickle.dumps(Checkpoint())) > 0)

os.chdir("/")
print(__file__, sys.argv, inspect.getsource(Checkpoint), __name__, __spec__)
threading.Thread(target=save).start()
"""
    )
    plain = python("train.py", "a", cwd=tmp_path).stdout
    assert str(script) in plain
    out, _ = run("train.py", "a", cwd=tmp_path)
    assert out == plain
    out, _ = run("--profile", "plans", "train.py", "a", cwd=tmp_path, code=1)
    assert out == plain


@pytest.mark.parametrize(
    "end",
    [
        "f()",
        "sys.excepthook = lambda kind, *_: print('a hook of its own:', kind)\nf()",
        "sys.exit('no data')",
        "raise BaseException('no subclass of Exception')",
        "try: f()\nexcept KeyError as error: raise ValueError(1) from error",
        "def g(:",
        "import threading\nthreading.Timer(1, print, ['late'], {'file': sys.stderr}).start()\nf()",
    ],
)
def test_a_script_ends_with_the_words_of_python(end: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import sys\n\ndef f():\n    raise KeyError('lost')\n\n{end}\n")
    plain = python("train.py", cwd=tmp_path, code=1)
    assert "lost" in plain.stderr + plain.stdout or end[0] in "srd"
    out, said = run("train.py", cwd=tmp_path, code=1)
    assert (out, said) == (plain.stdout, plain.stderr.splitlines())


def test_keeps_the_recording_after_ctrl_c(script: Path, tmp_path: Path) -> None:
    script.write_text(SCRIPT.replace("zero_grad()", "zero_grad()\n    if _ == 3: raise INTERRUPT"))
    script.write_text(script.read_text().replace("INTERRUPT", "KeyboardInterrupt"))
    out, said = run("--profile", "plans", "--json", script, "4", cwd=tmp_path, code=130)
    assert said == ["stalloc run: interrupted"]
    assert json.loads(out)["iterations"] == 3
    out, said = run("--plan", "plans", "--json", script, "4", cwd=tmp_path, code=130)
    assert said == ["stalloc run: interrupted"]
    assert json.loads(out)["hits"] > 0


def test_a_plan_may_be_gzipped(script: Path, tmp_path: Path) -> None:
    run("--profile", "plans", script, "4", cwd=tmp_path)
    packed = tmp_path / "plan.json.gz"
    packed.write_bytes(gzip.compress((tmp_path / "plans" / "rank0.plan.json").read_bytes()))
    out, _ = run("--plan", packed, "--json", script, "4", cwd=tmp_path)
    assert json.loads(out)["hits"] > 0


def test_files_that_cannot_be_are_told_before_the_script_runs(
    script: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    script.write_text("raise AssertionError\n")
    empty, trace = tmp_path / "empty", tmp_path / "trace.json"
    empty.touch()
    trace.write_text('{"format": "stalloc-trace"}')
    for options, message in (
        (["--profile", str(empty)], f"{empty}: is a file: name a folder"),
        (["--profile", "empty/below"], "empty/below: Not a directory"),
        (["--profile", "/proc"], "/proc: "),
        (["--plan", "nowhere"], "nowhere: there is no such plan; make it with stalloc run"),
        (["--plan", str(tmp_path)], "rank0.plan.json: there is no such plan"),
        (["--plan", "empty"], "empty: the file is empty"),
        (["--plan", "trace.json"], "trace.json: this is a stalloc trace, and a plan is needed"),
    ):
        assert cli.main(["run", *options, str(script)]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert err.startswith("stalloc run: ")
        assert message in err


def test_under_torchrun_each_rank_has_files_of_its_own(script: Path, tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

    def launch(*options: str) -> str:
        command = [*torchrun, "-m", "stalloc", "run", *options, str(script), "4"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    said = launch("--profile", str(folder))
    assert sorted(path.name for path in folder.iterdir()) == [
        "rank0.plan.json",
        "rank0.trace.json",
        "rank1.plan.json",
        "rank1.trace.json",
    ]
    (line,) = (line for line in said.splitlines() if "next: " in line)
    assert line.endswith(f"next: torchrun ... -m stalloc run --plan {folder} {script} 4")
    assert launch("--plan", str(folder)).count("iterations, hit rate") == 2
