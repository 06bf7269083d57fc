"""The benchmark of public scripts, over a small script of its own and recorded rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from scripts.catalogue import SCRIPTS, Script
from scripts.data import DATA
from scripts.figures import identical, stages
from scripts.report import render, summary

from scripts import runs

TRAINING = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(40):
    optimizer.zero_grad()
    model(torch.randn(512, 64)).square().mean().backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
"""


def test_the_digest_of_saved_tensors_does_not_depend_on_the_names_of_folders(
    tmp_path: Path,
) -> None:
    def digest(of_first: str, of_second: str, value: float = 1.0) -> str:
        folder = tmp_path / f"{of_first}-{of_second}-{value}"
        files = {"model.pt": (of_first, value), "rng_1.pth": (of_second, 3.0)}
        for name, (inner, number) in files.items():
            (folder / inner).mkdir(parents=True, exist_ok=True)
            torch.save(torch.full((9,), number), folder / inner / name)
        return runs.digest_of_saved(folder)

    assert digest("a", "b") == digest("b", "a") == digest("c", "c")
    assert digest("a", "b") != digest("a", "b", 2.0)


def test_runs_a_script_of_a_checkout_unchanged(tmp_path: Path) -> None:
    checkout = tmp_path / "sources" / "example"
    checkout.mkdir(parents=True)
    (checkout / "train.py").write_text(TRAINING)
    script = Script("example", "nobody/example", "train.py", cpu="", gpu=None)
    row = runs.measure(script, tmp_path / "sources", "cpu", tmp_path / "work", 120)
    assert [run.get("error") for run in row["runs"].values()] == [None] * 3
    assert [run["steps"] for run in row["runs"].values()] == [40] * 3
    assert identical(row)
    (first,) = stages(row, "first")
    assert first.iterations == 39
    assert (checkout / "train.py").read_text() == TRAINING
    assert [path.name for path in checkout.iterdir()] == ["train.py"]
    other = {**row["runs"]["torch"], "saved": "of another run"}
    assert not identical({"runs": {**row["runs"], "torch": other}})


def _run(device: int, *, in_force: int | None, hits: int) -> dict[str, Any]:
    """A run under stalloc of which 10 of 110 requests are evaluations'."""
    changes = [] if in_force is None else [{"iteration": in_force, "in_force": True}]
    status = {
        "iterations": 60,
        "changes": changes,
        "requests": 110,
        "evaluation_requests": 10,
        "served_as_planned": hits,
        "evaluation_served_as_planned": 0,
    }
    stats = {"run_efficiency": 0.995}
    return {"torch": "2.14.1", "device": device, "status": [status], "stats": [stats]}


def _row(name: str, first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    torch = {"torch": "2.14.1", "load": 90 << 20, "reserved": 1, "device": 100 << 20}
    expandable = {**torch, "device": 95 << 20}
    ways = {"torch": torch, "expandable": expandable, "first": first, "second": second}
    return {"script": name, "commit": "0123456", "measured": "abcdef0", "runs": ways}


def test_page_counts_the_rows_that_meet_each_target() -> None:
    good = _row("vae", _run(95 << 20, in_force=6, hits=100), _run(94 << 20, in_force=0, hits=100))
    bad = _row("mnist", _run(101 << 20, in_force=12, hits=98), _run(96 << 20, in_force=0, hits=99))
    failed = _row("dcgan", {"error": "exit code 1: no memory"}, {})
    verdicts = {}
    for line in summary("gpu", [good, bad, failed]):
        _, title, count, missed, _ = (part.strip() for part in line.split("|"))
        verdicts[title] = (count, missed)
    assert verdicts["in force within 10 iterations"] == ("1 of 2", "mnist")
    assert verdicts["hits of the first run at least 99%"] == ("1 of 2", "mnist")
    assert verdicts["hits of the second run at least 99%"] == ("2 of 2", "")
    assert verdicts["peak of the first run at most torch's"] == ("1 of 2", "mnist")
    page = render({"cpu": [], "gpu": [good, bad, failed]})
    assert "torch 2.14.1; measured at abcdef0." in page.splitlines()
    line = (
        "| vae | 90.0 | 100.0 | 95.0 | 95.0 | 94.0 | 6 | 100.00% | 100.00% | 0.9950 | 0.9950 | 60 |"
    )
    assert line in page.splitlines()
    assert "| dcgan | failed: first: exit code 1: no memory |" in page


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_data_of_every_script_can_be_named(script: Script) -> None:
    assert not script.data or script.data in DATA


def test_page_is_written_without_measuring(tmp_path: Path) -> None:
    row = _row("vae", _run(1, in_force=None, hits=0), _run(1, in_force=None, hits=0))
    (tmp_path / "vae.gpu.json").write_text(json.dumps(row))
    program = Path(__file__).parents[2] / "benchmarks" / "scripts"
    command = [sys.executable, str(program), "--rows", str(tmp_path)]
    page = tmp_path / "page.md"
    subprocess.run([*command, "-o", str(page)], check=True, capture_output=True)
    assert (
        "| vae | 90.0 | 100.0 | 95.0 | 0.0 | 0.0 | never | - | - | - | - | 60 |" in page.read_text()
    )
