"""A plugin for pytest, by which torch_memory_saver's tests run on the computing pretended GPU.

Each of its tests runs a function in a process of its own. There the function runs on a GPU that
computes. With STALLOC_BESIDE=plan it runs between two steps of a trainer whose plan is in force,
with STALLOC_BESIDE=large beside a large one, with STALLOC_BESIDE=rollout in a phase between them,
in which the plan's pool is away. The test
fails if the step after it is not served as planned, or if the stand-in finds a hazard or a misuse.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

BESIDE = "STALLOC_BESIDE"


def run_computing(function: Callable[..., None], **arguments: Any) -> None:
    """Runs a function of a test, in the test's process."""
    import standin
    from computing import Computing

    with Computing() as computing:
        if os.environ.get(BESIDE):
            _run_beside(functools.partial(function, **arguments), os.environ[BESIDE])
        else:
            function(**arguments)
    errors = standin.hazards(), standin.misuses()
    assert errors == (0, 0), f"{errors} hazards and misuses: {standin.complaint()}"
    print(f"{computing.operators} operators were computed", flush=True)


def _run_beside(function: Callable[[], None], state: str) -> None:
    import torch
    from test_engines import plan_in_force
    from training_cuda import Trainer

    import stalloc
    from stalloc import _core

    # Tests measure what they take of the device. Between iterations stalloc gives the idle pool
    # back when others take memory: a small one hides nothing from them.
    trainer = Trainer(rows=16 if state == "plan" else 512)
    plan_in_force(trainer)
    before = stalloc.memory_stats("cuda:0")
    assert before["hits"] > 0, "the plan is not in force"
    with stalloc.phase("rollout") if state == "rollout" else contextlib.nullcontext():
        function()
        torch.cuda.set_device(0)
    trainer.step()  # the test's requests may have come into the middle of an iteration
    before = stalloc.memory_stats("cuda:0")
    trainer.step()
    after = stalloc.memory_stats("cuda:0")
    hits = after["hits"] - before["hits"]
    assert hits == after["planned"], f"{hits} of {after['planned']} planned requests are served"
    for name in _core.runtimes():
        _core.runtime(name).check()
    print(f"{hits} planned requests were served after the test", flush=True)


@pytest.fixture(autouse=True)
def _computing(monkeypatch: pytest.MonkeyPatch) -> None:
    tests: Any = sys.modules.get("test_examples")
    if tests is None:
        return
    run = tests._run_in_subprocess

    def run_in_subprocess(function: Callable[..., None], fn_kwargs: dict[str, Any]) -> None:
        run(functools.partial(run_computing, function), fn_kwargs)

    monkeypatch.setattr(tests, "_run_in_subprocess", run_in_subprocess)
