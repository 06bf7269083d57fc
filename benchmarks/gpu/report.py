"""The measurements, in a JSON file that is rewritten after each result.

A file that is there is gone on with, if it is of the same GPU, torch and commit: pieces of the work
may be done at different times.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]


def _commit() -> str:
    if shutil.which("git") is None:
        return "unknown"
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return head.stdout.strip() or "unknown"


class Report:
    """Results, each found by the value of a key. Without a path nothing is written."""

    def __init__(self, path: Path | None, anew: bool = False) -> None:
        self.path = path.with_suffix(".json") if path else None
        gpu = torch.cuda.is_available()
        self.document: dict[str, Any] = {
            "device": torch.cuda.get_device_name() if gpu else "cpu",
            "memory": torch.cuda.get_device_properties(0).total_memory if gpu else 0,
            "machine": platform.machine(),
            "torch": torch.__version__,
            "commit": _commit(),
            "results": [],
        }
        if self.path and self.path.exists() and not anew:
            before = json.loads(self.path.read_text())
            if all(before.get(key) == self.document[key] for key in ("device", "torch", "commit")):
                self.document["results"] = before["results"]

    def find(self, key: str, value: str) -> dict[str, Any] | None:
        """The result with this value, if there is one."""
        return next((r for r in self.document["results"] if r.get(key) == value), None)

    def put(self, key: str, result: dict[str, Any]) -> None:
        """Adds a result, or replaces the one with the same value of `key`, and writes."""
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
