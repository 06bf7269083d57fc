"""Several GPUs in one process, and the one that is not to be touched."""

from __future__ import annotations

import standin
import torch
from alone import run_alone
from training_cuda import Trainer

import stalloc


def _run(body: str) -> None:
    result = run_alone(body)
    assert result.returncode == 0, result.stderr


def test_another_devices_default_stream_is_not_the_blocks_own() -> None:
    """Both have the handle 0. No event tells when the other is done: all devices are waited for."""
    trainer = Trainer()
    stalloc.enable(trainer.plan(), model=trainer.model)
    for _ in range(3):
        trainer.step()
    x = torch.empty(trainer.rows, trainer.width, device="cuda")
    standin.set_manual(True)
    y = trainer.model(x).detach()
    address, size = y.data_ptr(), y.nbytes
    with torch.cuda.device(1):
        standin.use(0, address, size, 1)
    y.record_stream(torch.cuda.default_stream(1))
    waits = standin.host_waits()
    del x, y
    for turn in range(2):
        x = torch.empty(trainer.rows, trainer.width, device="cuda")
        y = trainer.model(x).detach()
        assert (y.data_ptr() == address) == (turn == 1)
        standin.use(0, y.data_ptr(), size, 2)
        del x, y
        stalloc.step()
    assert standin.host_waits() > waits


def test_other_threads_run_while_the_end_of_an_iteration_waits_for_devices() -> None:
    """The GIL is not held: the work that is waited for may need what another thread submits."""
    _run("""
import threading, torch, stalloc, standin
from training_cuda import Trainer
trainer = Trainer()
stalloc.enable(trainer.plan(), model=trainer.model)
for _ in range(3):
    trainer.step()
x = torch.empty(trainer.rows, trainer.width, device="cuda")
standin.set_manual(True)
y = trainer.model(x).detach()
with torch.cuda.device(1):
    standin.use(0, y.data_ptr(), y.nbytes, 1)
y.record_stream(torch.cuda.default_stream(1))
del x, y
standin.hold(True)
went_on = []

def work():
    while not standin.held():
        pass
    went_on.append(True)
    standin.hold(False)

thread = threading.Thread(target=work, daemon=True)
thread.start()
stalloc.step()
thread.join()
assert went_on
""")


def test_a_thread_without_a_device_leaves_the_first_one_alone() -> None:
    """A rank whose GPU is the second holds no memory on the first, whoever frees its tensors."""
    _run("""
import threading, torch, stalloc, standin
from training_cuda import Trainer
torch.cuda.set_device(1)
trainer = Trainer("cuda:1", rows=32)
side = torch.cuda.Stream()
stalloc.enable(trainer.plan(), model=trainer.model, keep_addresses=True)
for _ in range(4):
    trainer.step()
held = [trainer.model(torch.empty(32, trainer.width, device="cuda")).detach() for _ in range(2)]
for y in held:
    y.record_stream(side)
del y

def work():
    held.clear()
    stalloc.step()
    stalloc.memory_stats("cuda:1")
    stalloc.release_pool()
    stalloc.acquire_pool()
    stalloc.disable()

thread = threading.Thread(target=work)
thread.start()
thread.join()
assert standin.has_context(1)
assert not standin.has_context(0)
""")


def test_a_driver_without_the_calls_leaves_no_error() -> None:
    _run("""
import torch, standin
torch.cuda.init()
standin.fail("cudaGetDriverEntryPoint", 1, 35, -1)
import stalloc
from training_cuda import Trainer
trainer = Trainer(rows=32)
plan = trainer.plan()
assert standin.last_error() == 0
try:
    stalloc.enable(plan, model=trainer.model, keep_addresses=True)
except stalloc.StallocError as e:
    assert "virtual memory" in str(e), e
else:
    raise AssertionError("such a pool cannot be had")
stalloc.enable(plan, model=trainer.model)
for _ in range(4):
    trainer.step()
assert stalloc.memory_stats()["hits"] > 0
""")
