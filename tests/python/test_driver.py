"""The driver under every integration: the order of its actions, and its errors."""

from __future__ import annotations

import atexit
import gc
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from isolation import isolated
from training import Model, Trainer, assert_same, loss_of, make_driver, tokens, twins

import stalloc
from stalloc import _core
from stalloc.driver import Driver, Stage
from stalloc.errors import PlanError, StallocWarning
from stalloc.options import Options
from stalloc.plans import Plan
from stalloc.ranks import RankFiles, rank_info, rank_mismatch
from stalloc.session import current_session

PARALLELISM = {"tp": 2, "pp": 1, "seq": 32}


def train(driver: Driver, trainer: Trainer, iterations: int, length: int = 32) -> None:
    """As an integration does it: with explicit phases, and stalloc.step() never called."""
    for _ in range(iterations):
        with driver.iteration(trainer.model):
            for i in range(trainer.microbatches):
                loop_body(driver, trainer, i, length)
            with driver.optimizer():
                trainer.optimizer.step()
                trainer.optimizer.zero_grad()
        trainer.steps += 1


def microbatch_in_chunks(driver: Driver, first: torch.nn.Module, second: torch.nn.Module) -> None:
    """A pipeline's, whose root is never called."""
    with driver.forward(0, 0):
        x = first(torch.ones(4, 8))
    with driver.forward(0, 1):
        loss = second(x).sum()
    with driver.backward(0, 1):
        loss.backward()


def loop_body(driver: Driver, trainer: Trainer, i: int, length: int) -> None:
    with driver.forward(i):
        loss = loss_of(trainer.model, tokens(trainer.steps, i, length))
    with driver.backward(i):
        loss.backward()
    trainer.losses.append(loss.item())


def leave_plan(folder: Path, **options: Any) -> Trainer:
    """Writes a plan to the folder; returns a trainer of an equal model that has not trained."""
    profiled, other = twins()
    train(make_driver("profile", folder, parallelism=PARALLELISM, warmup=1, **options), profiled, 5)
    return other


@pytest.mark.parametrize("with_folder", [True, False])
@isolated
def test_auto_profiles_plans_and_serves_in_one_run(tmp_path: Path, with_folder: bool) -> None:
    plain, planned = twins()
    train(make_driver("off"), plain, 10)
    driver = make_driver("auto", tmp_path if with_folder else None, warmup=2, iterations=3)
    stages = []
    for _ in range(10):
        train(driver, planned, 1)
        stages.append(driver.stage)
        _core.runtime("cpu").check()
    assert stages == [Stage.WAITING] * 2 + [Stage.PROFILING] * 2 + [Stage.SERVING] * 6
    assert (tmp_path / "rank0.plan.json").exists() == with_folder
    assert_same(plain, planned)
    stats = stalloc.memory_stats()
    assert stats["iterations"] == 5
    assert stats["misses"] == 0
    driver.finish()
    driver.finish()
    assert driver.stage is Stage.OFF
    assert current_session() is None


@isolated
def test_plan_mode_finds_the_profiled_plan_by_rank_and_parallelism(tmp_path: Path) -> None:
    plain, profiled = twins()
    train(make_driver("off"), plain, 7)
    driver = make_driver("profile", tmp_path, parallelism=lambda: PARALLELISM, framework="test 1.0")
    train(driver, profiled, 7)
    assert driver.stage is Stage.OFF
    assert_same(plain, profiled)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"tp2-seq32.rank0.trace.json", "tp2-seq32.rank0.plan.json"}
    info = stalloc.Plan.load(tmp_path / "tp2-seq32.rank0.plan.json").info
    assert json.loads(info["layout"]) == PARALLELISM
    assert info["world_size"] == "1"
    assert info["framework"] == "test 1.0"

    plain, planned = twins()
    train(make_driver("off"), plain, 5)
    train(make_driver("plan", tmp_path, parallelism=PARALLELISM), planned, 5)
    assert_same(plain, planned)
    stats = stalloc.memory_stats()
    assert stats["iterations"] == 5 - Options.serve_from
    assert stats["misses"] == 0


@isolated
def test_a_departure_right_after_the_profile_ends_no_phase() -> None:
    _, planned = twins()
    driver = make_driver("auto", warmup=2, iterations=3)
    while driver.stage is not Stage.SERVING:
        train(driver, planned, 1)
    with driver.iteration(planned.model):
        for i in range(planned.microbatches):
            with driver.forward(i):
                torch.zeros(12_345)  # no request of the profile
                loss = loss_of(planned.model, tokens(planned.steps, i, 32))
            with driver.backward(i):
                torch.zeros(12_345)
                loss.backward()
        with driver.optimizer():
            planned.optimizer.step()
            planned.optimizer.zero_grad()
    stats = stalloc.memory_stats()
    assert stats["iterations"] == 1
    assert stats["hits"] >= 0.99 * stats["planned"]
    driver.finish()


