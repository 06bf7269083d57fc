"""Runs Python in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def python(
    *arguments: str | Path,
    cwd: Path | None = None,
    code: int = 0,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """The process, ended with exit code `code`; it has one thread and the variables."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | dict(environment or {}),
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


def torchrun(
    *arguments: str | Path, logs: Path, environment: Mapping[str, str] | None = None
) -> list[tuple[list[str], list[str]]]:
    """The lines of stdout and stderr of each of two ranks. `logs` is a folder for both.

    Ranks that write to one pipe write into each other's lines.
    """
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    known = set(logs.glob("*"))
    python(*launcher, "--redirects=3", "--log-dir", logs, *arguments, environment=environment)
    (run,) = set(logs.glob("*")) - known
    ranks = [run / "attempt_0" / str(rank) for rank in range(2)]
    return [(_lines(rank / "stdout.log"), _lines(rank / "stderr.log")) for rank in ranks]


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
