"""Runs the programs of `programs/` unchanged under each allocator, and reads the line they print.

"auto" is `stalloc run`, which plans as the program runs; "again" is its second run, which finds the
plans of the first. The others are torch's own allocator and its expandable segments.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from report import Report
from runs import Result

FOLDER = Path(__file__).parent / "programs"
PROGRAMS = {
    "fine-tuning": ["finetune.py"],
    "fine-tuning, LoRA": ["finetune.py", "--adapters"],
    "vision transformer, growing sides": ["vision.py"],
    "graph network": ["graphs.py"],
}
SIDES = ("torch", "expandable", "auto", "again")


def measure(names: list[str], seconds: float, jobs: int, report: Report) -> bool:
    """Runs the named programs, all where none is named; whether all of them came to an end."""
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        tasks = [
            (name, sides, Path(folder) / name.replace(" ", "-"), end, report)
            for sides in (("auto", "again"), ("torch",), ("expandable",))
            for name in names or PROGRAMS
        ]
        return all(list(pool.map(lambda task: _measure(*task), tasks)))


def _measure(name: str, sides: tuple[str, ...], cache: Path, end: float, report: Report) -> bool:
    """Runs a program under each side in turn: the second may find what the first has left."""
    done = []
    for side in sides:
        result = _run(PROGRAMS[name], side, cache, max(end - time.monotonic(), 1))
        result["commit"] = report.document["commit"]
        print(f"{name}, {side}: {result}", flush=True)
        report.update("name", name, "program", {side: result})
        done.append("failed" not in result)
    return all(done)


def _run(program: list[str], side: str, cache: Path, seconds: float) -> Result:
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_ALLOC_CONF")}
    environment["STALLOC_CACHE"] = str(cache)
    if side == "expandable":
        environment["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    runner = ["-m", "stalloc", "run"] if side in ("auto", "again") else []
    command = [sys.executable, *runner, str(FOLDER / program[0]), *program[1:]]
    try:
        process = subprocess.run(
            command,
            env=environment,
            cwd=cache.parent,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"it was not done after {seconds:.0f} s"}
    for line in reversed(process.stdout.splitlines()):
        if process.returncode == 0 and line.startswith("{"):
            said = [line for line in process.stderr.splitlines() if line.startswith("stalloc: ")]
            return {**json.loads(line), "said": said}
    return {"failed": process.stderr[-2000:]}
