"""`stalloc run` on a machine with GPUs: each rank records and serves its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, torch
from training_cuda import Trainer

rank = int(os.environ.get("LOCAL_RANK", "0"))
torch.cuda.set_device(rank)
trainer = Trainer(f"cuda:{rank}", rows=32)
for _ in range(6):
    trainer.step()
"""


def run(folder: Path, rank: int | None, *options: str) -> dict[str, float]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    if rank is not None:
        environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "stalloc", "run", "--json", *options, "train.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, float] = json.loads(done.stdout)
    return result


def test_pinned_memory_is_recorded_and_served_if_asked_for(tmp_path: Path) -> None:
    offloading = "from training_pinned import Offloading as Trainer"
    script = SCRIPT.replace("from training_cuda import Trainer", offloading)
    end = (
        "import stalloc, standin\nprint(standin.calls('cudaHostAlloc'), file=open('calls', 'w'))\n"
    )
    (tmp_path / "train.py").write_text(script + end)
    run(tmp_path, None, "--profile", "plans", "--pinned")
    assert int((tmp_path / "calls").read_text()) > 1
    names = {file.name for file in (tmp_path / "plans").iterdir()}
    assert {"rank0.pinned.trace.json", "rank0.pinned.plan.json"} < names
    served = run(tmp_path, None, "--plan", "plans")
    assert served["misses"] == 0
    assert int((tmp_path / "calls").read_text()) == 1


@pytest.mark.parametrize("rank", [None, 0, 1])
def test_a_ranks_own_gpu_is_recorded_and_served(rank: int | None, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    profiled = run(tmp_path, rank, "--profile", "plans")
    assert profiled["decisions"] > 100
    assert profiled["resident"] > 0
    served = run(tmp_path, rank, "--plan", "plans")
    assert served["misses"] == 0
    assert served["startup_requests"] == served["startup"]
