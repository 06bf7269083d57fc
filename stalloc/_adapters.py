"""The devices that stalloc serves, and the compiled module that puts it behind torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import torch

from stalloc import _core
from stalloc.errors import StallocError

if TYPE_CHECKING:
    from collections.abc import Callable


class _TorchModule(Protocol):
    TORCH_VERSION: str

    def install_cpu(self) -> None: ...
    def uninstall_cpu(self) -> None: ...
    def install_meta(self) -> None: ...
    def uninstall_meta(self) -> None: ...


@dataclass(frozen=True)
class Adapter:
    """One device: its runtime, and how it gets in front of torch's allocator."""

    runtime: _core.Runtime
    install: Callable[[], None]
    uninstall: Callable[[], None]


def _load() -> _TorchModule:
    running = torch.__version__.split("+")[0]
    remedy = "install stalloc again in this environment: pip install --no-build-isolation ..."
    try:
        from stalloc import _torch
    except ImportError as e:
        raise StallocError(
            f"stalloc's torch module does not load with torch {running} ({e}); {remedy}"
        ) from e
    module = cast("_TorchModule", _torch)
    if running != module.TORCH_VERSION:
        raise StallocError(
            f"stalloc was built against torch {module.TORCH_VERSION} and torch {running} is "
            f"running; {remedy}"
        )
    return module


def adapter(device: str) -> Adapter:
    """The adapter of a kind of device, "cpu" or "meta".

    Raises:
        StallocError: If stalloc does not serve the device, or was built against another torch.
    """
    if device == "cpu":
        module = _load()
        return Adapter(_core.runtime("cpu"), module.install_cpu, module.uninstall_cpu)
    if device == "meta":
        module = _load()
        return Adapter(_core.runtime("meta"), module.install_meta, module.uninstall_meta)
    raise StallocError(
        f"stalloc does not serve device '{device}' yet; it serves 'cpu', and profiles 'meta'"
    )


def device_of(model: torch.nn.Module | None, device: torch.device | str | None) -> torch.device:
    """The device to work on: the one named, else the model's, else the CPU.

    Raises:
        TypeError: If the model is no module.
        StallocError: If torch knows no such device, or the model's parameters lie on several kinds
            of device and none is named.
    """
    check_model(model)
    if device is not None:
        try:
            return torch.device(device)
        except RuntimeError as e:
            raise StallocError(f"there is no device {device!r}: {e}") from e
    kinds = {p.device.type for p in model.parameters()} if model is not None else set()
    if len(kinds) > 1:
        raise StallocError(
            f"the model's parameters lie on {', '.join(sorted(kinds))}: name the device to plan for"
        )
    return torch.device(kinds.pop() if kinds else "cpu")


def check_model(model: object) -> None:
    """Raises TypeError unless `model` is a module, or None."""
    if model is not None and not isinstance(model, torch.nn.Module):
        raise TypeError(f"`model` is a torch.nn.Module or None, not {type(model).__name__}")


def planned_device() -> str | None:
    """The device on which a plan is in force in this process."""
    return next((device for device in ("cpu",) if _core.runtime(device).enabled), None)
