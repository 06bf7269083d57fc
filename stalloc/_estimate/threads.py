"""Threads of the script, such as those with which Transformers loads weights.

torch's modes are a thread's own, so each thread that the script starts enters them for itself. An
error that a thread meets after the recording has ended is not shown: the GPU is gone by then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stalloc._frameworks.patches import Patches
from stalloc._script import Enough


class Fakes(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Torch's mode for tensors without memory, which threads may use at the same time."""

    def __init__(self) -> None:
        self._inside = threading.local()
        super().__init__(allow_non_fake_inputs=True)

    @property
    def in_kernel_invocation(self) -> bool:
        """True while this thread is in a kernel: its tensors are on the meta device then."""
        return getattr(self._inside, "kernel", False)

    @in_kernel_invocation.setter
    def in_kernel_invocation(self, value: bool) -> None:
        self._inside.kernel = value


def patch(patches: Patches, modes: Callable[[], AbstractContextManager[object]]) -> None:
    """Makes each thread of the script enter the modes that the script's own has entered.

    Args:
        patches: Where the change is noted.
        modes: Makes the modes of one thread.
    """
    start = threading.Thread.start
    over = threading.Event()
    patches.then(over.set)

    def started(thread: threading.Thread) -> None:
        run = thread.run

        def run_inside() -> None:
            del thread.run  # the class's own again
            try:
                with ExitStack() as inside:
                    if not over.is_set():
                        inside.enter_context(torch.autograd.set_multithreading_enabled(False))
                        inside.enter_context(modes())
                    run()
            except Enough:
                pass
            except BaseException:
                if not over.is_set():
                    raise

        thread.run = run_inside  # type: ignore[method-assign]
        start(thread)

    patches.replace(threading.Thread, "start", started)
