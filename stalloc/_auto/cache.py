"""The cache of plans: the plans of one run serve the next one.

A plan is one file, in stalloc's own format. Its name has a hash of the program and one of the
inputs. The file's `info` has the program itself and the figures of the proposal:

    <folder>/5d41402abc4b2a76-b9719d91.plan.json

A file gets its name only when it is complete, so any number of ranks and jobs may share the folder:
the last writer wins. A plan is validated when it is loaded, as always. Any other error is reported
and costs the plan only.

If all files together exceed a size, the least recently used ones are deleted. Only files with such
a name are deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stalloc._auto.program import Program
from stalloc._auto.proposal import Proposal
from stalloc._fit import names, same_inputs
from stalloc.errors import PlanError
from stalloc.files import named, write_file
from stalloc.plans import Plan

FOLDER = "STALLOC_CACHE"
"""Environment variable: the folder. Empty or `0` turns the cache off."""

MOST_BYTES = 1 << 30
"""The most bytes that all files together may have."""

_NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]{8}\.plan\.json")
_LEFT = re.compile(r"\.stalloc-[0-9a-f]{16}")  # of a process that died while it wrote
_PROGRAM = "auto_program"
_FIGURES = "auto_figures"
_WRITING = 3600
"""Seconds in which a file that has no name yet may be another process's, which still writes it."""

_FIGURE_NAMES = ("load", "before", "after", "entering", "beside", "peak")


@dataclass(frozen=True, slots=True)
class File:
    """A file of the cache.

    Attributes:
        path: Where it is.
        size: Bytes.
        used: Seconds since 1970 when it was used last.
    """

    path: Path
    size: int
    used: float


def cache_folder() -> Path | None:
    """The folder, which need not exist; None if the cache is off."""
    named_one = os.environ.get(FOLDER)
    if named_one is not None:
        return Path(named_one).expanduser() if named_one not in ("", "0") else None
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # which the XDG specification ignores
        base = os.path.expanduser("~/.cache")
    return Path(base) / "stalloc" if os.path.isabs(base) else None


class PlanCache:
    """The plans in a folder.

    Args:
        folder: The folder, which need not exist.
        most_bytes: The limit for all files together.
    """

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self._most_bytes = most_bytes

    def find(
        self, program: Program, inputs: str, complain: Callable[[str], None]
    ) -> Proposal | None:
        """The plan for a program and a batch that was used last.

        Args:
            program: The running one.
            inputs: The batch that its model is called with, see `input_signature`.
            complain: Called with a problem; it costs the file concerned only.
        """
        prefix = f"{_digest(program, 16)}-"
        try:
            files = [file for file in self.files() if file.path.name.startswith(prefix)]
        except OSError as error:
            complain(f"cannot be read: {error.strerror}")
            return None
        for file in files:
            try:
                proposal = self.load(file, program)
            except FileNotFoundError:
                continue  # another job has deleted it since
            except (OSError, PlanError) as error:
                complain(f"{_words(error)}; this file is deleted if possible")
                _delete(file.path)
                continue
            if same_inputs(names(proposal.plan, "inputs"), inputs):
                with contextlib.suppress(OSError):  # a folder that can only be read
                    os.utime(file.path)
                return proposal
        return None

    def keep(self, program: Program, proposal: Proposal) -> None:
        """Writes a plan, and deletes the oldest ones if there are too many.

        Raises:
            OSError: It cannot be written.
        """
        figures = {name: getattr(proposal, name) for name in _FIGURE_NAMES}
        notes = {_PROGRAM: _text(program), _FIGURES: json.dumps(figures)}
        proposal.plan.info = {**proposal.plan.info, **notes}
        content = proposal.plan._core.to_json()
        if len(content) > self._most_bytes:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_file(self.folder / _file_name(program, proposal.plan), content, overwrite=True)
        self._make_room()

    def files(self) -> list[File]:
        """The files of plans, the one that was used last first.

        Raises:
            OSError: The folder cannot be read.
        """
        return self._files(_NAME)

    def load(self, file: File, program: Program | None = None) -> Proposal:
        """Reads and validates a file.

        Raises:
            PlanError: It is damaged, or of another program than the one that is given.
            OSError: It cannot be read.
        """
        if file.size > self._most_bytes:
            raise PlanError(f"{named(file.path)}: it is larger than any plan that is kept")
        plan = Plan.load(file.path)
        if program is not None and plan.info.get(_PROGRAM) != _text(program):
            raise PlanError(f"{named(file.path)}: it is a plan of another program")
        return Proposal(plan=plan, **_figures(plan, file.path))

    def _make_room(self) -> None:
        total = 0
        now = time.time()
        for file in self._files(_NAME, _LEFT):
            if _LEFT.fullmatch(file.path.name) and now - file.used < _WRITING:
                continue
            total += file.size
            if total > self._most_bytes:
                _delete(file.path)

    def _files(self, *patterns: re.Pattern[str]) -> list[File]:
        return sorted(self._scan(*patterns), key=lambda file: file.used, reverse=True)

    def _scan(self, *patterns: re.Pattern[str]) -> Iterator[File]:
        try:
            entries = list(self.folder.iterdir())
        except FileNotFoundError:
            return
        for path in entries:
            if not any(pattern.fullmatch(path.name) for pattern in patterns):
                continue
            with contextlib.suppress(FileNotFoundError):
                found = path.lstat()
                if stat.S_ISREG(found.st_mode):
                    yield File(path, found.st_size, found.st_mtime)


def program_of(plan: Plan) -> dict[str, str]:
    """The program that a kept plan is for; empty if the plan does not say."""
    return {name: str(fact) for name, fact in _object_of(plan.info.get(_PROGRAM, "")).items()}


def _figures(plan: Plan, path: Path) -> dict[str, int]:
    figures = _object_of(plan.info.get(_FIGURES, ""))
    whole = all(isinstance(value, int) and 0 <= value < 1 << 63 for value in figures.values())
    if set(figures) != set(_FIGURE_NAMES) or not whole or figures["after"] >= figures["before"]:
        raise PlanError(f"{named(path)}: the plan does not say what it saves")
    return figures


def _object_of(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _file_name(program: Program, plan: Plan) -> str:
    return f"{_digest(program, 16)}-{_digest(plan.info.get('inputs', ''), 8)}.plan.json"


def _text(program: Program) -> str:
    return json.dumps(dict(program), sort_keys=True)


def _digest(content: Program | str, digits: int) -> str:
    text = content if isinstance(content, str) else _text(content)
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def _delete(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{named(str(error.filename))}: {error.strerror}"
    return " ".join(str(error).split())
