"""Scripts that know nothing of stalloc, run by `python -m stalloc.integrations`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from colossalai_package import load
from criteria import assert_tight, static_hits
from isolation import run_isolated
from packages import folders
from trainers import prepare

import stalloc
from stalloc import cli
from stalloc.integrations.__main__ import main

HEAD = "import sys\nfrom pathlib import Path\nfolder = Path(sys.argv[1])\n"

SCRIPTS = {
    "transformers": """
from test_transformers import train
train(folder, [])
""",
    "lightning": """
from test_lightning import train
train(folder, [])
""",
    "accelerate": """
import torch
from accelerate import Accelerator
from trainers import loss_of, network, tokens
net = network()
accelerator = Accelerator(cpu=True)
loader = torch.utils.data.DataLoader(tokens(48), 4)
net, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters()), loader)
for batch in loader:
    accelerator.backward(loss_of(net, batch))
    optimizer.step()
    optimizer.zero_grad()
""",
    "deepspeed": """
from test_deepspeed import initialize, start
from trainers import loss_of, network, tokens
engine = initialize(start(0, 1, folder / "store"), network())
for batch in tokens(144).split(4):
    engine.backward(loss_of(engine, batch))
    engine.step()
""",
    "colossalai": """
from colossalai_training import Settings, train
train(Settings(), 0, str(folder / "store"))
""",
    "megatron": """
from megatron_training import Settings, train
train(Settings())
""",
}


def run(framework: str, script: Path, folder: Path, plans: Path, mode: str) -> None:
    os.environ.update(STALLOC_MODE=mode, STALLOC_DIR=str(plans))
    prepare()
    sys.path[:0] = folders("stable")
    if framework == "colossalai":
        load("booster")  # which stands in for what is missing
    assert main([framework, str(script), str(folder)]) == 0
    if mode == "plan":
        stats = stalloc.memory_stats()
        assert stats["iterations"] > 5
        # Code that is compiled during its first runs makes more requests then.
        assert static_hits(stats) > (0.9 if framework == "megatron" else 0.99)


@pytest.mark.parametrize("framework", SCRIPTS)
def test_a_script_is_profiled_and_then_served_as_it_is(framework: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEAD + SCRIPTS[framework])
    plans = tmp_path / "plans"
    for mode in ("profile", "plan"):
        folder = tmp_path / mode
        folder.mkdir()
        run_isolated(run, framework, script, folder, plans, mode)
        files = sorted(path.name.partition("rank0")[2] for path in plans.iterdir())
        assert files == [".plan.json", ".trace.json"]


def run_whole(framework: str, script: Path, folder: Path, *options: str) -> dict[str, Any]:
    """Under `stalloc run`; what it prints as JSON."""
    prepare()
    sys.path[:0] = folders("stable")
    if framework == "colossalai":
        load("booster")
    command = ["run", *options, "--json", "-m", "stalloc.integrations"]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert cli.main([*command, framework, str(script), str(folder)]) == 0
    figures: dict[str, Any] = json.loads(output.getvalue().splitlines()[-1])
    return figures


@pytest.mark.parametrize("framework", SCRIPTS)
def test_a_script_is_served_from_its_start(framework: str, tmp_path: Path) -> None:
    """`stalloc run` begins before there is a model; the framework's driver joins it."""
    script, plans = tmp_path / "train.py", str(tmp_path / "plans")
    script.write_text(HEAD + SCRIPTS[framework])
    for mode in ("--profile", "--plan"):
        folder = tmp_path / mode
        folder.mkdir()
        figures = run_isolated(run_whole, framework, script, folder, mode, plans)
    plan = stalloc.Plan.load(tmp_path / "plans" / "rank0.plan.json")
    assert plan.info["framework"].partition(" ")[0].partition("-")[0] == framework
    assert_tight(plan)
    assert plan.resident > 0
    assert figures["enabled"]
    assert figures["iterations"] > 5
    assert static_hits(figures) > 0.99
    assert figures["startup_requests"] > 0.9 * figures["startup"]


def test_explains_scripts_that_cannot_be_run() -> None:
    command = [sys.executable, "-m", "stalloc.integrations", "megatron", "nowhere.py"]
    job = subprocess.run(command, capture_output=True, text=True, check=False)
    assert job.returncode == 1
    assert job.stderr == "stalloc: nowhere.py: there is no such script\n"


@pytest.mark.parametrize(
    ("framework", "message"),
    [
        ("megatron", "install megatron-core"),
        ("deepspeed", "stalloc: deepspeed: import of deepspeed halted"),
    ],
)
def test_a_framework_that_is_missing_is_said(framework: str, message: str) -> None:
    assert message in run_isolated(said, framework)


def said(framework: str) -> str:
    sys.modules[framework] = None  # type: ignore[assignment]
    output = io.StringIO()
    with contextlib.redirect_stderr(output):
        assert main([framework, __file__]) == 1
    return output.getvalue()
