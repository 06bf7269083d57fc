"""The runtime's statistics, as numbers and as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, cast

from stalloc import _core

if TYPE_CHECKING:
    import torch

    from stalloc._adapters import Adapter


class MemoryStats(TypedDict):
    """Figures since the plan was enabled. Bytes are as requested, except "reserved" ones."""

    enabled: bool  #: whether a plan is in force on this device, and in this process
    iterations: int  #: completed
    planned: int  #: static requests of one iteration
    requests: int  #: all of them, planned or not
    served_as_planned: int  #: of these, served where the plan has them
    hits: int  #: static requests served at their planned address
    misses: int  #: static requests of completed iterations that were not
    hit_rate: float  #: served_as_planned / requests; 1.0 before the first
    startup: int  #: requests of start-up that the plan has an address for
    startup_requests: int  #: of these, served there
    conflicts: int  #: requests that fit a decision whose addresses were taken
    dynamic_requests: int  #: dynamic requests, served anywhere
    dynamic_region_requests: int  #: of these, served from the region kept for their group
    dynamic_reused_requests: int  #: of these, served from reusable space
    dynamic_fallback_requests: int  #: served by the fallback
    unplanned_requests: int  #: of evaluations and `unplanned` stretches, wherever served
    evaluation_requests: int  #: of these, served where the layout of evaluations has them
    idle_requests: int  #: without a place in the plan, served from idle pool space
    persistent_requests: int  #: served by the fallback, as the plan has it
    stream_waits: int  #: of one stream for another, on the device, which an ordered plan asks for
    handed_back: int  #: blocks freed while other streams still used them: their own stream waits
    moves: int  #: of memory within the pool; each waits for the device
    pools_left: int  #: pools that suited the run so badly that the fallback serves instead
    fallback_requests: int  #: served by the fallback
    allocated: int  #: live bytes now
    peak_allocated: int  #: the most of it: the load, M_a
    reserved: int  #: held of the device now: pool and fallback segments
    peak_reserved: int  #: the most of it, M_r
    run_peak_allocated: int  #: the most live bytes since the plan was enabled, resets or not
    run_peak_reserved: int  #: the most reserved bytes since then
    fallback_allocated: int  #: live bytes of the fallback now
    peak_fallback_allocated: int  #: the most of it
    fallback_reserved: int  #: held by the fallback now
    dynamic_allocated: int  #: live bytes of dynamic requests now
    peak_dynamic_allocated: int  #: the most of it
    peak_dynamic_in_region: int  #: the most of it in the regions kept for their groups
    peak_dynamic_reused: int  #: the most of it in reusable space
    pool: int  #: the plan's pool
    resident: int  #: its resident region, if the run is served from its start
    live_blocks: int  #: in the pool
    strays: int  #: of these, outside their planned lifetime, or left by the iteration before
    efficiency: float  #: E = peak_allocated / peak_reserved; 1.0 when nothing was reserved
    run_efficiency: float  #: the same of the whole run: run_peak_allocated / run_peak_reserved


class PhaseStats(TypedDict):
    """Figures of one kind of phase since the process began."""

    entered: int  #: times that the phase was entered
    released: int  #: times that the pool went back to the device for it, or what tensors left of it
    kept: int  #: times that tensors lay in it, whose memory stayed
    most_kept: int  #: bytes: the most of the pool that stayed
    most_reserved: int  #: bytes: the most that was reserved at its switches
    most_used: int  #: bytes of the device at these, of all engines and processes; 0 on the CPU


_phases: dict[str, PhaseStats] = {}

_COUNTED = (
    "iterations",
    "requests",
    "served_as_planned",
    "hits",
    "misses",
    "startup",
    "startup_requests",
    "conflicts",
    "dynamic_requests",
    "dynamic_region_requests",
    "dynamic_reused_requests",
    "dynamic_fallback_requests",
    "unplanned_requests",
    "evaluation_requests",
    "idle_requests",
    "persistent_requests",
    "fallback_requests",
    "stream_waits",
    "handed_back",
    "moves",
    "pools_left",
)
_PEAKS = ("run_peak_allocated", "run_peak_reserved")

_corrected: dict[str, dict[str, int]] = {}
"""Figures of a plan that was exchanged for its correction, by device."""


def stats_of_phase(name: str) -> PhaseStats:
    """The figures of a phase, for `stalloc.phases` to change."""
    none: PhaseStats = {
        "entered": 0,
        "released": 0,
        "kept": 0,
        "most_kept": 0,
        "most_reserved": 0,
        "most_used": 0,
    }
    return _phases.setdefault(name, none)


def phase_stats() -> dict[str, PhaseStats]:
    """Figures of the phases that were entered, by name. Bytes are as in `memory_stats`."""
    return {name: stats.copy() for name, stats in _phases.items()}


def memory_stats(device: torch.device | str | None = None) -> MemoryStats:
    """Counts and bytes since the plan was enabled, or peaks since they were reset.

    Before the first plan: all zero, but for the bytes of torch's allocator on a GPU in native mode.
    After disable(): the memory still held, the last counts, and peaks of the run that go on, and
    include those of torch's allocator from before the plan.

    Args:
        device: The device; None is that of the plan in force, else the CPU. On a GPU "allocated"
            and "reserved" include torch's own allocator, which is the fallback. "pinned" is pinned
            host memory, without what torch's own allocator has.
    """
    adapter = _adapter(device)
    adapter.refresh()
    counts = adapter.runtime.statistics()
    if adapter.is_native and not adapter.runtime.enabled:
        of_torch = _bytes_of_torch(adapter.name)
        peaks = ("run_peak_allocated", "run_peak_reserved")
        since = {name: max(counts[name], of_torch[name]) for name in peaks}
        counts |= since if counts["planned"] else of_torch
    for name, earlier in _corrected.get(adapter.name, {}).items():
        now = counts[name]
        counts[name] = max(now, earlier) if name in _PEAKS else now + earlier
    requests = counts["requests"]
    reserved, run_reserved = counts["peak_reserved"], counts["run_peak_reserved"]
    derived = {
        "enabled": adapter.runtime.enabled,
        "hit_rate": counts["served_as_planned"] / requests if requests else 1.0,
        "efficiency": counts["peak_allocated"] / reserved if reserved else 1.0,
        "run_efficiency": counts["run_peak_allocated"] / run_reserved if run_reserved else 1.0,
    }
    return cast("MemoryStats", counts | derived)


def _bytes_of_torch(device: str) -> dict[str, int]:
    """The bytes of torch's allocator, which serves a GPU alone where no plan is in force."""
    import torch

    stats = torch.cuda.memory_stats(device)  # empty before CUDA's first use
    figures = {}
    for name, of_torch in (("allocated", "requested_bytes"), ("reserved", "reserved_bytes")):
        figures[name] = stats.get(f"{of_torch}.all.current", 0)
        peak = stats.get(f"{of_torch}.all.peak", 0)
        figures[f"peak_{name}"] = figures[f"run_peak_{name}"] = peak
    return figures