@isolated
def test_auto_serves_from_a_plan_that_is_there(tmp_path: Path) -> None:
    trainer = leave_plan(tmp_path)
    driver = make_driver("auto", tmp_path, parallelism=PARALLELISM)
    train(driver, trainer, Options.serve_from)
    assert driver.stage is Stage.WAITING
    train(driver, trainer, 1)
    assert driver.stage is Stage.SERVING


@isolated
def test_a_plan_may_serve_from_the_very_first_iteration(tmp_path: Path) -> None:
    trainer = leave_plan(tmp_path)
    driver = make_driver("plan", tmp_path, parallelism=PARALLELISM, serve_from=0)
    driver.begin_iteration(trainer.model)
    assert driver.stage is Stage.SERVING


@isolated
def test_a_mode_and_a_folder_come_from_the_environment(tmp_path: Path) -> None:
    os.environ.update(STALLOC_MODE="profile", STALLOC_DIR=str(tmp_path))
    trainer, _ = twins()
    train(make_driver(warmup=0), trainer, 4)
    assert (tmp_path / "rank0.plan.json").exists()
    assert make_driver("off").stage is Stage.OFF, "what is given wins"


@isolated
def test_streams_are_ordered_where_it_is_asked_for(tmp_path: Path) -> None:
    trainer, _ = twins()
    train(make_driver("profile", tmp_path, warmup=0, streams="ordered"), trainer, 4)
    assert Plan.load(tmp_path / "rank0.plan.json").streams == "ordered"
    os.environ["STALLOC_STREAMS"] = "apart"
    with pytest.raises(ValueError, match=r"STALLOC_STREAMS.*not 'apart'"):
        make_driver()
    os.environ["STALLOC_STREAMS"] = "ordered"
    train(make_driver("profile", tmp_path / "again", warmup=0), trainer, 4)
    assert Plan.load(tmp_path / "again" / "rank0.plan.json").streams == "ordered"


def refused(driver: Driver, trainer: Trainer, message: str, length: int = 32) -> None:
    """The driver says why, once, and the trainer trains as if it were not there."""
    plain, _ = twins()
    train(make_driver("off"), plain, 3, length)
    with pytest.warns(StallocWarning, match=message) as said:
        train(driver, trainer, 3, length)
    assert len(said) == 1
    assert_same(plain, trainer)
    assert driver.stage is Stage.OFF
    assert current_session() is None


@isolated
def test_missing_plan_names_plans_of_other_parallelism(tmp_path: Path) -> None:
    trainer = leave_plan(tmp_path)
    driver = make_driver("plan", tmp_path, parallelism={"tp": 4})
    refused(driver, trainer, r"no .*tp4\.rank0.*there are tp2-seq32\.rank0\.plan\.json")


@isolated
def test_a_plan_for_many_lengths_is_found_by_any(tmp_path: Path) -> None:
    profiled, planned = twins()
    driver = make_driver("profile", tmp_path, parallelism=PARALLELISM, warmup=1, iterations=5)
    for length in (32, 32, 12, 24, 32, 20):
        train(driver, profiled, 1, length=length)
    driver = make_driver("plan", tmp_path, parallelism=PARALLELISM | {"seq": 28})
    for length in (28, 28, 9, 17, 32):
        train(driver, planned, 1, length=length)
    assert driver.stage is Stage.SERVING
    assert stalloc.memory_stats()["misses"] == 0
    document = json.loads(next(tmp_path.glob("*.plan.json")).read_text())
    document["info"]["layout"] = "{"
    damaged = Plan.from_json(json.dumps(document).encode(), "damaged")
    assert "profiled with layout {" in str(rank_mismatch(damaged, rank_info(PARALLELISM)))


@isolated
def test_a_plan_for_one_length_is_for_no_other(tmp_path: Path) -> None:
    trainer = leave_plan(tmp_path)
    driver = make_driver("plan", tmp_path, parallelism=PARALLELISM | {"seq": 28})
    refused(driver, trainer, r"no .*seq28\.rank0.*there are tp2-seq32\.rank0\.plan\.json")


