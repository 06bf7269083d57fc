"""The planner that STAlloc's authors published, on the same traces.

Their Synthesizer (infinigence/STAlloc) reads a log of requests with the beginnings of iterations
and microbatches, and writes an address for each static request. A mixture of experts is left out:
there the planner assumes how much their allocator will reserve for dynamic requests.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from events import FREED, ITERATION_ENDS, PHASE_BEGINS, events_of
from real import Unavailable

import stalloc
from stalloc.tables import PHASE_KINDS

_KINDS = {PHASE_KINDS.index("forward"): "F", PHASE_KINDS.index("backward"): "B"}
_NEEDS = ("sklearn", "matplotlib")


@dataclass(frozen=True)
class Synthesizer:
    """The authors' planner.

    Attributes:
        version: The commit of its repository.
        folder: The folder of its `main.py`.
    """

    version: str
    folder: Path


def find(checkout: Path) -> Synthesizer:
    """The planner in a clone of infinigence/STAlloc.

    Raises:
        Unavailable: There is none, or a package that it imports is missing.
    """
    folder = checkout / "Synthesizer"
    if not (folder / "main.py").exists():
        raise Unavailable(f"no Synthesizer in {checkout}; clone infinigence/STAlloc")
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise Unavailable(
            f"the Synthesizer needs {' and '.join(missing)}: pip install scikit-learn matplotlib"
        )
    head = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=False).stdout.strip()
    return Synthesizer(commit or "of unknown version", folder.resolve())


def plan(trace: stalloc.Trace, synthesizer: Synthesizer) -> tuple[int, float]:
    """Plans a trace with its defaults.

    Returns:
        The bytes that it reserves for the whole run, and the CPU seconds that it took.

    Raises:
        RuntimeError: It failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "trace" / "mem_log_dev0.txt"
        log.parent.mkdir()
        log.write_text("".join(f"{line}\n" for line in lines_of(trace)))
        before = _children_seconds()
        done = subprocess.run(
            [sys.executable, "main.py", "--model-memory-dir", folder, "--devices", "1"],
            cwd=synthesizer.folder,
            # It starts another program with whatever `python` there is.
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        written = Path(folder) / "output" / "plan" / "dev_0.txt"
        if not written.exists():  # its exit status says nothing
            raise RuntimeError(f"the Synthesizer failed: {done.stderr}")
        seconds = _children_seconds() - before
        # The most bytes live, the bytes reserved, two counts, the bytes of the tiny requests.
        head = [int(word) for word in written.read_text().splitlines()[1].split()]
    return head[1] + head[4], seconds


def lines_of(trace: stalloc.Trace) -> list[str]:
    """A trace as the log that the authors' tracer writes.

    Iteration 0 begins with the first forward pass: start-up has an iteration of its own there. All
    that lives at the end is freed after it, as by a process that ends.
    """
    lines: list[str] = []
    live: dict[int, tuple[int, int]] = {}
    last, ended, begun = len(trace.iterations) - 1, 0, False
    for number, size, stream in events_of(trace).tolist():
        if number == PHASE_BEGINS and size % 256 in _KINDS and ended < last:
            if not begun:
                lines.append("Iteration Index : 0")
            begun = True
            lines.append(f"micro-batch : {_KINDS[size % 256]}")
        elif number == ITERATION_ENDS:
            ended += 1
            lines.append(f"Iteration Index : {ended if ended < last else 'end'}")
        elif number >= 0 and size == FREED:
            lines.append(f"0 {number + 1:#x} {live.pop(number)[0]} {stream}")
        elif number >= 0:
            live[number] = (size, stream)
            lines.append(f"1 {number + 1:#x} {size} {stream}")
    return lines + [f"0 {number + 1:#x} {size} {stream}" for number, (size, stream) in live.items()]


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
