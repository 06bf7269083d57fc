"""The tables over a folder of recordings and MiniMalloc instances.

They say who reserves how much at the peak of each recording, and how far the plan of each instance
is above its bound.

Only models run here; no GPU and no CUDA build of torch is needed.
"""

from __future__ import annotations

import platform
import subprocess
import time
from pathlib import Path

import periods

from stalloc import planner
from stalloc.commands.inputs import read
from stalloc.errors import StallocError
from stalloc.recordings import is_repeated, plan_recording, replayed
from stalloc.replaying import RECORDING, recorded_expandable, replay_both_torch
from stalloc.trace import Trace
from stalloc.verdicts import Comparison

KINDS = (".pickle", ".pickle.gz", ".json", ".json.gz")
HEAD = (
    "| recording | requests | load | torch | measured | expandable | stalloc | enabled later "
    "| efficiency | plan | gap | best | seconds of CPU | seconds |\n"
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|---:|---|---:|---:|"
)


INSTANCE_HEAD = (
    "| instance | buffers | alignment | bound | pool | gap | optimal | seconds of CPU |\n"
    "|---|---:|---:|---:|---:|---:|---|---:|"
)
ALIGNMENTS = (1, 512)  # MiniMalloc's, and that of CUDA's allocators


def recordings_in(folder: Path) -> list[Path]:
    """The recordings in a folder, by name."""
    return sorted(path for path in folder.iterdir() if path.name.endswith(KINDS))


def instances_in(folder: Path) -> list[Path]:
    """The MiniMalloc instances in a folder, by name."""
    return sorted(folder.glob("*.csv"))


def instance_lines(path: Path) -> list[str]:
    """An instance's lines of the table, one for each alignment."""
    lines = []
    for alignment in ALIGNMENTS:
        begin = time.process_time()
        try:
            csv = planner.load_csv(path)
            found = planner.plan(
                csv.lower,
                csv.upper,
                csv.size,
                gaps=csv.gaps,
                alignment=alignment,
            )
        except StallocError as error:
            lines.append(f"| {path.stem} | {error} |||||||")
            continue
        cells = [
            path.stem,
            f"{len(found.offsets):,}",
            f"{alignment}",
            f"{found.bound:,}",
            f"{found.height:,}",
            f"{found.height / found.bound - 1:.3%}",
            "yes" if found.optimal else "",
            f"{time.process_time() - begin:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def line_of(path: Path) -> str:
    """A recording's line of the table, or the reason why it has none."""
    begin, begin_cpu = time.monotonic(), time.process_time()
    try:
        trace = read(path).trace
        if trace is None:
            return f"| {path.name} | a plan, not a recording |"
        ours = plan_recording(
            trace,
            once=(lambda: as_recorded(path)) if is_repeated(trace) else None,
        )
        torch = replay_both_torch(ours.trace)
    except StallocError as error:
        return f"| {path.name} | {error} |"
    seconds = f"{time.process_time() - begin_cpu:.1f}", f"{time.monotonic() - begin:.1f}"
    expandable = recorded_expandable(trace)
    comparison = Comparison.of(ours.trace, ours, torch, expandable)
    later = replayed(ours.trace, ours.plan, startup=False).row
    measured = torch[expandable].measured
    row = ours.row
    cells = [
        path.name.split(".")[0],
        f"{len(ours.trace.requests):,}",
        _mib(row.peak_load),
        _mib(torch[0].peak_reserved),
        "" if measured is None else _mib(measured),
        _mib(torch[1].peak_reserved),
        _mib(row.peak_reserved),
        _mib(later.peak_reserved),
        f"{row.peak_load / row.peak_reserved:.4f}",
        f"{row.scope}{', once' if row.scope == RECORDING else ''}, streams {row.streams}",
        f"{ours.plan.gap:.2%}{', proven optimal' if ours.plan.optimal else ''}",
        str(comparison.best),
        *seconds,
    ]
    return f"| {' | '.join(cells)} |"


def as_recorded(path: Path) -> Trace:
    """The recording without repetitions."""
    trace = read(path, repetitions=1).trace
    assert trace is not None
    return trace


def write(folder: Path, output: Path) -> None:
    """Writes the tables as Markdown."""
    lines = [line_of(path) for path in recordings_in(folder)]
    instances = [line for path in instances_in(folder) for line in instance_lines(path)]
    output.write_text(
        "# Recordings\n\n"
        f"{platform.machine()}, {platform.platform()}, commit {_commit()}. "
        f"MiB reserved at the peak of the whole replay. Written by "
        "`python benchmarks/replay DIR -o FILE`.\n\n"
        f"{HEAD}\n" + "\n".join(lines) + "\n\n"
        "*torch*, *expandable*: the model of torch's allocator, with default and with expandable "
        "segments. *measured*: the most that torch held during the recording, with its settings. "
        "*enabled later*: the plan in force after start-up, whose blocks lie beside the pool, in "
        "torch's allocator as in native mode. A plan of a recording serves it once. The seconds "
        "include reading the file.\n\n"
        "## State that each iteration replaces\n\n"
        "MiB of the plan: pool and resident region. *beside*: the replaced state has no address, "
        "and lies in the caching fallback (peak of the replay). *period 2*, *period 4*: a plan of "
        "so many iterations, in which each request has its own address. *slots*: as stalloc plans. "
        f"Functional AdamW: 24 layers (benchmarks/replay/adamw.py).\n\n"
        f"{periods.table(folder)}\n"
        f"## Instances\n\nBytes. Planned alone, in 10 s at most, without a replay.\n\n"
        f"{INSTANCE_HEAD}\n" + "\n".join(instances) + "\n"
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}"


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
