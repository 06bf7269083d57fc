"""The memory of a device while plans come and go.

On a GPU in native mode, torch's allocator tells what it has reserved. On the CPU torch caches
nothing, so the model of its caching policy stands in for it, as in `stalloc replay`.
"""

from __future__ import annotations

import torch

from stalloc import _core
from stalloc._adapters import Adapter
from stalloc._auto.proposal import Proposal
from stalloc.plans import Plan

_SEGMENTS = {"cuda": 64 << 20, "cpu": 256 << 10}
"""Bytes of the few segments that the fallback reserves for any small requests: torch's of 2 and 20
MiB, stalloc's own of 128 KiB."""


class Room:
    """Follows the reserved bytes of one device."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._measured = adapter.name.startswith("cuda")
        self._peak = 0  # reserved by torch, the most seen
        self._beside = 0  # beside the pool when it was reserved
        self._requests = 0
        self._served = 0

    def note(self) -> None:
        """Notes torch's peak; to be called after each iteration."""
        if self._measured and not self._adapter.runtime.enabled:
            self._peak = max(self._peak, torch.cuda.max_memory_reserved(self._adapter.name))

    def shortage(self, plan: Plan) -> str | None:
        """The reason if the run would need more than torch's peak so far, else None.

        Gives back torch's cache first. Counted are the pool and what then stays reserved. On the
        CPU nothing can be measured: a plan that saves by the model of torch's policy has room.
        """
        if not self._measured:
            return None
        self._adapter.give_back()
        stays = torch.cuda.memory_reserved(self._adapter.name)
        if stays + plan.pool <= self._peak:
            return None
        return (
            f"{self.described(stays)} that stay and a pool of {self.described(plan.pool)} exceed "
            f"torch's peak so far, {self.described(self._peak)}"
        )

    def entered(self) -> None:
        """A plan went into force."""
        self._beside = self._statistics()["fallback_reserved"]
        self._requests = self._served = 0

    def beside(self) -> int:
        """Bytes that have been reserved beside the pool since the plan went into force."""
        return max(0, self._statistics()["fallback_reserved"] - self._beside)

    def tolerated(self, proposal: Proposal, share: float) -> int:
        """Bytes beside the pool that are no reason for a change."""
        return max(int(share * proposal.after), _SEGMENTS["cuda" if self._measured else "cpu"])

    def pool_is_empty(self) -> bool:
        """True if no tensor lies in the pool."""
        return self._statistics()["live_blocks"] == 0

    def new_requests(self) -> tuple[int, int]:
        """Requests since the last call, and how many of them were served as planned."""
        now = self._statistics()
        new = now["requests"] - self._requests, now["served_as_planned"] - self._served
        self._requests, self._served = now["requests"], now["served_as_planned"]
        return new

    @staticmethod
    def described(size: int) -> str:
        """Bytes in words."""
        return _core.format_bytes(size)

    def _statistics(self) -> dict[str, int]:
        self._adapter.refresh()
        return self._adapter.runtime.statistics()