def count_on(adapter: Adapter) -> None:
    """Keeps the figures of the plan in force, which is exchanged for its correction; not for users.

    The runtime counts anew then.
    """
    now = cast("dict[str, int]", memory_stats(adapter.name))
    _corrected[adapter.name] = {name: now[name] for name in (*_COUNTED, *_PEAKS)}


def count_anew(adapter: Adapter) -> None:
    """Lets the figures begin with the plan that is enabled now; not for users."""
    _corrected.pop(adapter.name, None)


def reset_peak_memory_stats(device: torch.device | str | None = None) -> None:
    """Resets the peaks to the bytes that are live and reserved now; on a GPU torch's, too."""
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

    def row(name: str, current: str, peak: str = "") -> str:
        return f"| {name:<25}|{current:>20} |{peak:>20} |"

    def size(value: int) -> str:
        return _core.format_bytes(value)

    def share(part: int, whole: int) -> str:
        return f"{part / whole:.2%}" if whole else ""

    state = "enabled" if s["enabled"] else "not enabled"
    dynamic = s["dynamic_requests"]
    lines = [
        rule,
        f"|{f'stalloc memory summary, device {name}, plan {state}':^{width - 2}}|",
        rule,
        row("bytes", "current", "peak"),
        rule,
        row("allocated", size(s["allocated"]), size(s["peak_allocated"])),
        row("  dynamic requests", size(s["dynamic_allocated"]), size(s["peak_dynamic_allocated"])),
        row("    in their regions", "", size(s["peak_dynamic_in_region"])),
        row("    in reusable space", "", size(s["peak_dynamic_reused"])),
        row("  by the fallback", size(s["fallback_allocated"]), size(s["peak_fallback_allocated"])),
        row("reserved", size(s["reserved"]), size(s["peak_reserved"])),
        row("  planned pool", size(s["pool"] if s["enabled"] else 0), size(s["pool"])),
        row("  resident region", "", size(s["resident"])),
        row("  fallback", size(s["fallback_reserved"])),
        row("efficiency", "", f"{s['efficiency']:.4f}"),
        row("load of the whole run", "", size(s["run_peak_allocated"])),
        row("reserved for it", "", size(s["run_peak_reserved"])),
        row("efficiency of the run", "", f"{s['run_efficiency']:.4f}"),
        rule,
        row("requests", "count", "share"),
        rule,
        row("all", f"{s['requests']:,}"),
        row("  served as planned", f"{s['served_as_planned']:,}", f"{s['hit_rate']:.2%}"),
        row("planned, served", f"{s['hits']:,}", share(s["hits"], s["hits"] + s["misses"])),
        row("planned, missed", f"{s['misses']:,}", share(s["misses"], s["hits"] + s["misses"])),
        row("  place taken", f"{s['conflicts']:,}"),
        row(
            "start-up, served",
            f"{s['startup_requests']:,}",
            share(s["startup_requests"], s["startup"]),
        ),
        row("dynamic", f"{dynamic:,}"),
        row(
            "  in their regions",
            f"{s['dynamic_region_requests']:,}",
            share(s["dynamic_region_requests"], dynamic),
        ),
        row(
            "  in reusable space",
            f"{s['dynamic_reused_requests']:,}",
            share(s["dynamic_reused_requests"], dynamic),
        ),
        row(
            "  by the fallback",
            f"{s['dynamic_fallback_requests']:,}",
            share(s["dynamic_fallback_requests"], dynamic),
        ),
        row("evaluations, as planned", f"{s['evaluation_requests']:,}"),
        row("departed, in idle space", f"{s['idle_requests']:,}"),
        row("persistent, as planned", f"{s['persistent_requests']:,}"),
        row("waits between streams", f"{s['stream_waits']:,}"),
        row("freed by such a wait", f"{s['handed_back']:,}"),
        row("moves of memory", f"{s['moves']:,}"),
        row("pools left", f"{s['pools_left']:,}"),
        row("by the fallback, in all", f"{s['fallback_requests']:,}"),
        row("iterations", f"{s['iterations']:,}"),
        rule,
    ]
    if name != "pinned" and "pinned" in _core.runtimes() and _core.runtime("pinned").enabled:
        pinned = memory_stats("pinned")
        lines += [
            row("pinned host memory", "current", "peak"),
            rule,
            row("allocated", size(pinned["allocated"]), size(pinned["peak_allocated"])),
            row("reserved", size(pinned["reserved"]), size(pinned["peak_reserved"])),
            row("  planned pool", size(pinned["pool"])),
            row("  beside it", size(pinned["fallback_reserved"])),
            row(
                "requests as planned",
                f"{pinned['served_as_planned']:,}",
                f"{pinned['hit_rate']:.2%}",
            ),
            rule,
        ]
    if phases := phase_stats():
        lines += [row("phases", "pool released", "in use at switches"), rule]
        lines += [
            row(
                f"{phase}, {f['entered']:,} times",
                f"{f['released']:,}",
                size(f["most_used"] or f["most_reserved"]),
            )
            for phase, f in phases.items()
        ]
        lines += [rule]
    return "\n".join(lines)
