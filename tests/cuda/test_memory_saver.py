"""torch_memory_saver's real library, and a plan's pool that takes turns with its memory."""

from __future__ import annotations

import contextlib

import pytest
from alone import CONTENTS, run_alone
from torch_memory_saver import configure_subprocess

# In mode "torch" its library ends a process that frees its memory outside a region, with a message
# that only a region may: so the scripts end first.
_SCRIPT = """
import os
import standin, torch
from test_engines import MIB, plan_in_force
from torch_memory_saver import torch_memory_saver
from training_cuda import Trainer

import stalloc

torch_memory_saver.hook_mode = "torch"
trainer = Trainer(rows=64)
plan = plan_in_force(trainer)
with torch_memory_saver.region(tag="kv_cache"):
    cache = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
address = cache.data_ptr()
torch_memory_saver.pause()
torch.cuda.empty_cache()
used = standin.used()
for _ in range(20):
    with stalloc.phase("rollout", engine=torch_memory_saver):
        assert cache.data_ptr() == address
        cache.add_(1)
        assert standin.used() <= used - plan.pool + cache.nbytes
    assert standin.used() == used
    with stalloc.phase("train"):
        trainer.step()
    torch.cuda.empty_cache()
peak = stalloc.phase_stats()["rollout"]["most_used"]
assert used - plan.pool + cache.nbytes - (4 << 20) <= peak <= used - plan.pool + cache.nbytes
before = stalloc.memory_stats()
trainer.step()
after = stalloc.memory_stats()
assert after["hits"] - before["hits"] == after["planned"]
assert (standin.hazards(), standin.misuses()) == (0, 0), standin.complaint()
print("done", flush=True)
os._exit(0)
"""


def test_its_memory_takes_turns_with_the_pool() -> None:
    done = run_alone(_SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["done"]


_VALUES_SCRIPT = """
import os, sys
import standin, torch
from computing import Computing
from training_values import Training, train
from torch_memory_saver import torch_memory_saver

import stalloc

torch_memory_saver.hook_mode = sys.argv[1]
MIB = 1 << 20


def cache(value, **backup):
    with torch_memory_saver.region(tag=f"cache{value}", **backup):
        return torch.full((8 * MIB,), value, dtype=torch.uint8, device="cuda")


with Computing():
    training = Training()
    with stalloc.profile(training.model) as profile:
        for _ in range(3):
            training.step()
    stalloc.enable(profile.plan(), model=training.model)
    lost, on_cpu, on_disk = (
        cache(1), cache(2, enable_cpu_backup=True), cache(3, enable_disk_backup=True)
    )
    torch_memory_saver.pause()  # a phase "rollout" wakes it first
    for turn in range(20):
        with stalloc.phase("rollout", engine=torch_memory_saver):
            assert (lost == 255).all() and (on_cpu == 2 + turn).all() and (on_disk == 3).all()
            logits = training.model(torch.arange(32, device="cuda")[None])
            assert logits.isfinite().all()
            lost.fill_(1)
            on_cpu.add_(1)
            del logits
        with stalloc.phase("train"):
            training.step()
    found = training.results()
    before = stalloc.memory_stats()
    training.step()
    after = stalloc.memory_stats()
    assert after["hits"] - before["hits"] == after["planned"]
    stalloc.disable()
    expected = train(23, between=lambda model: model(torch.arange(32, device="cuda")[None]))
    assert found == expected, "weights have changed over switches"
assert (standin.hazards(), standin.misuses()) == (0, 0), standin.complaint()
print("done", flush=True)
if sys.argv[1] == "torch":
    os._exit(0)
"""


@pytest.mark.parametrize("mode", ["preload", "torch"])
def test_its_caches_hold_what_they_are_said_to_and_weights_stay(mode: str) -> None:
    with configure_subprocess() if mode == "preload" else contextlib.nullcontext():
        done = run_alone(_VALUES_SCRIPT, mode, environment=CONTENTS | {"STALLOC_CACHE": "0"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "done"
