"""Failures on a GPU end with a clear error or a clean exit, in both modes."""

from __future__ import annotations

import subprocess

import pytest
from alone import run_alone

MODES = ["native", "compat"]

# A trainer under a plan, with a tensor of the pool in hand that another stream uses.
PLANNED = """
import ctypes, gc, sys, threading, torch, stalloc, standin
if sys.argv[1] == "compat":
    stalloc.install_compat()
from training_cuda import Trainer
trainer = Trainer(rows=32)
stalloc.enable(trainer.plan(), model=trainer.model)
for _ in range(4):
    trainer.step()

library = ctypes.CDLL("libcudart.so.13")

def make_stream():
    handle = ctypes.c_void_p()
    assert library.cudaStreamCreateWithFlags(ctypes.byref(handle), 1) == 0
    return torch.cuda.ExternalStream(handle.value)

def hold(stream):
    x = torch.empty(trainer.rows, trainer.width, device="cuda")
    y = trainer.model(x).detach()
    standin.use(stream.cuda_stream, y.data_ptr(), y.nbytes, 1)
    y.record_stream(stream)
    return y
"""


def _run(mode: str, body: str) -> subprocess.CompletedProcess[str]:
    return run_alone(PLANNED + body, mode)


def _assert_clean(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 0, result.stderr
    assert "Error" not in result.stderr
    assert "terminate" not in result.stderr


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_that_is_destroyed_holds_its_blocks_until_the_device_is_idle(mode: str) -> None:
    """Destroyed before a block is freed, no event can be recorded; after it, one is left."""
    result = _run(
        mode,
        """
def destroy(stream):
    assert library.cudaStreamDestroy(ctypes.c_void_p(stream.cuda_stream)) == 0

standin.set_manual(True)
streams = [make_stream() for _ in range(2)]
y = hold(streams[0])
destroy(streams[0])
del y
stalloc.step()
y = hold(streams[1])
del y
destroy(streams[1])
standin.set_manual(False)
for _ in range(6):
    trainer.step()
    t = trainer.model(torch.empty(trainer.rows, trainer.width, device="cuda")).detach()
    standin.use(0, t.data_ptr(), t.nbytes, 2)
    del t
    stalloc.step()
    standin.drain_all()
assert standin.hazards() == 0, standin.complaint()
before = stalloc.memory_stats()["hits"]
trainer.step()
stats = stalloc.memory_stats()
assert stats["hits"] - before == stats["planned"], "the block has come back"
stalloc.disable()
""",
    )
    _assert_clean(result)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("error", [700, 709])
def test_after_a_device_error_there_are_errors_and_a_clean_end(mode: str, error: int) -> None:
    """709: its context was destroyed, as a reset of the device does."""
    result = _run(
        mode,
        f"""
y = hold(make_stream())
standin.lose_device({error})
del y
for attempt in (
    lambda: torch.empty(1 << 33, device="cuda"),
    lambda: stalloc.release_pool(),
    lambda: stalloc.enable(stalloc.session.current_session().plan, model=trainer.model),
    lambda: stalloc.empty_cache("cuda:0"),
    lambda: torch.cuda.synchronize(),
):
    try:
        attempt()
    except (RuntimeError, stalloc.StallocError) as e:
        print(type(e).__name__)
stalloc.disable()
""",
    )
    assert result.returncode == 0, result.stderr
    assert "AcceleratorError" in result.stdout
    assert "terminate" not in result.stderr


@pytest.mark.parametrize("mode", MODES)
def test_events_that_fail_cost_memory_and_no_value(mode: str) -> None:
    result = _run(
        mode,
        """
stream = make_stream()
for call in ("cudaEventRecord", "cudaEventQuery", "cudaEventCreateWithFlags"):
    standin.set_manual(True)
    y = hold(stream)
    address = y.data_ptr()
    standin.fail(call, 1, 719, 1)
    del y
    t = trainer.model(torch.empty(trainer.rows, trainer.width, device="cuda")).detach()
    # A kept event serves where none can be made: then the block is handed back.
    assert t.data_ptr() != address or call == "cudaEventCreateWithFlags", call
    del t
    stalloc.step()  # waits for the device, since nothing else can tell any more
    standin.fail(call, 0, 0)
    standin.set_manual(False)
    standin.drain_all()
    for _ in range(4):
        trainer.step()
before = stalloc.memory_stats()["hits"]
trainer.step()
stats = stalloc.memory_stats()
assert stats["hits"] - before == stats["planned"]
assert standin.hazards() == 0, standin.complaint()
""",
    )
    _assert_clean(result)


@pytest.mark.parametrize("mode", MODES)
def test_the_interpreter_ends_with_live_tensors(mode: str) -> None:
    result = _run(
        mode,
        """
import builtins
builtins.held = hold(make_stream())
""",
    )
    _assert_clean(result)


@pytest.mark.parametrize("mode", MODES)
def test_a_forked_child_is_refused_and_ends(mode: str) -> None:
    result = _run(
        mode,
        """
import os
y = hold(make_stream())
child = os.fork()
if child == 0:
    try:
        torch.empty(1000, device="cuda")
    except RuntimeError as e:
        assert "fork" in str(e), e
        del y
        stalloc.disable()
        gc.collect()
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
del y
standin.drain_all()
trainer.step()
assert standin.misuses() == 0, standin.complaint()
""",
    )
    _assert_clean(result)


@pytest.mark.parametrize("mode", MODES)
def test_two_devices_that_train_at_a_time(mode: str) -> None:
    """One of them under a plan; each has threads of its own for backward."""
    result = _run(
        mode,
        """
other = Trainer("cuda:1", rows=32)
failures = []

def train_other():
    try:
        for _ in range(10):
            for _ in range(2):
                x = torch.empty(32, other.width, device=other.device)
                other.model(x).square().mean().backward()
            other.optimizer.step()
            other.optimizer.zero_grad()
    except BaseException as e:
        failures.append(e)

thread = threading.Thread(target=train_other)
thread.start()
thread.join()
assert not failures, failures
before = stalloc.memory_stats("cuda:0")
trainer.step()
stats = stalloc.memory_stats("cuda:0")
assert stats["hits"] - before["hits"] == stats["planned"]
assert torch.cuda.memory_allocated(1) > 0
z = trainer.model(torch.empty(32, trainer.width, device="cuda:0")).to("cuda:1")
del z
assert standin.misuses() == 0, standin.complaint()
""",
    )
    _assert_clean(result)