@pytest.mark.parametrize("key", ["rank", "world_size", "layout"])
@isolated
def test_a_plan_of_another_rank_or_job_is_refused(tmp_path: Path, key: str) -> None:
    trainer = leave_plan(tmp_path)
    path = RankFiles(tmp_path, 0, PARALLELISM).plan
    plan = stalloc.Plan.load(path)
    plan.info = {**plan.info, key: "7"}
    plan.save(path, overwrite=True)
    refused(
        make_driver("plan", tmp_path, parallelism=PARALLELISM),
        trainer,
        f"profiled with {key} 7 and this",
    )


@isolated
def test_a_plan_of_another_torch_is_refused(tmp_path: Path) -> None:
    trainer = leave_plan(tmp_path)
    path = RankFiles(tmp_path, 0, PARALLELISM).plan
    plan = stalloc.Plan.load(path)
    plan.info = {**plan.info, "torch": "1.0"}
    plan.save(path, overwrite=True)
    refused(make_driver("plan", tmp_path, parallelism=PARALLELISM), trainer, "under torch 1.0")


@isolated
def test_a_plan_of_another_model_is_refused(tmp_path: Path) -> None:
    leave_plan(tmp_path)
    other = Trainer(Model(width=32))
    with pytest.warns(StallocWarning, match="profiled with the model"):
        train(make_driver("plan", tmp_path, parallelism=PARALLELISM), other, 3)
    assert current_session() is None


@isolated
def test_a_plan_of_smaller_batches_is_refused_at_the_first_forward(tmp_path: Path) -> None:
    trainer = leave_plan(tmp_path)
    driver = make_driver("plan", tmp_path, parallelism=PARALLELISM)
    refused(driver, trainer, "profiled with inputs", length=48)


@isolated
def test_auto_profiles_when_the_plan_does_not_fit(tmp_path: Path) -> None:
    trainer = leave_plan(tmp_path)
    driver = make_driver("auto", tmp_path, parallelism=PARALLELISM, warmup=0)
    with pytest.warns(StallocWarning, match="profiled with inputs"):
        train(driver, trainer, Options.serve_from + 1, length=48)
    train(driver, trainer, 5, length=48)
    assert driver.stage is Stage.SERVING
    assert stalloc.memory_stats()["misses"] == 0


@isolated
def test_auto_profiles_when_the_plan_is_damaged(tmp_path: Path) -> None:
    trainer = leave_plan(tmp_path)
    RankFiles(tmp_path, 0, PARALLELISM).plan.write_text("{}")
    driver = make_driver("auto", tmp_path, parallelism=PARALLELISM, warmup=0, iterations=3)
    train(driver, trainer, 3)
    assert driver.stage is Stage.SERVING
    stalloc.Plan.load(RankFiles(tmp_path, 0, PARALLELISM).plan)


@isolated
def test_a_strict_driver_raises(tmp_path: Path) -> None:
    trainer = leave_plan(tmp_path)
    driver = make_driver("plan", tmp_path, parallelism={"tp": 4}, strict=True)
    with pytest.raises(PlanError, match="tp4"):
        driver.begin_iteration(trainer.model)
    assert driver.stage is Stage.OFF


@isolated
def test_a_folder_that_cannot_be_written_costs_the_plan_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    trainer, _ = twins()
    refused(
        make_driver("profile", tmp_path / "file", warmup=0, iterations=3),
        trainer,
        "Not a directory|exists",
    )


@isolated
def test_an_iteration_that_raised_is_over_when_the_next_begins(tmp_path: Path) -> None:
    trainer, _ = twins()
    driver = make_driver("auto", warmup=0, iterations=4)
    train(driver, trainer, 1)
    with pytest.raises(KeyError), driver.iteration(trainer.model), driver.forward(0):
        raise KeyError
    driver.begin_iteration(trainer.model)
    train(driver, trainer, 5)
    assert driver.completed == 8
    assert driver.stage is Stage.SERVING


@isolated
def test_plans_a_short_run_when_it_ends(tmp_path: Path) -> None:
    trainer, _ = twins()
    driver = make_driver("profile", tmp_path, warmup=0, iterations=10)
    train(driver, trainer, 2)
    driver.finish()
    assert len(stalloc.Plan.load(tmp_path / "rank0.plan.json").decisions) > 0


@isolated
def test_a_forked_child_leaves_profile_and_files_to_its_parent(tmp_path: Path) -> None:
    """Here it ends as a process does, so that what was registered for its end is called."""
    torch.set_num_threads(1)  # OpenMP's do not survive a fork
    trainer, _ = twins()
    driver = make_driver("auto", tmp_path, warmup=0, iterations=3)
    train(driver, trainer, 2)
    with driver.iteration(trainer.model):
        assert _in_child(lambda: driver.stage is Stage.OFF)
        assert driver.stage is Stage.PROFILING
        assert list(tmp_path.iterdir()) == []
    train(driver, trainer, 2)
    written = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(written) == 2
    with driver.iteration(trainer.model), driver.forward(0):
        assert _in_child(lambda: driver.stage is Stage.OFF)
    train(driver, trainer, 2)
    assert driver.stage is Stage.SERVING
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == written
    _core.runtime("cpu").check()


