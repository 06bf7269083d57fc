"""The methods that the adapters of reinforcement learning wrap, in the packages' own sources.

The packages need Ray and an engine to be imported, so their workers are read, not run:
tests/python/test_turns.py runs stand-ins with these methods.
"""

from __future__ import annotations

import ast
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
from packages import folders


def _source(package: str, module: str) -> ast.Module:
    spec = PathFinder.find_spec(package, [*folders("trainers"), *sys.path])
    assert spec is not None, f"{package} is not installed: make test-frameworks"
    assert spec.submodule_search_locations is not None
    return ast.parse((Path(spec.submodule_search_locations[0]) / module).read_text())


def _methods(source: ast.Module, name: str) -> dict[str, list[str]]:
    """The arguments of a class's methods, those of its bases in the module included."""
    classes = {node.name: node for node in source.body if isinstance(node, ast.ClassDef)}
    found: dict[str, list[str]] = {}
    for base in classes[name].bases:
        if isinstance(base, ast.Name) and base.id in classes:
            found |= _methods(source, base.id)
    for node in classes[name].body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = [argument.arg for argument in node.args.args]
    return found


@pytest.mark.parametrize(
    ("package", "module", "worker", "methods"),
    [
        (
            "verl",
            "workers/engine_workers.py",
            "ActorRolloutRefWorker",
            {"update_weights", "compute_log_prob", "compute_ref_log_prob", "update_actor"},
        ),
        (
            "openrlhf",
            "trainer/ray/ppo_actor.py",
            "PolicyModelActor",
            {"offload_states", "reload_states"},
        ),
        (
            "skyrl",
            "backends/skyrl_train/workers/worker.py",
            "PolicyWorkerBase",
            {"offload_to_cpu", "backload_to_gpu"},
        ),
    ],
)
def test_the_package_has_the_methods(
    package: str, module: str, worker: str, methods: set[str]
) -> None:
    assert methods <= _methods(_source(package, module), worker).keys()


def test_verls_worker_tells_where_its_engine_is() -> None:
    source = _source("verl", "workers/engine_workers.py")
    found = _methods(source, "ActorRolloutRefWorker")
    assert "trainer_mode" not in found, "the adapter takes it for an older one"
    assert found["update_weights"] == ["self", "global_steps", "mode"]
    update = next(
        node
        for node in ast.walk(source)
        if isinstance(node, ast.AsyncFunctionDef) and node.name == "update_weights"
    )
    assert "self.config.rollout.checkpoint_engine.backend" in ast.unparse(update)
