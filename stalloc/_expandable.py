"""Expandable segments of torch's allocator: if they may be used, and the switch.

Torch's allocator serves what a plan does not: batches larger than those profiled, what the loop
keeps, threads. Segments that expand hold such blocks with fewer holes between them than segments of
fixed sizes. They are virtual memory like the pool, and forbidden where the pool is plain memory.
"""

from __future__ import annotations

import os
import sys
import warnings

import torch

from stalloc._adapters import Adapter, keep_graphs_unregistered, registers_memory
from stalloc._plain_tensors import plain_tensors
from stalloc._torch_modules import cuda_module

_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_SETTER = "_accelerator_setAllocatorSettings"

_ENGINES = ("vllm", "sglang", "tensorrt_llm")
"""Modules of engines whose own collectives take handles of CUDA IPC of torch's tensors."""

_USUAL_PAGE, _LEAST_PAGE = 20, 12
"""MiB that an expandable segment of large blocks takes and gives at once: by default, and at least,
since torch wants more than 10, and a multiple of the 2 of the device."""

large_page = _USUAL_PAGE << 20
"""The same in bytes, of the segments that are expandable by stalloc."""

# The settings of torch's allocator that this has made; they are as good as none.
_own_settings = ""

# A switch is on, and another engine has the device.
_is_on = _is_away = False


class Switch:
    """Turns expandable segments on and off; blocks in other segments stay where they are.

    Args:
        adapter: That of a GPU in native mode.
    """

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._made = False

    def set(self, on: bool) -> None:
        """Sets the allocator of all devices. They stay off where they are forbidden."""
        global _is_on
        on = on and not is_forbidden()
        if on:
            keep_graphs_unregistered()
        _is_on = on
        _apply()
        if on and not self._made:
            self._made = True
            _make_segment(self._adapter.name)


def leave_to_engine(away: bool) -> None:
    """Lets new segments be plain memory while another engine takes the device.

    Engines share their memory with other processes, register it and put it to sleep, of which
    expandable segments allow little. The driver also takes many calls to give them back.
    """
    global _is_away
    if away == _is_away:
        return
    _is_away = away
    if _is_on:
        _apply()


def _apply() -> None:
    global _own_settings
    on = _is_on and not _is_away
    _own_settings = _set_expandable(on)
    cuda_module().note_expandable(on)


def _set_expandable(on: bool) -> str:
    """Turns expandable segments on or off, for all devices; returns torch's settings.

    Torch's smallest pages waste least at the ends of blocks. Versions without that setting have
    pages of 20 MiB.
    """
    global large_page
    set_allocator = getattr(torch._C, _SETTER)
    mebibytes = _LEAST_PAGE if on else _USUAL_PAGE
    settings = f"expandable_segments:{on},large_segment_size_mb:{mebibytes}"
    try:
        set_allocator(settings)
    except (ValueError, RuntimeError):
        settings = f"expandable_segments:{on}"
        set_allocator(settings)
        mebibytes = _USUAL_PAGE
    if on:
        large_page = mebibytes << 20
    return settings


def _make_segment(device: str) -> None:
    """Makes a segment, and gives it back: the first one may warn of a part of the driver.

    The part is one that sharing memory needs. The segment also shows how torch shares such memory.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool, device), plain_tensors():
            x = torch.empty(1, dtype=torch.uint8, device=device)
            cuda_module().note_virtual_block(x.data_ptr())
            del x  # or its memory outlives the pool, in torch's cache


def show_sharing() -> None:
    """Shows how torch shares virtual memory, where it has none: a pool of such memory may be used.

    Does nothing where torch's settings are the program's.
    """
    global _own_settings
    if not are_unset() or torch.cuda.is_current_stream_capturing():
        return
    before = _own_settings
    _set_expandable(True)
    try:
        _make_segment(f"cuda:{torch.cuda.current_device()}")
    finally:
        _own_settings = _set_expandable("True" in before)


def may_expand(adapter: Adapter) -> bool:
    """True if the program leaves it open, and nothing forbids virtual memory."""
    if not adapter.is_native or is_forbidden():
        return False
    return are_unset() and has_virtual_memory(adapter)


def are_unset() -> bool:
    """True if torch's allocator has its defaults, and takes settings while it runs."""
    if any(os.environ.get(name) for name in _VARIABLES):
        return False
    if torch.cuda.get_allocator_backend() != "native" or not hasattr(torch._C, _SETTER):
        return False
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    return settings.get("PYTORCH_CUDA_ALLOC_CONF") in ("", _own_settings)


def has_virtual_memory(adapter: Adapter) -> bool:
    """True if the device's driver has the calls for it."""
    has = adapter.runtime.keep_addresses(True)
    adapter.runtime.keep_addresses(None)  # the question sets it
    return has


def is_forbidden() -> bool:
    """True if NCCL is to register memory, or one of several processes has an inference engine.

    Such an engine reduces tensors between processes by kernels of its own, which take handles of
    CUDA IPC of torch's tensors. Expandable segments have none.
    """
    engine = has_several_processes() and any(name in sys.modules for name in _ENGINES)
    return engine or registers_memory()


def has_several_processes() -> bool:
    """True if the process is one of several that train together."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        return True
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return False
    return torch.distributed.get_world_size() > 1
