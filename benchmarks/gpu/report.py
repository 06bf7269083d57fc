"""The measurements, in a JSON file that is rewritten after each result.

A file that is there is gone on with, if it is of the same GPU, torch and commit: pieces of the work
may be done at different times.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "STALLOC_COMMIT"  # where the sources lie without their history


def _commit() -> str:
    if COMMIT in os.environ:
        return os.environ[COMMIT]
    if shutil.which("git") is None:
        return "unknown"
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return head.stdout.strip() or "unknown"


def _driver() -> str:
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    if shutil.which(asked[0]) is None:
        return "unknown"
    said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    return said.splitlines()[0].strip() if said.strip() else "unknown"


class Report:
    """Results, each found by the value of a key. Without a path nothing is written."""

    def __init__(self, path: Path | None, anew: bool = False) -> None:
        self.path = path.with_suffix(".json") if path else None
        self._lock = threading.RLock()
        gpu = torch.cuda.is_available()
        self.document: dict[str, Any] = {
            "device": torch.cuda.get_device_name() if gpu else "cpu",
            "memory": torch.cuda.get_device_properties(0).total_memory if gpu else 0,
            "machine": platform.machine(),
            "torch": torch.__version__,
            "driver": _driver() if gpu else "",
            "commit": _commit(),
            "results": [],
        }
        if self.path and self.path.exists() and not anew:
            before = json.loads(self.path.read_text())
            if all(before.get(key) == self.document[key] for key in ("device", "torch", "commit")):
                self.document["results"] = before["results"]

    def find(self, key: str, value: str) -> dict[str, Any] | None:
        """The result with this value, if there is one."""
        with self._lock:
            return next((r for r in self.document["results"] if r.get(key) == value), None)

    def put(self, key: str, result: dict[str, Any]) -> None:
        """Adds a result, or replaces the one with the same value of `key`, and writes."""
        with self._lock:
            results = self.document["results"]
            before = self.find(key, result[key])
            if before is None:
                results.append(result)
            elif before is not result:
                results[results.index(before)] = result
            if self.path:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                partial = self.path.with_suffix(".part")
                partial.write_text(json.dumps(self.document, indent=2) + "\n")
                partial.replace(self.path)

    def update(self, key: str, value: str, part: str, entries: dict[str, Any]) -> None:
        """Adds entries to a part of the result with this value, and writes."""
        with self._lock:
            result = dict(self.find(key, value) or {key: value})
            result[part] = result.get(part, {}) | entries
            self.put(key, result)
