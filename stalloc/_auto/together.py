"""One line about all ranks of a job, which rank 0 prints at its end.

Ranks never wait for each other. Each one writes its figures to a file when they change. Rank 0
reads the files that are there and deletes the folder:

    <cache>/runs/<a hash of the job>/1-of-8.json

So ranks of several nodes need a cache on a shared file system to be seen. If a file cannot be
written, it is missing in the line, and nothing else happens.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import TypedDict

from stalloc import _core
from stalloc.files import write_file
from stalloc.ranks import rank, world_size

FOLDER = "runs"
"""In the folder of the cache."""

_LEFT_SECONDS = 24 * 3600

_JOB = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
)


class Figures(TypedDict):
    """The plan of one rank. Bytes are those of the change that put it in force."""

    in_force: bool
    before: int
    after: int


class Together:
    """The figures of this rank, and of all.

    Args:
        cache: The folder of the cache; None: there is none, so no figures are exchanged.
    """

    def __init__(self, cache: Path | None) -> None:
        job = " ".join(os.environ.get(name, "") for name in _JOB)
        digest = hashlib.sha256(f"{os.getuid()} {job}".encode()).hexdigest()[:16]
        self._folder = cache / FOLDER / digest if cache is not None else None

    def tell(self, *, in_force: bool, before: int = 0, after: int = 0) -> None:
        """Writes the figures of this rank, if there are others."""
        if self._folder is None or world_size() == 1:
            return
        figures = Figures(in_force=in_force, before=before, after=after)
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_file(self._file(rank()), json.dumps(figures).encode(), overwrite=True)

    def take_line(self) -> str | None:
        """The line about all ranks; None on other ranks than 0, and if there are no others."""
        if self._folder is None or rank() != 0 or world_size() == 1:
            return None
        found = [figures for each in range(world_size()) if (figures := self._read(each))]
        self._clean_up(self._folder)
        planned = [figures for figures in found if figures["in_force"]]
        line = f"{len(planned)} of {world_size()} ranks under a plan"
        if len(found) < world_size():
            line += f", {world_size() - len(found)} unknown"
        if not planned:
            return line
        before, after = (max(f[name] for f in planned) for name in ("before", "after"))
        gains = sorted(1 - f["after"] / f["before"] for f in planned)
        return (
            f"{line}; the largest reserves {_core.format_bytes(after)} instead of "
            f"{_core.format_bytes(before)}; {gains[0]:.1%} to {gains[-1]:.1%} less"
        )

    @staticmethod
    def _clean_up(folder: Path) -> None:
        """Deletes the folder of this job, and what ranks of old jobs wrote after their rank 0."""
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            for other in folder.parent.iterdir():
                if time.time() - other.stat().st_mtime > _LEFT_SECONDS:
                    shutil.rmtree(other, ignore_errors=True)
            folder.parent.rmdir()  # fails while others are in it

    def _file(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{number}-of-{world_size()}.json"

    def _read(self, number: int) -> Figures | None:
        try:
            content = json.loads(self._file(number).read_bytes())
            figures = Figures(
                in_force=bool(content["in_force"]),
                before=int(content["before"]),
                after=int(content["after"]),
            )
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return figures if figures["before"] > 0 or not figures["in_force"] else None
