"""The recording of iterations while torch serves."""

from __future__ import annotations

import torch

from stalloc._auto.forward import Forward
from stalloc._auto.settings import AutoOptions
from stalloc.errors import StallocError
from stalloc.profiling import profile
from stalloc.trace import Trace


class Recording:
    """Records from now on.

    Args:
        root: The model; None: the first module that is called.
        device: The device.
        options: The number of iterations.
        forward: The call that begins an iteration now, if any.

    Raises:
        StallocError: Something else is on.
    """

    def __init__(
        self,
        root: torch.nn.Module | None,
        device: torch.device,
        options: AutoOptions,
        forward: Forward | None = None,
    ) -> None:
        self._device = device
        self._profile = profile(
            root, device=device, layers=False, iterations=options.iterations, exact=False
        )
        if forward is None:
            self._profile._hooks.follow_any_thread()
        self._profile.__enter__()
        if forward is not None:
            forward.tell(self._profile._hooks)

    @property
    def complete(self) -> bool:
        """True if all iterations are recorded."""
        return self._profile.complete

    def stop(self) -> None:
        """Ends it. May be repeated."""
        self._profile.stop()

    def finish(self) -> Trace:
        """Ends the recording, and returns it.

        Raises:
            StallocError: Nothing was recorded.
        """
        self.stop()
        trace = self._profile.trace
        if len(trace.requests) == 0:
            raise StallocError(
                f"the program asked for no memory on {self._device}: name the device that it "
                "trains on"
            )
        return trace
