"""Plans that were made without the device that trains are corrected by its first iterations."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from documented import documented_keys
from isolation import isolated, run_isolated
from processes import python
from torch import Tensor, nn

import stalloc
from stalloc import _core
from stalloc.correction import RECORDED

SERVED = 5
"""Iterations under the corrected plan."""

Step = Callable[[int], Tensor]


def training(device: str) -> Step:
    """A transformer with dropout, of which a GPU requests other temporaries than the CPU."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(100, 64),
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        nn.Linear(64, 100),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step(length: int) -> Tensor:
        tokens = (torch.arange(8 * length, device=device) % 100).view(8, length)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def estimated(*lengths: int) -> stalloc.Plan:
    """The plan of the training on a GPU that is not there."""

    def build() -> Callable[[], object]:
        step, left = training("cuda"), [*lengths]
        return lambda: step(left.pop(0) if len(left) > 1 else left[0])

    plan = stalloc.estimate(build, iterations=max(3, len(lengths))).plan
    assert plan is not None
    assert plan.info["device"] == "meta"
    return plan


def losses(iterations: int, length: int = 32) -> list[float]:
    step = training("cpu")
    return [step(length).item() for _ in range(iterations)]


@isolated
def test_after_the_first_iterations_all_requests_are_as_planned() -> None:
    plan = estimated(32)
    expected = losses(RECORDED + SERVED)
    with stalloc.enable(plan, startup=True) as session:
        assert session.startup
        step = training("cpu")
        kept = [step(32) for _ in range(RECORDED)]
        before = stalloc.memory_stats()
        assert session.correction is None
        kept.append(step(32))
        correction = session.correction
        assert correction is not None
        assert correction.exchanged
        assert session.plan is correction.plan is not plan
        kept += [step(32) for _ in range(SERVED - 1)]
        stats = stalloc.memory_stats()
        _core.runtime("cpu").check()
        # Blocks of the first iterations lie in the pool that has gone.
        assert [loss.item() for loss in kept] == expected
    assert not session.enabled
    assert before["hit_rate"] < 0.9
    requests = stats["requests"] - before["requests"]
    assert stats["served_as_planned"] - before["served_as_planned"] > 0.99 * requests
    assert requests > (SERVED - 1) * len(correction.plan.decisions.size)
    assert stats["iterations"] >= RECORDED + SERVED - 1
    assert stats["run_peak_reserved"] >= before["run_peak_reserved"]
    # The kept losses are beside the pool.
    assert stats["peak_reserved"] < 1.01 * stats["peak_allocated"]
    changes = {change.what for change in correction.changes}
    assert {"more", "fewer"} <= changes
    assert correction.served_before.hits < 0.9
    assert correction.served.hits == pytest.approx(1, abs=0.1)
    assert "that only this device makes" in str(correction)
    assert correction.plan.info["device"] == "cpu"
    assert correction.plan.info["torch"] == torch.__version__


@isolated
def test_the_corrected_plan_serves_the_next_run_from_its_start() -> None:
    with stalloc.enable(estimated(32), startup=True) as session:
        losses(RECORDED + 1)
    correction = session.correction
    assert correction is not None
    expected = losses(6)
    with stalloc.enable(correction.plan, startup=True) as session:
        assert losses(6) == expected
        stats = stalloc.memory_stats()
    assert session.correction is None
    assert stats["hit_rate"] > 0.98
    assert stats["run_efficiency"] > 0.98


@isolated
def test_a_plan_keeps_the_lengths_that_it_is_for() -> None:
    plan = estimated(64, 16, 32, 48)
    (name,) = [name for name in plan.extents if name.endswith(".1")]
    assert plan.extents[name] == 64
    lengths = [16, 24, 32, 40, 48, 64, 56, 64]
    step = training("cpu")
    expected = [step(n).item() for n in lengths]
    with stalloc.enable(plan, startup=True) as session:
        step = training("cpu")
        served = [step(n).item() for n in lengths]
        _core.runtime("cpu").check()
    assert served == expected
    assert session.correction is not None
    assert session.correction.plan.extents[name] == 64


@isolated
def test_only_plans_that_were_made_without_the_device_are_corrected() -> None:
    with stalloc.profile() as prof:
        losses(5)
    plan = prof.plan()
    with stalloc.enable(plan, startup=True) as session:
        losses(RECORDED + 2)
    assert session.correction is None
    with stalloc.enable(estimated(32), startup=True, correct=False) as session:
        losses(RECORDED + 2)
        assert not _core.runtime("cpu").recording
    assert session.correction is None
    # There is nothing to correct in a plan of this very run.
    with stalloc.enable(plan, startup=True, correct=True) as session:
        losses(RECORDED + 2)
        stats = stalloc.memory_stats()
    correction = session.correction
    assert correction is not None
    assert not correction.exchanged
    assert not correction.changes
    assert "requests of an iteration: the same" in str(correction)
    assert stats["hit_rate"] == 1


