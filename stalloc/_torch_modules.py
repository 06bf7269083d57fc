"""The compiled modules that link torch, loaded on first use."""

from __future__ import annotations

import importlib
from typing import Any, Protocol, cast

import torch

from stalloc.errors import StallocError


class TorchModule(Protocol):
    """Module `_torch`: the CPU, the meta device and compat mode."""

    TORCH_VERSION: str

    def install_cpu(self) -> None: ...
    def uninstall_cpu(self) -> None: ...
    def install_meta(self) -> None: ...
    def uninstall_meta(self) -> None: ...
    def mute_meta(self, mute: bool, /) -> None: ...
    def connect_compat(self) -> None: ...


class CudaModule(Protocol):
    """Module `_torch_cuda`: native mode."""

    TORCH_VERSION: str

    def install(self, device: int, hidden: bool = False) -> None: ...
    def uninstall(self) -> bool: ...
    def record_exactly(self, exact: bool) -> None: ...
    def empty_cache(self, device: int) -> None: ...
    def note(self, device: int) -> None: ...


def _load(name: str) -> Any:
    running = torch.__version__.split("+")[0]
    remedy = "install stalloc again in this environment: pip install --no-build-isolation ..."
    try:
        module = importlib.import_module(f"stalloc.{name}")
    except ImportError as e:
        raise StallocError(
            f"stalloc's torch module {name} does not load with torch {running} ({e}); {remedy}"
        ) from e
    if running != module.TORCH_VERSION:
        raise StallocError(
            f"stalloc was built against torch {module.TORCH_VERSION} and torch {running} is "
            f"running; {remedy}"
        )
    return module


def torch_module() -> TorchModule:
    """The compiled module for torch.

    Raises:
        StallocError: It does not fit the torch that is running.
    """
    return cast("TorchModule", _load("_torch"))


def cuda_module() -> CudaModule:
    """The compiled module for native mode.

    Raises:
        StallocError: It does not fit the torch that is running.
    """
    return cast("CudaModule", _load("_torch_cuda"))
