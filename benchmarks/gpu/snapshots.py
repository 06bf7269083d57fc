"""Memory snapshots of real runs, without the paths and the depth of stack that nobody reads."""

from __future__ import annotations

import gzip
import io
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

FRAMES = 24  # the innermost, of each event
ENTRIES = 1_000_000
# The end of a path that tells which file it is, on any machine.
KNOWN = re.compile(r".*/((?:site-packages|dist-packages|python3\.\d+)/|(?=benchmarks/))")


@contextmanager
def recorded_history(path: str) -> Iterator[None]:
    """Records torch's memory history and leaves the snapshot, gzipped; "" does nothing."""
    if not path:
        yield
        return
    torch.cuda.memory._record_memory_history(max_entries=ENTRIES, stacks="python")
    try:
        yield
        save(torch.cuda.memory._snapshot(), path)
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def save(snapshot: dict[str, Any], path: str) -> None:
    """Writes a snapshot, stripped; equal frames are one object, which is what keeps it small."""
    frames: dict[tuple[str, int, str], dict[str, Any]] = {}
    stacks: dict[tuple[int, ...], list[dict[str, Any]]] = {}

    def kept(frame: dict[str, Any]) -> dict[str, Any]:
        key = (KNOWN.sub("", frame["filename"]), frame["line"], frame["name"])
        known = dict(zip(("filename", "line", "name"), key, strict=True))
        return frames.setdefault(key, known)

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: stack(part) if key == "frames" else strip(part)
                for key, part in value.items()
                if key != "time_us"
            }
        return [strip(part) for part in value] if isinstance(value, list) else value

    def stack(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        known = [kept(frame) for frame in found[:FRAMES]]
        return stacks.setdefault(tuple(map(id, known)), known)

    content = io.BytesIO()
    pickle.dump(strip(snapshot), content, protocol=4)
    Path(path).write_bytes(gzip.compress(content.getvalue(), 9, mtime=0))
