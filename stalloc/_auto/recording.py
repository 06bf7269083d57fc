"""The recording of iterations while torch serves, and the planning of them."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch

from stalloc._auto.background import Background
from stalloc._auto.forward import Forward
from stalloc._auto.proposal import Proposal, propose
from stalloc._auto.settings import AutoOptions
from stalloc.errors import StallocError
from stalloc.profiling import profile
from stalloc.progress import Progress

Keep = Callable[[Proposal], str]
"""Writes a plan for later runs. Returns the problem if that fails."""


class Recording:
    """Records from now on.

    Args:
        root: The model; None: the first module that is called.
        device: The device.
        options: The number of iterations, and the options for planning.
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
        self._options = options
        self._profile = profile(
            root, device=device, layers=False, iterations=options.iterations, exact=False
        )
        self._profile.__enter__()
        if forward is not None:
            forward.tell(self._profile._hooks)

    @property
    def complete(self) -> bool:
        """True if all iterations are recorded."""
        return self._profile.complete

    @property
    def inputs(self) -> list[str]:
        """The inputs that were recorded, once it has ended."""
        inputs: list[str] = json.loads(self._profile.trace.info["inputs"])
        return inputs

    def stop(self) -> None:
        """Ends it. May be repeated."""
        self._profile.stop()

    def solve(self, peak: int, keep: Keep) -> Background[tuple[list[Proposal], str]]:
        """Begins to solve the plans.

        Args:
            peak: Reserved by torch at its peak; see `Proposal`.
            keep: Called with the best plan.

        Returns:
            The work. It results in what `propose` returns, and in the problem of `keep`.

        Raises:
            StallocError: Nothing was recorded.
        """
        self.stop()
        trace, options = self._profile.trace, self._options
        if len(trace.requests) == 0:
            raise StallocError(
                f"the program asked for no memory on {self._device}: name the device that it "
                "trains on"
            )

        def work(goes_on: Progress) -> tuple[list[Proposal], str]:
            proposals = propose(trace, options.time_limit, goes_on, peak)
            return proposals, keep(proposals[0]) if proposals and goes_on(1) else ""

        return Background(work, options.threads)
