"""torch_memory_saver's real library, and a plan's pool that takes turns with its memory."""

from __future__ import annotations

from alone import run_alone

# Its library ends a process that frees its memory, also without stalloc: so the script ends first.
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
