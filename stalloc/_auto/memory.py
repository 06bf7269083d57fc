"""The memory of a device while plans come and go.

On a GPU in native mode, torch's allocator reports its reserved bytes. On the CPU torch caches
nothing, so the model of its caching policy replaces it, as in `stalloc replay`.

Once its cache is given back, torch reserves memory anew, and often more of it: blocks that stay
have split up its segments. So the cache stays where it is until a plan is known to fit.
"""

from __future__ import annotations

from typing import Any

import torch

from stalloc import _core, _expandable
from stalloc._adapters import Adapter
from stalloc._auto.proposal import LEAST_GAIN, Peak, Proposal
from stalloc._auto.segments import Segments

_SEGMENTS = {"cuda": 64 << 20, "cpu": 256 << 10}
"""Bytes that the fallback may reserve for a few requests: torch's segments have 2 and 20 MiB,
stalloc's own on the CPU 16 and 160 KiB."""

_SMALL_PAGE = 2 << 20
"""Bytes that an expandable segment of small blocks takes and gives at once."""


class DeviceMemory:
    """Follows the reserved bytes of one device.

    Args:
        adapter: The device.
        segments: Its expandable segments, if there may be such.

    Attributes:
        peak: The most that torch has had; zeros if that cannot be measured, or a plan of an earlier
            run has served from the first iteration on.
        goes_in_parts: Of a pool in which tensors lie, the rest can be given back.
    """

    def __init__(self, adapter: Adapter, segments: Segments | None = None) -> None:
        self._adapter = adapter
        self._segments = segments
        self._measured = adapter.name.startswith("cuda")
        self.goes_in_parts = not self._measured or (
            segments is not None and segments.has_virtual_memory
        )
        self.peak = Peak()
        self._given_back = 0  # bytes by torch, since the process began
        self._has_served = False  # then torch's own peaks contain the plan's pool

    def record_peak(self) -> None:
        """Records torch's peak, until a plan first serves. Call it after each iteration."""
        self._has_served = self._has_served or self._adapter.runtime.enabled
        if self._measured and not self._has_served:
            stats = torch.cuda.memory_stats(self._adapter.name)  # empty before CUDA's first use
            is_thrifty = self._segments is not None and self._segments.are_on
            given_back = stats.get("reserved_bytes.all.freed", 0)
            self.peak = Peak(
                max(self.peak.reserved, stats.get("reserved_bytes.all.peak", 0)),
                max(self.peak.live, stats.get("allocated_bytes.all.peak", 0)),
                is_thrifty,
                is_strained=is_thrifty and given_back > self._given_back,
            )
            self._given_back = given_back

    def forget_peak(self) -> None:
        """A plan serves from the first iteration on: torch's peak is none of training."""
        self.peak = Peak(is_thrifty=self.peak.is_thrifty)

    def shortage(self, proposal: Proposal, *, first: bool, ahead: bool = False) -> str | None:
        """The reason if the run would need more than its peak as the plan goes into force.

        That is torch's peak, or what the run has reserved since, under plans, if it is more.

        On a GPU, counted are the pool and the segments that stay. If they fit, torch's cache is
        given back, and what then stays reserved is counted. The CPU's memory cannot be measured:
        the recorded requests are counted.

        Args:
            proposal: The plan.
            first: True before the first iteration.
            ahead: See `may_enter_ahead`.
        """
        pool = proposal.plan.pool - (proposal.handed if ahead else 0)
        whose = "torch's peak"
        if self._measured:
            peak = max(self.peak.reserved, proposal.peak)
            staying = self._staying()
            if self._segments is not None and self._segments.are_on:
                # Torch gave back what was idle at its peak. With its own settings it would have
                # needed more than this, and than a plan that saves.
                idle = staying - torch.cuda.memory_allocated(self._adapter.name)
                if proposal.after + idle <= (1 - LEAST_GAIN) * proposal.before:
                    peak += int(3 * LEAST_GAIN * peak)
            reached = torch.cuda.max_memory_reserved(self._adapter.name)
            if reached > peak:
                whose, peak = "the peak so far", reached
            needs = staying + pool
            if needs <= peak:
                self._adapter.give_back()
                needs = torch.cuda.memory_reserved(self._adapter.name) + pool
        else:
            needs, peak = 0 if first else proposal.at_begin + pool, proposal.before
        if needs <= peak:
            return None
        return (
            f"{described(needs - pool)} that stay and a pool of {described(pool)} exceed {whose}, "
            f"{described(peak)}"
        )

    def may_enter_ahead(self, proposal: Proposal) -> bool:
        """True if the plan shall begin with the requests that live on into the next iteration.

        Those of the iteration before lie beside the pool, where their memory would be needed in
        addition. While torch serves all others once more, the pool gets memory for the new ones
        only, and the old ones go.
        """
        return self.goes_in_parts and proposal.handed >= LEAST_GAIN * proposal.plan.pool

    def _staying(self) -> int:
        """Bytes that stay reserved once torch's cache is given back.

        A segment goes as a whole, if no block of it is in use. Of an expandable segment, pages go.
        """
        device = torch.device(self._adapter.name).index
        segments: list[dict[str, Any]] = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        return sum(_staying_of(segment) for segment in segments if segment["device"] == device)

    def tolerated(self, proposal: Proposal, share: float) -> int:
        """Bytes beside the pool that are no reason for a change."""
        return max(int(share * proposal.after), _SEGMENTS["cuda" if self._measured else "cpu"])


def _staying_of(segment: dict[str, Any]) -> int:
    total: int = segment["total_size"]
    if tuple(segment["segment_pool_id"]) != (0, 0):
        return total  # it may belong to a graph
    used = [block for block in segment["blocks"] if block["state"] != "inactive"]
    if not used or not segment.get("is_expandable"):
        return total if used else 0
    is_large, begin = segment["segment_type"] == "large", segment["address"]
    page = _expandable.large_page if is_large else _SMALL_PAGE
    stay: set[int] = set()
    for block in used:
        offset = block["address"] - begin
        stay.update(range(offset // page, -(-(offset + block["size"]) // page)))
    return min(total, len(stay) * page)


def described(size: int) -> str:
    """Bytes in words."""
    return _core.format_bytes(size)
