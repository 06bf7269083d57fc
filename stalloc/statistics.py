"""What the runtime counts, as numbers and as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, cast

from stalloc import _core

if TYPE_CHECKING:
    import torch

    from stalloc._adapters import Adapter


class MemoryStats(TypedDict):
    """Figures since the plan was enabled. Bytes are as asked for, but where "reserved" is said."""

    enabled: bool  # whether a plan is in force on this device, and in this process
    iterations: int  # completed
    planned: int  # static requests of one iteration
    hits: int  # static requests served at their planned address
    misses: int  # static requests of completed iterations that were not
    hit_rate: float  # hits / (hits + misses); 1.0 before the first
    conflicts: int  # requests that fit a decision whose place was taken
    idle_requests: int  # served from idle pool space outside planned phases
    fallback_requests: int  # served by the fallback
    allocated: int  # live bytes now
    peak_allocated: int  # the load, M_a
    reserved: int  # held of the device now: pool and fallback segments
    peak_reserved: int  # M_r
    fallback_allocated: int  # live bytes of the fallback now
    peak_fallback_allocated: int
    fallback_reserved: int  # held by the fallback now
    pool: int  # the plan's pool
    live_blocks: int  # in the pool
    strays: int  # of these, outside their planned lifetime
    efficiency: float  # E = peak_allocated / peak_reserved; 1.0 when nothing was reserved


def memory_stats(device: torch.device | str | None = None) -> MemoryStats:
    """Counts and bytes since the plan was enabled, or peaks since they were reset.

    All zero before the first plan; after disable(), what is still held and the last counts.

    Args:
        device: The device; None is that of the plan in force, else the CPU. On a GPU "allocated"
            and "reserved" include what torch's own allocator, the fallback, holds.
    """
    adapter = _adapter(device)
    adapter.refresh()
    counts = adapter.runtime.statistics()
    asked = counts["hits"] + counts["misses"]
    reserved = counts["peak_reserved"]
    derived = {
        "enabled": adapter.runtime.enabled,
        "hit_rate": counts["hits"] / asked if asked else 1.0,
        "efficiency": counts["peak_allocated"] / reserved if reserved else 1.0,
    }
    return cast("MemoryStats", counts | derived)


def reset_peak_memory_stats(device: torch.device | str | None = None) -> None:
    """Starts the peaks anew from what is live and reserved now; on a GPU torch's with them."""
    adapter = _adapter(device)
    if adapter.name.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats(adapter.name)
    adapter.runtime.reset_peaks()


def empty_cache(device: torch.device | str | None = None) -> int:
    """Gives the fallback's unused segments back to the device. Returns how many bytes."""
    adapter = _adapter(device)
    if not adapter.name.startswith("cuda"):
        return adapter.runtime.release_cached()
    import torch

    before = torch.cuda.memory_reserved(adapter.name)
    adapter.give_back()
    return before - torch.cuda.memory_reserved(adapter.name)


def _adapter(device: torch.device | str | None) -> Adapter:
    from stalloc import _adapters  # imports torch, which planning does without

    if device is None:
        device = _adapters.planned_device() or "cpu"
    return _adapters.adapter(device)


def memory_summary(device: torch.device | str | None = None) -> str:
    """The statistics as a table to print, in the shape of `torch.cuda.memory_summary`."""
    name = _adapter(device).name
    s = memory_stats(device)
    width = 72
    rule = "|" + "=" * (width - 2) + "|"

    def row(name: str, *cells: str) -> str:
        text = f" {name:<24}" + "".join(f"|{c:>14} " for c in cells)
        return f"|{text:<{width - 2}}|"

    def size(value: int) -> str:
        return _core.format_bytes(value)

    state = "enabled" if s["enabled"] else "not enabled"
    lines = [
        rule,
        f"|{f'stalloc memory summary, device {name}, plan {state}':^{width - 2}}|",
        rule,
        row("bytes", "current", "peak"),
        row("allocated", size(s["allocated"]), size(s["peak_allocated"])),
        row("reserved", size(s["reserved"]), size(s["peak_reserved"])),
        row("  planned pool", size(s["pool"] if s["enabled"] else 0), size(s["pool"])),
        row("  fallback", size(s["fallback_reserved"]), ""),
        row(
            "fallback allocated", size(s["fallback_allocated"]), size(s["peak_fallback_allocated"])
        ),
        row("efficiency", "", f"{s['efficiency']:.4f}"),
        rule,
        row("requests", "count", "share"),
        row("planned, served", str(s["hits"]), f"{100 * s['hit_rate']:.2f} %"),
        row("planned, missed", str(s["misses"]), f"{100 * (1 - s['hit_rate']):.2f} %"),
        row("  place taken", str(s["conflicts"]), ""),
        row("idle pool space", str(s["idle_requests"]), ""),
        row("fallback", str(s["fallback_requests"]), ""),
        row("iterations", str(s["iterations"]), ""),
        rule,
    ]
    return "\n".join(lines)
