"""Runs tests of torch, each in a process of its own, forked from one that has imported torch.

A test then costs its own time and not the seconds of the import. The driver sends one task (a JSON
object) a line and gets one answer a line. A test's process leads a session of its own, so that
whatever a test leaves behind ends with it. It opens the GPU itself: a process that has used the GPU
cannot be forked.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

# Modules that torch's tests import.
PRELOADED = (
    "torch._dynamo.test_case",
    "torch._inductor.compile_fx",
    "torch.cuda._memory_viz",
    "torch.distributed.fsdp",
    "torch.testing._internal.common_cuda",
    "torch.testing._internal.common_device_type",
    "torch.testing._internal.common_fsdp",
    "torch.testing._internal.common_optimizers",
    "torch.testing._internal.autocast_test_lists",
    "stalloc",
    "conformance.trial",
)
# With it, torch.cuda.is_available() asks NVML, which does not open the GPU.
NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


def _preload() -> None:
    """Imports the modules. Those that look at the GPU get answers without opening it."""
    os.environ[NVML_CHECK] = "1"
    # torch's helpers ask numba for a GPU, which opens it.
    sys.modules["numba"] = None  # type: ignore[assignment]
    import torch
    from torch._inductor import config
    from torch.utils import _triton

    capability = _elsewhere(torch.cuda.get_device_capability)
    with (
        mock.patch.object(torch.cuda, "get_device_capability", return_value=capability),
        config.patch(triton_disable_device_detection=True),
    ):
        for module in PRELOADED:
            importlib.import_module(module)
    _triton.has_triton.cache_clear()
    del os.environ[NVML_CHECK]
    opened: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    assert not opened, "a test's process could not open the GPU"


def _elsewhere(question: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    """Asks in another process."""
    ours, theirs = os.pipe()
    if os.fork() == 0:
        os.write(theirs, bytes(question()))
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as answer:
        major, minor = answer.read()
    os.wait()
    return major, minor


def _read(pipe: int, seconds: float) -> bytes | None:
    """A line from a process, nothing if it ended without one, or None if neither came in time.

    The end of the line counts, since a process that the test has left may hold the pipe open.
    """
    end, read = time.monotonic() + seconds, bytearray()
    while (left := end - time.monotonic()) > 0:
        if not select.select([pipe], [], [], left)[0]:
            break
        part = os.read(pipe, 1 << 16)
        read += part
        if not part or part.endswith(b"\n"):
            return bytes(read)
    return None


def _perform_here(task: dict[str, Any], pipe: int) -> None:
    from conformance import trial

    os.setsid()
    log = os.open(task["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    answer = (json.dumps(trial.perform(task)) + "\n").encode()
    sys.stdout.flush()
    sys.stderr.flush()
    # At once: torch's threads may abort a process that ends in the usual way, with any allocator.
    os.write(pipe, answer)
    os._exit(0)


def perform(task: dict[str, Any]) -> dict[str, Any]:
    """The answer to a task, from a process of its own, or the way in which that process ended."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ours)
            _perform_here(task, theirs)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)
    os.close(theirs)
    answer = _read(ours, task["timeout"])
    os.close(ours)
    if answer is None:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if answer is None:
        return {"outcome": "timeout", "detail": f"not done after {task['timeout']} seconds"}
    if answer:
        return dict(json.loads(answer))
    last = Path(task["log"]).read_text(errors="replace").strip().splitlines()[-1:]
    return {"outcome": "crashed", "detail": " ".join([f"exit status {status}", *last])}


def main() -> None:
    """Serves tasks until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _preload()
    for line in sys.stdin:
        print(json.dumps(perform(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
