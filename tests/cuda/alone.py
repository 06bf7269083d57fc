"""Scripts that need a process of their own, because they end it, or must be the first in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

CONTENTS = {"STANDIN_CONTENTS": "1"}
"""The environment in which memory of the pretended GPU holds values."""


def run_alone(
    script: str, *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a script to which the modules of this folder are known."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=Path(__file__).parent,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def describe_tensor(tensors: Any, results: Any) -> None:
    """In another process: gets a tensor, and reports its shape and whether its memory is there."""
    import torch

    tensor = tensors.get()
    tensor.add_(1)  # the stand-in looks at the addresses
    torch.cuda.synchronize()
    results.put(tuple(tensor.shape))
