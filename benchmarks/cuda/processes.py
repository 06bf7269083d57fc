"""Runs a benchmark's allocators in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def in_a_process(script: str, *args: str, **environment: str) -> dict[str, object]:
    """The JSON that the script prints with these arguments, as its last line."""
    done = subprocess.run(
        [sys.executable, script, *args],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result