@isolated
def test_a_plan_that_ends_early_leaves_no_recording_behind() -> None:
    with stalloc.enable(estimated(32), startup=True) as session:
        assert _core.runtime("cpu").recording
        losses(2)
    assert session.correction is None
    assert not _core.runtime("cpu").recording
    plan = estimated(32)
    with stalloc.enable(plan):
        losses(1)
        with stalloc.enable(plan) as session:
            assert _core.runtime("cpu").recording
            losses(RECORDED + 1)
        assert session.correction is not None
    with stalloc.profile() as prof:
        losses(3)
    assert len(prof.trace.requests) > 0


@isolated
def test_an_iteration_that_step_ends_may_be_the_last_recorded_one() -> None:
    expected = losses(RECORDED + 2)
    with stalloc.enable(estimated(32), startup=True) as session:
        step = training("cpu")
        served = []
        for number in range(RECORDED + 2):
            served.append(step(32).item())
            stalloc.step()
            assert (session.correction is not None) == (number + 1 >= RECORDED)
    assert served == expected


class Silent(nn.Module):
    """Requests nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x


@isolated
def test_a_run_that_cannot_be_planned_keeps_its_plan() -> None:
    plan = estimated(32)
    plan.info = {key: value for key, value in plan.info.items() if key not in ("model", "inputs")}
    model, x = Silent(), torch.ones(1)
    with stalloc.enable(plan) as session:
        for _ in range(RECORDED - 1):
            model(x)
            stalloc.step()
        model(x)
        with pytest.warns(stalloc.StallocWarning, match=r"the first iterations cannot be planned"):
            stalloc.step()
        model(x)
        stalloc.step()
        assert session.enabled
        assert session.plan is plan
        assert session.correction is None
        assert not _core.runtime("cpu").recording


def test_a_forked_child_goes_on_without_a_correction(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    # An estimate begins threads of autograd, without which torch lets no child train.
    run_isolated(save_estimated, path)
    run_isolated(train_in_a_child, path)


def save_estimated(path: Path) -> None:
    estimated(32).save(path)


def train_in_a_child(path: Path) -> None:
    torch.set_num_threads(1)  # a child has no other threads
    with stalloc.enable(path, startup=True) as session:
        step = training("cpu")
        for _ in range(RECORDED):
            step(32)
        child = os.fork()
        if child == 0:
            try:
                for _ in range(2):
                    step(32)
                os._exit(0 if session.correction is None else 3)
            except BaseException:
                os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        step(32)
        assert session.correction is not None


SCRIPT = """
import sys
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True)
model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(int(sys.argv[1])):
    loss = model(torch.ones(8, 32, 64, device=device)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss.item():.9f}")
"""


def test_a_script_that_never_ran_is_served_and_its_plan_corrected(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        done = python("-m", "stalloc", *arguments, cwd=tmp_path, code=code)
        return done.stdout, done.stderr

    output, _ = run("fits", "--gpu", "4GiB", "--profile", "made", "train.py", "9")
    assert "stalloc run --plan made" in output
    expected = python("train.py", "9", cwd=tmp_path).stdout
    output, errors = run("run", "--plan", "made", "--corrected", "seen", "train.py", "9")
    assert output == expected
    assert "that only this device makes" in errors
    assert "seen/rank0.plan.json" in errors
    output, errors = run("run", "--plan", "seen", "--json", "train.py", "9")
    *lines, answer = output.splitlines()
    assert lines == expected.splitlines()
    assert json.loads(answer)["correction"] is None
    assert json.loads(answer)["hit_rate"] > 0.98
    output, _ = run("run", "--plan", "made", "--json", "train.py", "9")
    correction = json.loads(output.splitlines()[-1])["correction"]
    assert set(correction) == documented_keys()["correction of run"]
    assert correction["exchanged"]
    # Files are not replaced, which is said before the script runs.
    output, errors = run("run", "--plan", "made", "--corrected", "seen", "train.py", "9", code=1)
    assert output == ""
    assert "is there already" in errors
    _, errors = run("fits", "--gpu", "4GiB", "--profile", "made", "train.py", "9", code=2)
    assert "is there already" in errors
    _, errors = run("run", "--corrected", "seen", "train.py", "9", code=2)
    assert "--corrected needs --plan" in errors
    _, errors = run("run", "--plan", "made", "--corrected", "other", "train.py", "2")
    assert "no plan was corrected" in errors
    assert not list((tmp_path / "other").iterdir())
