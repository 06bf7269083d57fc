"""The tables over a folder of recordings and MiniMalloc instances.

They say who reserves how much at the peak of each recording, and how far the plan of each instance
is above its bound.

Only models run here; no GPU and no CUDA build of torch is needed.
"""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from stalloc import planner
from stalloc.commands.inputs import read
from stalloc.errors import StallocError
from stalloc.recordings import PlannedRecording, plan_recording
from stalloc.replaying import Replay, recorded_expandable, replay_both_torch
from stalloc.verdicts import Comparison

TIME_LIMIT = 2.0  # seconds for each plan
KINDS = (".pickle", ".pickle.gz", ".json", ".json.gz")
HEAD = (
    "| recording | requests | load | torch | expandable | stalloc | efficiency | plan | gap | best "
    "| seconds of CPU |\n|---|---:|---:|---:|---:|---:|---:|---|---:|---|---:|"
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
                time_limit=TIME_LIMIT,
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
    begin = time.process_time()
    try:
        trace = read(path).trace
        if trace is None:
            return f"| {path.name} | a plan, not a recording |||||||||||"
        ours = plan_recording(trace, time_limit=TIME_LIMIT)
        torch = replay_both_torch(trace)
    except StallocError as error:
        return f"| {path.name} | {error} ||||||||||"
    seconds = time.process_time() - begin
    comparison = Comparison.of(trace, ours, torch, recorded_expandable(trace))
    return _line(path, len(trace.requests), torch, ours, comparison, seconds)


def _line(
    path: Path,
    requests: int,
    torch: Sequence[Replay],
    ours: PlannedRecording,
    comparison: Comparison,
    seconds: float,
) -> str:
    row = ours.row
    cells = [
        path.name.split(".")[0],
        f"{requests:,}",
        _mib(row.peak_load),
        *(_mib(rival.peak_reserved) for rival in torch),
        _mib(row.peak_reserved),
        f"{row.peak_load / row.peak_reserved:.4f}",
        f"{row.scope}, streams {row.streams}",
        f"{ours.plan.gap:.2%}",
        str(comparison.best),
        f"{seconds:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def write(folder: Path, output: Path) -> None:
    """Writes the tables as Markdown."""
    lines = [line_of(path) for path in recordings_in(folder)]
    instances = [line for path in instances_in(folder) for line in instance_lines(path)]
    output.write_text(
        "# Recordings\n\n"
        f"{platform.machine()}, {platform.platform()}, commit {_commit()}; time limit "
        f"{TIME_LIMIT:g} s a plan. MiB reserved at the peak of the whole replay. Written by "
        "`python benchmarks/replay DIR -o FILE`.\n\n"
        f"{HEAD}\n" + "\n".join(lines) + "\n\n## Instances\n\nBytes. Planned alone, without a "
        f"replay.\n\n{INSTANCE_HEAD}\n" + "\n".join(instances) + "\n"
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}"


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
