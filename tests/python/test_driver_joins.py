"""A driver in a run that is recorded, or served, from its start: it joins what is on."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from isolation import isolated
from test_driver import PARALLELISM, microbatch_in_chunks, train
from training import Model, Trainer, assert_same, make_driver, twins

import stalloc
from stalloc.driver import Stage
from stalloc.errors import PlanError, StallocWarning
from stalloc.session import current_session

SCRIPT = """
import sys, torch
from stalloc.driver import Driver
from stalloc.options import Options

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
optimizer = torch.optim.AdamW(model.parameters())
driver = Driver(Options(*sys.argv[1:]), parallelism={"mb": 2}, framework="test 1.0")
for _ in range(7):
    with driver.iteration(model):
        for i in range(2):
            with driver.forward(i):
                loss = model(torch.ones(16, 64)).square().mean()
            with driver.backward(i):
                loss.backward()
        with driver.optimizer():
            optimizer.step()
            optimizer.zero_grad()
    print(loss.item().hex(), driver.stage.value)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def run(*arguments: str | Path, cwd: Path, module: str = "stalloc") -> tuple[str, str]:
    """Runs a module in a process of its own, in which stalloc warns of nothing."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-m", module, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return done.stdout, done.stderr


def said_by(output: str) -> tuple[list[str], list[str]]:
    """The script's losses and its driver's stages."""
    losses, stages = zip(*(line.split() for line in output.splitlines()), strict=True)
    return list(losses), list(stages)


@pytest.mark.parametrize("mode", ["auto", "profile", "plan"])
def test_stalloc_run_of_a_script_with_a_driver(mode: str, script: Path, tmp_path: Path) -> None:
    """This holds in every mode; the driver writes nothing to its own folder."""
    plain = subprocess.run(
        [sys.executable, script, "off"], capture_output=True, text=True, check=True
    ).stdout
    losses, _ = said_by(plain)
    driver = [str(script), mode, "folder"]

    out, _ = run("run", "--profile", "plans", *driver, cwd=tmp_path)
    assert said_by(out) == (losses, ["profiling"] * 4 + ["off"] * 3)
    trace = stalloc.Trace.load(tmp_path / "plans" / "rank0.trace.json")
    assert len(trace.iterations) == 1 + 5
    assert "0" in trace.layers
    plan = stalloc.Plan.load(tmp_path / "plans" / "rank0.plan.json")
    assert plan.info["framework"] == "test 1.0"
    assert json.loads(plan.info["layout"]) == {"mb": 2}
    assert len(plan.startup) > 0
    assert set(plan.phases.microbatch.tolist()) == {-1, 0, 1}

    out, _ = run("run", "--plan", "plans", "--json", *driver, cwd=tmp_path)
    *said, figures = out.splitlines()
    assert said_by("\n".join(said)) == (losses, ["serving"] * 7)
    stats = json.loads(figures)
    assert (stats["iterations"], stats["misses"]) == (7, 0)
    assert stats["startup_requests"] == stats["startup"] == len(plan.startup)
    assert not (tmp_path / "folder").exists()


def test_a_plan_without_a_drivers_phases_is_served_without_them(
    script: Path, tmp_path: Path
) -> None:
    run("run", "--profile", "plans", script, "off", cwd=tmp_path)
    out, _ = run("run", "--plan", "plans", "--json", script, "auto", cwd=tmp_path)
    *said, figures = out.splitlines()
    assert said_by("\n".join(said))[1] == ["off"] * 7
    stats = json.loads(figures)
    assert stats["misses"] == 0
    assert stats["startup_requests"] == stats["startup"]


def test_a_plan_whose_phases_nobody_tells_says_so(script: Path, tmp_path: Path) -> None:
    run("run", "--profile", "plans", script, "auto", cwd=tmp_path)
    _, said = run("run", "--plan", "plans", script, "off", cwd=tmp_path)
    assert "test 1.0 reported the phases of the profile" in said
    _, said = run("run", "--plan", "plans", script, "auto", cwd=tmp_path)
    assert "reported the phases" not in said


@contextmanager
def whole_plan(iterations: int = 3, **options: Any) -> Iterator[stalloc.Plan]:
    """A plan of a run from its start, which such a driver has joined; the process is as before."""
    with stalloc.profile(iterations=iterations) as prof:
        trainer, _ = twins()
        train(
            make_driver("auto", parallelism=PARALLELISM, framework="test 1", **options),
            trainer,
            iterations,
        )
    yield prof.plan()
    stalloc.disable()


@isolated
def test_a_profile_is_complete_where_its_iterations_are() -> None:
    plain, joined = twins()
    train(make_driver("off"), plain, 6)
    with stalloc.profile(iterations=3) as prof:
        driver = make_driver("auto", warmup=0)
        held = []
        for _ in range(6):
            train(driver, joined, 1)
            held.append((driver.stage, gc.isenabled()))
    assert held == [(Stage.PROFILING, False)] * 2 + [(Stage.OFF, True)] * 4
    assert_same(plain, joined)
    assert len(prof.trace.iterations) == 1 + 3
    prof.plan().check()


@isolated
def test_only_the_beginner_ends_a_profile() -> None:
    trainer, _ = twins()
    with stalloc.profile() as prof:
        driver = make_driver("auto")
        train(driver, trainer, 3)
        driver.finish()
        assert (driver.stage, gc.isenabled()) == (Stage.OFF, True)
        trainer.step()
        again = make_driver("auto")
        train(again, trainer, 2)
        assert again.active
    train(again, trainer, 1)
    assert not again.active
    assert len(prof.trace.iterations) == 1 + 6

    with whole_plan() as plan:
        session = stalloc.enable(plan, startup=True)
        trainer, _ = twins()
        driver = make_driver("auto", parallelism=PARALLELISM, framework="test 2")
        train(driver, trainer, 3)
        assert driver.stage is Stage.SERVING
        driver.finish()
        assert session.enabled
        session.__exit__(None, None, None)


@isolated
def test_joins_only_profiles_of_the_whole_run(tmp_path: Path) -> None:
    """Not a plan that is enabled later, and not what another driver began, or has joined."""
    trainer, other = twins()
    first, second = make_driver("auto", warmup=0), make_driver("auto", warmup=0)
    train(first, trainer, 1)
    with pytest.warns(StallocWarning, match="being recorded already"):
        train(second, other, 1)
    first.finish()

    with stalloc.profile(trainer.model):
        first, second = make_driver("auto"), make_driver("auto", warmup=0)
        train(first, trainer, 1)
        with pytest.warns(StallocWarning, match="being recorded already"):
            train(second, other, 1)
    with whole_plan() as plan:
        stalloc.enable(plan)
        with pytest.warns(StallocWarning, match="a plan is enabled"):
            train(
                make_driver("auto", warmup=0, parallelism=PARALLELISM, framework="test"), other, 1
            )


@isolated
def test_a_driver_that_is_off_joins_nothing() -> None:
    trainer, _ = twins()
    with stalloc.profile() as prof:
        train(make_driver("off", parallelism=PARALLELISM), trainer, 2)
    assert "layout" not in prof.trace.info


@pytest.mark.parametrize("what", ["layout", "model"])
@pytest.mark.parametrize("strict", [False, True])
@isolated
def test_refuses_plan_of_another_run(what: str, strict: bool) -> None:
    with whole_plan() as plan:
        session = stalloc.enable(plan, startup=True, strict=strict)
        trainer = Trainer(Model(width=32 if what == "model" else 64))
        driver = make_driver(
            "auto", parallelism={"tp": 3} if what == "layout" else PARALLELISM, framework="test"
        )
        match = rf"profiled with (the )?{what}"
        if strict:
            with pytest.raises(PlanError, match=match):
                driver.begin_iteration(trainer.model)
        else:
            with pytest.warns(StallocWarning, match=match) as said:
                train(driver, trainer, 2)
            assert len(said) == 1
        assert driver.stage is Stage.OFF
        assert session.refusal is not None
        assert current_session() is None


@pytest.mark.parametrize("begun", [False, True])
@isolated
def test_unplannable_feature_ends_the_running_plan(begun: bool) -> None:
    trainer, _ = twins()
    with stalloc.profile() as prof:
        driver = make_driver("auto")
        train(driver, trainer, int(begun))
        with pytest.warns(StallocWarning, match="graphs"):
            driver.stand_aside("graphs")
        trainer.step()
    assert gc.isenabled()
    assert len(prof.trace.iterations) == 1 + begun
    with whole_plan() as plan:
        session = stalloc.enable(plan, startup=True, strict=False)
        driver = make_driver("auto", parallelism=PARALLELISM, framework="test")
        train(driver, twins()[0], int(begun))
        with pytest.warns(StallocWarning, match="graphs") as said:
            driver.stand_aside("graphs")
        assert len(said) == 1
        assert session.refusal == "graphs"
        assert current_session() is None


@isolated
def test_layers_of_all_chunks_are_known_and_dynamic_ones_are_told() -> None:
    """The root is never called."""
    first, second = torch.nn.Linear(8, 8), torch.nn.Sequential(torch.nn.Linear(8, 8))
    with stalloc.profile(iterations=2) as prof:
        driver = make_driver("auto", dynamic=lambda: ["1.0"])
        for _ in range(3):
            with driver.iteration([first, second]):
                microbatch_in_chunks(driver, first, second)
    trace = prof.trace
    assert len(trace.iterations) == 1 + 2
    assert {"0", "1", "1.0"} <= set(trace.layers)
    inside = trace.requests.layer_begin == trace.layers.index("1.0")
    assert inside.any()
    assert trace.requests.dynamic[inside].all()
    assert not trace.requests.dynamic[~inside].any()
    assert trace.info["dynamic"] == '["1.0"]'
