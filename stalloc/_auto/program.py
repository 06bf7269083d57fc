"""Names the program of a kept plan: everything that changes its requests and is known in advance.

`cache` distinguishes batches: a plan knows the inputs that it was recorded with. Options of the
script, such as recomputation or the optimizer, may make a plan that does not fit. The run then
departs from the plan, which costs memory for a few iterations.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import torch

import stalloc
from stalloc import _compat
from stalloc.hooks import model_signature
from stalloc.ranks import rank, world_size

Program: TypeAlias = Mapping[str, str]
"""Facts by name, each in words."""

_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
)


def running_program(model: torch.nn.Module, device: torch.device) -> Program:
    """The program of this rank; to be called where the model's forward begins."""
    return {
        "stalloc": stalloc.__version__,
        "torch": torch.__version__,
        "device": _device(device),
        "rank": f"{rank()} of {world_size()}",
        "script": _script(),
        "model": model_signature(model),
        "types": _types(device),
        "settings": _settings(device),
    }


def _script() -> str:
    """The main module: its file's name, and a hash of its content."""
    path: str | None = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None:
        return ""
    try:
        content = Path(path).read_bytes()
    except OSError:  # such as a module in a zip file
        return os.path.basename(path)
    return f"{os.path.basename(path)} {hashlib.sha256(content).hexdigest()[:10]}"


def _device(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    properties = torch.cuda.get_device_properties(device)
    mode = "compat" if _compat.installed() else "native"
    return f"{properties.name}, {properties.total_memory} B, {mode} mode"


def _types(device: torch.device) -> str:
    types = str(torch.get_default_dtype())
    if torch.is_autocast_enabled(device.type):
        types += f", autocast to {torch.get_autocast_dtype(device.type)}"
    return types


def _settings(device: torch.device) -> str:
    settings = {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul": torch.get_float32_matmul_precision(),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
    }
    # Kernels on the CPU have buffers for each thread.
    if device.type == "cpu":
        settings["threads"] = torch.get_num_threads()
    variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return ", ".join(f"{name}={value}" for name, value in (settings | variables).items())
