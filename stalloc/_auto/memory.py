"""The memory of a device while plans come and go.

On a GPU in native mode, torch's allocator reports its reserved bytes. On the CPU torch caches
nothing, so the model of its caching policy replaces it, as in `stalloc replay`.
"""

from __future__ import annotations

import torch

from stalloc import _core
from stalloc._adapters import Adapter
from stalloc._auto.proposal import Proposal

_SEGMENTS = {"cuda": 64 << 20, "cpu": 256 << 10}
"""Bytes that the fallback may reserve for a few requests: torch's segments have 2 and 20 MiB,
stalloc's own on the CPU 16 and 160 KiB."""


class DeviceMemory:
    """Follows the reserved bytes of one device.

    Attributes:
        peak: The most bytes that torch has reserved; 0 if that cannot be measured.
    """

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._measured = adapter.name.startswith("cuda")
        self.peak = 0

    def record_peak(self) -> None:
        """Records torch's peak. Call it after each iteration."""
        if self._measured and not self._adapter.runtime.enabled:
            self.peak = max(self.peak, torch.cuda.max_memory_reserved(self._adapter.name))

    def shortage(self, proposal: Proposal, *, first: bool) -> str | None:
        """The reason if the run would need more than torch's peak as the plan goes into force.

        Gives back torch's cache first. On a GPU, counted are the pool and what then stays reserved.
        The CPU's memory cannot be measured: the recorded requests are counted.

        Args:
            proposal: The plan.
            first: True before the first iteration.
        """
        if self._measured:
            self._adapter.give_back()
            stays = torch.cuda.memory_reserved(self._adapter.name)
            needs, peak = stays + proposal.plan.pool, max(self.peak, proposal.peak)
        else:
            needs, peak = 0 if first else proposal.entering, proposal.before
        if needs <= peak:
            return None
        pool = proposal.plan.pool
        return (
            f"{described(needs - pool)} that stay and a pool of {described(pool)} exceed torch's "
            f"peak, {described(peak)}"
        )

    def tolerated(self, proposal: Proposal, share: float) -> int:
        """Bytes beside the pool that are no reason for a change."""
        return max(int(share * proposal.after), _SEGMENTS["cuda" if self._measured else "cpu"])


def described(size: int) -> str:
    """Bytes in words."""
    return _core.format_bytes(size)
