"""`stalloc fits` and `estimate` beside a CUDA build of torch on a machine without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAINING = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    loss = model(torch.randn(16, 64, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

PARALLEL = """
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(16, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

ESTIMATE = """
import warnings

import torch
from torch import nn

import stalloc

warnings.simplefilter("error")


def job():
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(torch.zeros(4, 8, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def losses():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout())
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in torch.utils.data.DataLoader(torch.randn(16, 8), batch_size=4, num_workers=1):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


before = list(losses())
first = stalloc.estimate(job, gpu="RTX 3060")
assert list(losses()) == before
assert stalloc.estimate(job, gpu="RTX 3060").load == first.load
weights = (8 * 8 + 8) * 4
assert first.parts["weights and buffers"] == first.parts["gradients"] == weights
assert torch.accelerator.is_available() == torch.cuda.is_available()
with torch.random.fork_rng():
    pass
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python without the pretended GPU."""
    without = ("LD_PRELOAD", "LD_LIBRARY_PATH")
    environment = {name: value for name, value in os.environ.items() if name not in without}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False
    )


@pytest.mark.parametrize(("source", "world"), [(TRAINING, "1"), (PARALLEL, "4")])
def test_a_script_is_answered(tmp_path: Path, source: str, world: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    done = run("-m", "stalloc", "fits", "--gpu", "24GiB", "--world", world, str(script))
    assert done.returncode == 0, done.stderr
    assert "fits on 24GiB with torch" in done.stdout + done.stderr


def test_an_estimate_leaves_torch_as_it_is() -> None:
    done = run("-c", ESTIMATE)
    assert done.returncode == 0, done.stderr
