"""megatron-core itself, trained with and without stalloc: the results are the same to the bit."""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from criteria import assert_tight, static_hits
from isolation import run_isolated
from megatron_cpu import on_cpu
from megatron_training import Result, Settings, train
from packages import folders

import stalloc
import stalloc.megatron
from stalloc._frameworks import megatron_config
from stalloc.driver import Stage
from stalloc.tables import PHASE_KINDS

PACKAGES = ["stable", "newest"]
MODELS = {
    "dense": Settings(evaluate=True),
    "recomputed": Settings(recompute=True),
    "distributed optimizer": Settings(distributed_optimizer=True),
    "experts": Settings(experts=4, profiled=5),
    "experts, recomputed": Settings(experts=4, recompute=True, profiled=5),
}


def run(settings: Settings) -> Result:
    result: Result = run_isolated(train, settings)
    return result


# The oldest version lacks recomputation and the distributed optimizer on the CPU.
RUNS = [
    *((packages, model) for packages in PACKAGES for model in MODELS),
    ("oldest", "dense"),
    ("oldest", "experts"),
]


@pytest.mark.parametrize(("packages", "model"), RUNS)
def test_one_run_profiles_plans_and_is_served(packages: str, model: str) -> None:
    settings = replace(MODELS[model], packages=packages, iterations=15)
    plain = run(settings)
    planned = run(replace(settings, mode="auto"))
    plain.assert_same(planned)
    assert planned.warnings == []
    profiled = settings.warmup + settings.profiled
    assert planned.stages.count("serving") == settings.iterations - profiled
    stats = planned.stats
    # The last iteration's end is seen when the next one begins.
    assert stats["iterations"] == settings.iterations - profiled - 1
    assert static_hits(stats) >= 0.99
    assert (stats["dynamic_requests"] > 0) == (settings.experts > 0)


def test_megatrons_own_loop_is_followed() -> None:
    """Its iterations end with `train_step`; it evaluates, reports memory and empties the cache."""
    settings = Settings(packages="newest", own_loop=True, evaluate=True, iterations=15)
    plain = run(settings)
    planned = run(replace(settings, mode="auto"))
    plain.assert_same(planned)
    assert planned.warnings == []
    assert planned.stages == ["waiting"] * 2 + ["profiling"] * 2 + ["serving"] * 11
    assert planned.stats["iterations"] == 10
    assert static_hits(planned.stats) >= 0.99
    assert planned.stats["idle_requests"] > 0, "the evaluations'"


@pytest.mark.parametrize("packages", PACKAGES)
def test_a_profile_of_one_run_serves_another(packages: str, tmp_path: Path) -> None:
    # torch.jit, which some of Megatron's functions are compiled by, watches their first runs.
    settings = Settings(packages=packages, folder=str(tmp_path), serve_from=4)
    plain = run(settings)
    profiled = run(replace(settings, mode="profile"))
    planned = run(replace(settings, mode="plan"))
    plain.assert_same(profiled)
    plain.assert_same(planned)
    name = "seq32-mbs2-mb4.rank0"
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.trace.json",
        f"{name}.plan.json",
    }
    assert planned.stages == ["waiting"] * 4 + ["serving"] * (settings.iterations - 4)
    assert static_hits(planned.stats) >= 0.99
    version = {"stable": "0.16.1", "newest": "0.19.2"}[packages]
    plan = stalloc.Plan.load(tmp_path / f"{name}.plan.json")
    assert_tight(plan)
    assert plan.info["framework"] == f"megatron-core {version}"
    microbatches = {m for k, m in zip(plan.phases.kind, plan.phases.microbatch, strict=True) if k}
    assert microbatches == {-1, 0, 1, 2, 3}


def test_another_batch_has_no_plan(tmp_path: Path) -> None:
    settings = Settings(folder=str(tmp_path), iterations=6)
    run(replace(settings, mode="profile"))
    settings = replace(settings, microbatches=3)
    planned = run(replace(settings, mode="plan"))
    run(settings).assert_same(planned)
    assert len(planned.warnings) == 1
    assert "mb4.rank0.plan.json, for another parallelism" in planned.warnings[0]