def _in_child(check: Callable[[], bool]) -> bool:
    """True if the check holds in a forked child that trains a little and ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads that a fork leaves behind
        child = os.fork()
    if child == 0:
        code = 1
        try:
            trainer, _ = twins()
            trainer.step()
            code = 0 if check() else 2
        finally:
            atexit._run_exitfuncs()
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


@isolated
def test_does_not_plan_requests_that_only_the_garbage_collector_frees() -> None:
    """It does so at a time of its own: here in each iteration of the profile, and not after."""
    gc.set_threshold(1, 1, 1)
    driver = make_driver("auto", warmup=0, iterations=3)
    model = torch.nn.Linear(8, 8)
    for i in range(9):
        assert gc.isenabled() != (driver.stage is Stage.PROFILING)
        with driver.iteration(model):
            with driver.forward(0):
                cycle: list[Any] = [torch.empty(3000)]
                cycle.append(cycle)
                del cycle
                loss = model(torch.ones(4, 8)).sum()
            with driver.backward(0):
                loss.backward()
        if i == 3:
            gc.set_threshold(10**6)
    stats = stalloc.memory_stats()
    assert stats["hits"] > 0
    assert stats["misses"] == stats["conflicts"] == 0
    assert stats["fallback_requests"] >= stats["iterations"]


@isolated
def test_the_garbage_collector_is_left_as_it_was() -> None:
    trainer, _ = twins()
    gc.disable()
    train(make_driver("auto", warmup=0), trainer, 5)
    assert not gc.isenabled()
    gc.enable()
    stalloc.disable()
    driver = make_driver("auto", warmup=0)
    driver.begin_iteration(trainer.model)
    assert not gc.isenabled()
    with pytest.warns(StallocWarning, match="graphs"):
        driver.stand_aside("graphs")
    assert gc.isenabled()


@isolated
def test_a_run_that_is_too_short_says_so(tmp_path: Path) -> None:
    trainer, _ = twins()
    driver = make_driver("profile", tmp_path, warmup=0)
    train(driver, trainer, 1)
    with pytest.warns(StallocWarning, match="after 1 of 4 profiled iterations"):
        driver.finish()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("iterations", [1, 4])
@isolated
def test_standing_aside_is_said_once_and_undoes_everything(iterations: int) -> None:
    trainer, _ = twins()
    driver = make_driver("auto", warmup=0)
    train(driver, trainer, iterations)
    assert driver.active
    with pytest.warns(StallocWarning, match="graphs") as said:
        driver.stand_aside("graphs")
    assert len(said) == 1
    driver.stand_aside("graphs")
    assert not driver.active
    with stalloc.profile(trainer.model):
        pass  # nothing is being profiled or in force


@isolated
def test_evaluation_and_layers_of_all_chunks(tmp_path: Path) -> None:
    """A model in chunks is one root whose layers are all known."""
    first, second = torch.nn.Linear(8, 8), torch.nn.Sequential(torch.nn.Linear(8, 8))
    driver = make_driver("profile", tmp_path, warmup=0, iterations=2)
    for _ in range(2):
        with driver.iteration([first, second]):
            microbatch_in_chunks(driver, first, second)
            with driver.evaluation(), torch.no_grad():
                first(torch.ones(3, 8))
    trace = stalloc.Trace.load(tmp_path / "rank0.trace.json")
    assert {"0", "1", "1.0"} <= set(trace.layers)
    phases = trace.profile().phases
    found = set(
        zip(phases.kind.tolist(), phases.microbatch.tolist(), phases.chunk.tolist(), strict=True)
    )
    assert {(1, 0, 0), (1, 0, 1), (2, 0, 1)} <= found
    assert 4 in phases.kind


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "fast"},
        {"mode": "plan"},
        {"mode": "profile"},
        {"warmup": -1},
        {"serve_from": -1},
        {"iterations": 1},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"mode|iterations"):
        make_driver(**options)


@pytest.mark.parametrize("parallelism", [{"TP": 2}, {"tp": -1}, {"../up": 2}])
def test_refuses_parallelism_that_cannot_name_a_file(
    parallelism: dict[str, int], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="parallelism"):
        RankFiles(tmp_path, 0, parallelism)
