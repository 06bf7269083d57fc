"""The devices that stalloc serves, and how each is put behind torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from stalloc import _compat, _core, _meta_kernels, _profilers
from stalloc._torch_modules import cuda_module, torch_module
from stalloc.errors import StallocError

if TYPE_CHECKING:
    from collections.abc import Callable


SMALL = 64
"""Bytes of the CPU's alignment: kernels of the CPU put numbers into tensors of fewer bytes."""

_GRAPH_REGISTER = "NCCL_GRAPH_REGISTER"
"""NCCL's variable. Without it, NCCL registers what captured graphs send and receive."""


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Adapter:
    """One device: its runtime, and how it gets in front of torch's allocator.

    Attributes:
        name: The device in torch's notation: "cpu", "cuda:1".
        install: Puts stalloc in front.
        uninstall: Takes it out again, as soon as no block needs it.
        give_back: Lets torch's allocator give back its cached memory.
        refresh: Reports the memory of torch's allocator to the runtime, if it is the fallback.
        record_exactly: Lets recorded requests bypass torch's cache, or not.
        follow_order: Records the order of the device's streams from now on, or no more.
        is_native: torch's own allocator of a GPU is the fallback.
    """

    name: str
    runtime: _core.Runtime
    install: Callable[[], None]
    uninstall: Callable[[], object]
    give_back: Callable[[], object] = _nothing
    refresh: Callable[[], None] = _nothing
    record_exactly: Callable[[bool], None] = lambda exact: None
    follow_order: Callable[[bool], None] = lambda follows: None
    is_native: bool = False


def adapter(device: torch.device | str) -> Adapter:
    """The adapter of a device: "cpu", "meta", or a GPU; "cuda" is the current one.

    "pinned" is pinned host memory: its adapter has figures, and installs nothing.

    Raises:
        StallocError: If stalloc does not serve the device, or was built against another torch.
    """
    if device == "pinned":
        if device not in _core.runtimes():
            raise StallocError(
                "no pinned memory was profiled or planned in this process: "
                "stalloc.profile(..., pinned=True), stalloc.enable(..., pinned=...)"
            )
        return Adapter(device, _core.runtime(device), _nothing, _nothing)
    device = torch.device(device)
    if device.type == "cuda":
        return _cuda(device)
    if device.type == "cpu":
        module = torch_module()
        return Adapter("cpu", _core.runtime("cpu"), module.install_cpu, module.uninstall_cpu)
    if device.type == "meta":
        return Adapter(
            "meta", _core.runtime("meta"), _meta_kernels.install, _meta_kernels.uninstall
        )
    raise StallocError(
        f"stalloc does not serve device '{device.type}'; it serves 'cpu' and 'cuda', and profiles "
        "'meta'"
    )


def pretended_cpu() -> Adapter:
    """The adapter of a CPU that only pretends: it records the meta device's requests as the CPU's.

    Tensors with memory, such as those of a data set, are recorded beside them.
    """
    module = torch_module()

    def install() -> None:
        module.install_cpu()
        module.record_meta_on_cpu(SMALL)
        _meta_kernels.install("cpu")

    def uninstall() -> None:
        _meta_kernels.uninstall()
        module.record_meta_on_cpu(0)
        module.uninstall_cpu()

    return Adapter("cpu", _core.runtime("cpu"), install, uninstall)


def _cuda(device: torch.device) -> Adapter:
    if _compat.installed():
        index = torch.cuda.current_device() if device.index is None else device.index
        # torch keeps a pluggable allocator permanently: nothing to install or uninstall.
        runtime = _compat.runtime(index)
        return Adapter(
            f"cuda:{index}",
            runtime,
            _nothing,
            _nothing,
            give_back=runtime.release_cached,
            record_exactly=partial(_core.compat_record_exactly, index),
            follow_order=partial(_follow_order, index),
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
    module = cuda_module()
    # The runtime comes to be with the first installation.
    module.install(index, _has_strange_trackers())
    _profilers.follow(module.note_profiler)
    runtime = _core.runtime(f"cuda:{index}")
    return Adapter(
        f"cuda:{index}",
        runtime,
        lambda: module.install(index),
        module.uninstall,
        lambda: module.empty_cache(index),
        lambda: module.note(index),
        module.record_exactly,
        partial(_follow_order, index),
        is_native=True,
    )


def _follow_order(index: int, follows: bool) -> None:
    """Reports the order of a GPU's streams to its recorder, or no more.

    Compat mode may run where there is no module of native mode. Then nothing is known of that
    order, and streams share no addresses.
    """
    try:
        module = cuda_module()
    except StallocError:
        return
    module.follow_program_order(index if follows else -1)


def registers_memory() -> bool:
    """True if NCCL is to register memory of torch's allocator.

    Either all of it, or the tensors that captured graphs send and receive.
    """
    return _registers_all() or os.environ.get(_GRAPH_REGISTER, "") not in ("", "0")


def _registers_all() -> bool:
    """True if torch registers the memory of its allocator with NCCL's communicators."""
    switches = (
        "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
        "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
    )
    return any(
        os.environ.get(name, "").lower() in ("1", "y", "yes", "t", "true") for name in switches
    )


def keep_graphs_unregistered() -> None:
    """Tells NCCL not to register what captured graphs send and receive, unless the user has chosen.

    Call it before virtual memory is used. NCCL takes the allocation around an address for the whole
    tensor, and expects it to stay. In virtual memory it is one chunk of many, and the memory behind
    an address may change: graphs would hang, or other processes write to memory that has gone. NCCL
    reads the variable when a communicator connects, or at the first captured call.
    """
    if not os.environ.get(_GRAPH_REGISTER):
        os.environ[_GRAPH_REGISTER] = "0"


def _has_strange_trackers() -> bool:
    """True if NCCL's communicators may register memory and not learn when stalloc returns it.

    torch attaches their trackers with the first process group of NCCL. Those from before stalloc is
    first installed are known to torch's allocator alone.
    """
    if not _registers_all():
        return False
    if _core.runtimes()[2:]:
        return False  # installed before: what was to be found then is known
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def device_of(model: torch.nn.Module | None, device: torch.device | str | None) -> torch.device:
    """The device to use: the named one, else the model's, else the CPU.

    Raises:
        TypeError: If the model is no module.
        StallocError: If torch knows no such device, or the model's parameters lie on several
            devices and no device is named.
    """
    check_model(model)
    if device is not None:
        try:
            return torch.device(device)
        except RuntimeError:
            raise StallocError(
                f"there is no device {device!r}: give cpu, cuda or cuda:1; or meta to profile "
                "without memory"
            ) from None
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