@pytest.mark.parametrize("packages", PACKAGES)
def test_experts_have_a_dynamic_span_from_dispatch_to_combine(
    packages: str, tmp_path: Path
) -> None:
    settings = Settings(
        packages=packages, experts=4, mode="profile", folder=str(tmp_path), iterations=6
    )
    run(settings)
    trace = stalloc.Trace.load(next(tmp_path.glob("*.trace.json")))
    requests = trace.requests
    inside = requests.layer_begin == trace.layers.index("megatron.moe")
    assert inside.any()
    assert requests.dynamic[inside].all()
    kinds = set(trace.phases.kind[requests.phase_begin[inside]].tolist())
    assert {PHASE_KINDS.index("forward"), PHASE_KINDS.index("backward")} <= kinds
    routers = [i for i, name in enumerate(trace.layers) if name.endswith("mlp.router")]
    in_router = np.isin(requests.layer_begin, routers)
    assert in_router.any()
    assert not requests.dynamic[in_router].any()


@pytest.mark.parametrize("packages", PACKAGES)
def test_uninstall_leaves_megatron_as_it_was(packages: str) -> None:
    run_isolated(_install_and_uninstall, packages)


def _install_and_uninstall(packages: str) -> None:
    def functions() -> dict[str, Any]:
        found = {}
        for name in (
            "megatron.core.pipeline_parallel.schedules",
            "megatron.core.optimizer.optimizer",
            "megatron.core.transformer.moe.token_dispatcher",
        ):
            module = importlib.import_module(name)
            for key, value in vars(module).items():
                found[f"{name}.{key}"] = value
                if isinstance(value, type):
                    found |= {f"{name}.{key}.{k}": v for k, v in vars(value).items()}
        return {name: value for name, value in found.items() if callable(value)}

    with on_cpu(folders(packages)):
        before = functions()
        driver = stalloc.megatron.install("auto")
        assert stalloc.megatron.install("off") is driver, "twice is once"
        changed = {name for name, value in functions().items() if before[name] is not value}
        assert {name.rpartition(".")[2] for name in changed} >= {
            "forward_step",
            "backward_step",
            "forward_backward_no_pipelining",
            "step",
            "token_dispatch",
            "token_combine",
        }
        stalloc.megatron.uninstall()
        stalloc.megatron.uninstall()
        assert functions() == before
        assert stalloc.megatron.install("off").stage is Stage.OFF
        assert functions() == before, "off is off"


CONFIGURATIONS = [
    ({"overlap_moe_expert_parallel_comm": True}, "combined 1F1B"),
    ({"cuda_graph_impl": "full_iteration"}, "whole iterations"),
    ({"enable_cuda_graph": True, "cuda_graph_scope": "full_iteration"}, "whole iterations"),
    ({"cuda_graph_impl": "local", "cuda_graph_scope": ["full_iteration"]}, "whole iterations"),
    ({"cuda_graph_impl": "local", "cuda_graph_scope": ["attn"]}, None),
    ({"cuda_graph_impl": "none", "cuda_graph_scope": "full_iteration"}, None),
    ({}, None),
]


@pytest.mark.parametrize(("config", "reason"), CONFIGURATIONS)
def test_recognises_unplannable_features_by_configuration(
    config: dict[str, Any], reason: str | None
) -> None:
    said = megatron_config.unplannable(SimpleNamespace(**config))
    assert said is None if reason is None else reason in (said or "")


def test_graphs_of_whole_iterations_are_said_once_and_trained_without() -> None:
    settings = Settings(packages="newest", own_loop=True, graphs=True, iterations=4)
    plain = run(settings)
    planned = run(replace(settings, mode="auto"))
    plain.assert_same(planned)
    assert planned.stages == ["off"] * 4
    assert len(planned.warnings) == 1
    assert "whole iterations" in planned.warnings[0]


def test_combined_1f1b_is_said_once_and_trained_without() -> None:
    run_isolated(_combined)


def _combined() -> None:
    with on_cpu(folders("stable")):
        driver = stalloc.megatron.install("auto")
        schedules = importlib.import_module("megatron.core.pipeline_parallel.schedules")
        model = torch.nn.Linear(1, 1)
        model.config = SimpleNamespace(overlap_moe_expert_parallel_comm=True)

        def train() -> None:
            # The schedule itself fails, which does not matter here.
            with contextlib.suppress(Exception):
                schedules.forward_backward_no_pipelining(model=[model])

        with pytest.warns(stalloc.StallocWarning, match="combined 1F1B") as said:
            train()
        assert len(said) == 1
        train()
        assert driver.stage is Stage.OFF
