"""The devices that stalloc serves, and the compiled module that puts it behind torch."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch

from stalloc import _compat, _core
from stalloc.errors import StallocError

if TYPE_CHECKING:
    from collections.abc import Callable


class _TorchModule(Protocol):
    TORCH_VERSION: str

    def install_cpu(self) -> None: ...
    def uninstall_cpu(self) -> None: ...
    def install_meta(self) -> None: ...
    def uninstall_meta(self) -> None: ...
    def connect_compat(self) -> None: ...


class _CudaModule(Protocol):
    TORCH_VERSION: str

    def install(self, device: int) -> None: ...
    def uninstall(self) -> bool: ...
    def record_exactly(self, exact: bool) -> None: ...
    def empty_cache(self, device: int) -> None: ...
    def note(self, device: int) -> None: ...


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Adapter:
    """One device: its runtime, and how it gets in front of torch's allocator.

    Attributes:
        name: Of the device, as torch has it: "cpu", "cuda:1".
        install: Puts stalloc in front.
        uninstall: Takes it out again, as soon as no block needs it.
        give_back: Lets torch's allocator give back what it has cached.
        refresh: Tells the runtime what torch's allocator holds, where that is the fallback.
        record_exactly: Whether requests that are recorded bypass torch's cache.
    """

    name: str
    runtime: _core.Runtime
    install: Callable[[], None]
    uninstall: Callable[[], object]
    give_back: Callable[[], object] = _nothing
    refresh: Callable[[], None] = _nothing
    record_exactly: Callable[[bool], None] = lambda exact: None


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


def torch_module() -> _TorchModule:
    """The compiled module for torch.

    Raises:
        StallocError: If it does not fit the torch that is running.
    """
    return cast("_TorchModule", _load("_torch"))


def adapter(device: torch.device | str) -> Adapter:
    """The adapter of a device: "cpu", "meta", or a GPU; "cuda" is the current one.

    Raises:
        StallocError: If stalloc does not serve the device, or was built against another torch.
    """
    device = torch.device(device)
    if device.type == "cuda":
        return _cuda(device)
    if device.type == "cpu":
        module = torch_module()
        return Adapter("cpu", _core.runtime("cpu"), module.install_cpu, module.uninstall_cpu)
    if device.type == "meta":
        module = torch_module()
        return Adapter("meta", _core.runtime("meta"), module.install_meta, module.uninstall_meta)
    raise StallocError(
        f"stalloc does not serve device '{device.type}'; it serves 'cpu' and 'cuda', and profiles "
        "'meta'"
    )


def _cuda(device: torch.device) -> Adapter:
    if _compat.installed():
        index = torch.cuda.current_device() if device.index is None else device.index
        # torch keeps a pluggable allocator for good: nothing to put in or take out.
        runtime = _compat.runtime(index)
        return Adapter(
            f"cuda:{index}",
            runtime,
            _nothing,
            _nothing,
            give_back=runtime.release_cached,
            record_exactly=partial(_core.compat_record_exactly, index),
        )
    if torch.version.cuda is None:
        raise StallocError(
            f"this torch ({torch.__version__}) is no CUDA build, so there is no device '{device}' "
            "to serve; install a CUDA build of torch, then stalloc again"
        )
    if not torch.cuda.is_available():
        raise StallocError(f"torch finds no GPU, so there is no device '{device}' to serve")
    current = torch.cuda.current_device()  # initialises CUDA, too
    index = current if device.index is None else device.index
    module = cast("_CudaModule", _load("_torch_cuda"))
    # The runtime comes to be with the first installation.
    module.install(index)
    return Adapter(
        f"cuda:{index}",
        _core.runtime(f"cuda:{index}"),
        lambda: module.install(index),
        module.uninstall,
        lambda: module.empty_cache(index),
        lambda: module.note(index),
        module.record_exactly,
    )


def device_of(model: torch.nn.Module | None, device: torch.device | str | None) -> torch.device:
    """The device to work on: the one named, else the model's, else the CPU.

    Raises:
        TypeError: If the model is no module.
        StallocError: If torch knows no such device, or the model's parameters lie on several
            devices and none is named.
    """
    check_model(model)
    if device is not None:
        try:
            return torch.device(device)
        except RuntimeError as e:
            raise StallocError(f"there is no device {device!r}: {e}") from e
    devices = {str(p.device) for p in model.parameters()} if model is not None else set()
    if len(devices) > 1:
        raise StallocError(
            f"the model's parameters lie on {', '.join(sorted(devices))}: name the device to plan "
            "for"
        )
    return torch.device(devices.pop() if devices else "cpu")


def check_model(model: object) -> None:
    """Raises TypeError unless `model` is a module, or None."""
    if model is not None and not isinstance(model, torch.nn.Module):
        raise TypeError(f"`model` is a torch.nn.Module or None, not {type(model).__name__}")


def planned_device() -> str | None:
    """The device on which a plan is in force in this process."""
    return next((name for name in _core.runtimes() if _core.runtime(name).enabled), None)
