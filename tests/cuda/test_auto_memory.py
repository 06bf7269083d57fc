from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import standin
import torch
from alone import run_alone
from isolation import isolated
from training_cuda import Trainer

import stalloc

MIB = 1 << 20


def trainer_with_blocks_that_stay() -> Trainer:
    """Small blocks that stay keep most of torch's segments."""
    trainer = Trainer(rows=250)
    kept: list[torch.Tensor] = []

    def keep(module: torch.nn.Module, *_: object) -> None:
        kept.append(torch.empty(3 * MIB // 2, dtype=torch.uint8, device="cuda"))

    blocks = [module for name, module in trainer.model.named_modules() if name.count(".") == 1]
    hooks = [block.register_forward_hook(keep) for block in blocks]
    trainer.step()
    for hook in hooks:
        hook.remove()
    trainer.model.kept = kept  # type: ignore[assignment]
    return trainer


@isolated
def test_torchs_cache_stays_until_a_plan_fits() -> None:
    stalloc.auto(device="cuda")
    trainer = trainer_with_blocks_that_stay()
    given_back = standin.calls("cudaFree")
    for _ in range(10_000):  # until the plan is solved, beside the training
        trainer.step()
        if stalloc.status()["stage"] in ("serving", "resting"):
            break
    assert "exceed torch's peak" in stalloc.status()["reason"]
    assert standin.calls("cudaFree") == given_back, "torch reserves anew what it gives back"
    stalloc.disable()


class Wide(torch.nn.Module):
    """Weights of 12 MiB, and activations of 20 MiB."""

    def __init__(self, layers: int = 8) -> None:
        super().__init__()
        size = 3 * MIB
        self.weights = torch.nn.ParameterList(torch.empty(size) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = (x * weight.mean()).tanh().sigmoid().exp()
        return x


def train(optimizers: Sequence[torch.optim.Optimizer], model: Wide) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()
    model(torch.empty(5 * MIB, device="cuda")).sum().backward()
    for optimizer in optimizers:
        optimizer.step()


def idle_in_segments_that_stay() -> int:
    segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    blocks = [
        segment["blocks"]
        for segment in segments
        if any(block["state"] != "inactive" for block in segment["blocks"])
    ]
    return sum(b["size"] for each in blocks for b in each if b["state"] == "inactive")


@isolated
def test_optimizer_states_lie_apart_from_activations() -> None:
    def idle(*, auto: bool) -> int:
        if auto:
            stalloc.auto(device="cuda")
        model = Wide().to("cuda")
        half = len(model.weights) // 2
        parts = list(model.parameters())
        optimizers = [torch.optim.AdamW(part) for part in (parts[:half], parts[half:])]
        for _ in range(2):
            train(optimizers, model)
        for optimizer in optimizers:
            assert "_init_group" not in vars(optimizer)
            optimizer.zero_grad()
        found = idle_in_segments_that_stay()
        stalloc.disable()
        return found

    without = idle(auto=False)
    torch.cuda.empty_cache()
    assert without >= 16 * 8 * MIB, "each state lies in a segment of an activation"
    assert idle(auto=True) < without // 8


@isolated
def test_a_compiled_step_is_left_alone() -> None:
    stalloc.auto(device="cuda")
    model = Wide().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.empty(5 * MIB, device="cuda")).sum().backward()
        step()
    stalloc.disable()


@isolated
def test_a_step_that_fails_leaves_nothing_behind() -> None:
    stalloc.auto(device="cuda")
    model = Wide().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())

    def fail(*_: object) -> None:
        raise ArithmeticError

    fails = optimizer.register_step_pre_hook(fail)
    with pytest.raises(ArithmeticError):
        train([optimizer], model)
    fails.remove()
    for _ in range(2):
        train([optimizer], model)
    assert "_init_group" not in vars(optimizer)
    stalloc.disable()


def test_states_apart_count_towards_the_memory_fraction() -> None:
    result = run_alone(
        """
import torch, stalloc
from stalloc._adapters import adapter
GIB = 1 << 30
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(40 * GIB / total)
apart = adapter("cuda").keep_apart

def take(gib):
    return torch.empty(gib * GIB, dtype=torch.uint8, device="cuda")

def refused(gib):
    try:
        take(gib)
    except torch.OutOfMemoryError:
        return
    raise AssertionError("it has to be refused")

with stalloc.profile(device="cuda", exact=False):
    cached = take(20)
    apart(True)
    states = take(10)
    refused(11)
    apart(False)
    refused(11)
    more = take(9)
    apart(True)
    refused(2)
    apart(False)
"""
    )
    assert result.returncode == 0, result.stderr


def test_a_kept_plan_serves_the_first_iteration_as_it_was_recorded(tmp_path: Path) -> None:
    """cuBLAS's workspaces and the optimizer's states come in it, and stay."""
    script = """
import torch, stalloc
import training_cuda  # lets autograd's thread finish at the end

class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.empty(3 << 20) for _ in range(8))
        self.mix = torch.nn.Linear(1024, 1024)

    def forward(self, x):
        for weight in self.weights:
            x = (x * weight.mean()).tanh().sigmoid().exp()
        return self.mix(x)

model = Wide().cuda()
optimizer = torch.optim.AdamW(model.parameters())
stalloc.auto(model)
for iteration in range(10_000):
    model(torch.ones(5120, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if iteration == 1:
        first = stalloc.memory_stats("cuda")
    if stalloc.status()["stage"] in ("serving", "resting") and iteration > 10:
        break
status, stats = stalloc.status(), stalloc.memory_stats("cuda")
(change,) = status["changes"]
print(change["iteration"], first["misses"], first["conflicts"], stats["conflicts"], stats["strays"])
"""
    file = tmp_path / "train.py"
    file.write_text(script)
    folders = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    for run in range(2):
        done = subprocess.run(
            [sys.executable, str(file)],
            env=os.environ | {"STALLOC_CACHE": str(tmp_path / "cache"), "PYTHONPATH": folders},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        began, *departures = map(int, done.stdout.splitlines()[0].split())
        assert (began == 0) == (run == 1), done.stdout
        assert departures == [0, 0, 0, 0], done.stdout


@isolated
def test_workspaces_are_requested_only_where_they_may_be() -> None:
    from stalloc._auto.kept import request_workspaces

    device, reserved = torch.device("cuda"), torch.cuda.memory_reserved
    torch.zeros(1, device=device)
    before = reserved()
    request_workspaces(torch.nn.LayerNorm(8).cuda(), device)
    assert reserved() == before, "it has no matrices"
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    torch.use_deterministic_algorithms(True)
    request_workspaces(torch.nn.Linear(8, 8).cuda(), device)
    torch.use_deterministic_algorithms(False)
    request_workspaces(torch.nn.Linear(8, 8).cuda(), device)
    assert reserved() > before
