"""Compat mode: stalloc behind torch's documented pluggable allocator interface.

For any torch that serves GPUs, CUDA's or HIP's. torch takes such an allocator only before the GPU
is first used, and permanently: without a plan, stalloc's own caching allocator serves.

torch raises for its memory statistics under a pluggable allocator. The functions that it asks are
replaced here by ones that give stalloc's figures, in torch's shape, so that all of
`torch.cuda.memory_*` and `torch.accelerator.*` that rest on them work.
"""

from __future__ import annotations

import ctypes
import warnings
from pathlib import Path
from typing import Any

import torch

from stalloc import _core
from stalloc._torch_modules import served_versions, torch_module
from stalloc.errors import StallocError, StallocWarning

# Beside the other compiled parts: an editable package has them in another place than this file.
_LIBRARY = Path(_core.__file__).with_name("libstalloc_compat.so")

# torch's setters of hooks, and the functions of pluggable.h they take.
_HOOKS = {
    "set_reset_fn": "stalloc_reset",
    "set_memory_fraction_fn": "stalloc_memory_fraction",
    "set_base_alloc_fn": "stalloc_base_allocation",
    "set_record_stream_fn": "stalloc_record_stream",
    "set_begin_allocate_to_pool": "stalloc_begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "stalloc_end_allocate_to_pool",
    "set_release_pool": "stalloc_release_pool",
}

# The allocator that torch has, kept alive for as long as the process.
_allocator: torch.cuda.memory.CUDAPluggableAllocator | None = None


def installed() -> bool:
    """True if stalloc serves torch's requests for GPU memory in this process."""
    return _allocator is not None


def install_compat() -> None:
    """Makes stalloc torch's allocator for GPUs, for the rest of the process.

    Without a plan, requests are served by a caching allocator of stalloc's own. No-op when it is
    installed already.

    Raises:
        StallocError: If this torch has no GPU support, the GPU has been used already, or torch
            lacks a hook without which memory would be corrupted.
    """
    global _allocator
    if _allocator is not None:
        return
    if torch.version.cuda is None and torch.version.hip is None:
        raise StallocError(
            f"compat mode serves GPUs, and torch {torch.__version__} is built for none; install a "
            "CUDA or ROCm build of torch, or use stalloc on the CPU"
        )
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise StallocError(
            "compat mode must be chosen before the GPU is first used, and torch has initialised it "
            "already: call stalloc.install_compat(), or stalloc.enable(plan, mode='compat'), "
            "before anything is moved to the GPU or asked of it; or use native mode, which needs "
            "no such order"
        )
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        str(_LIBRARY), "stalloc_malloc", "stalloc_free"
    )
    _set_hooks(allocator.allocator())  # type: ignore[no-untyped-call]
    _connect_torch()
    try:
        torch.cuda.memory.change_current_allocator(allocator)
    except RuntimeError as e:
        raise StallocError(
            f"torch does not take another allocator for GPUs any more ({e}); choose compat mode "
            "before anything else sets or uses one"
        ) from e
    _allocator = allocator
    _replace_statistics()


def runtime(device: int) -> _core.Runtime:
    """The runtime of a GPU.

    Raises:
        StallocError: If there is no such GPU.
    """
    return _core.compat_runtime(device)


def _connect_torch() -> None:
    """Gives compat mode the services of torch that only a compiled module can ask for."""
    try:
        module = torch_module()
    except StallocError:
        warnings.warn(
            f"no module of this stalloc fits torch {torch.__version__}; they are for "
            f"{', '.join(served_versions())}. Compat mode works without: memory that runs out is a "
            "RuntimeError instead of torch.OutOfMemoryError, the requests of every thread count as "
            "training's, and streams share no addresses",
            StallocWarning,
            stacklevel=3,
        )
        return
    module.connect_compat()


def _set_hooks(allocator: Any) -> None:
    library = ctypes.CDLL(str(_LIBRARY))
    for setter, function in _HOOKS.items():
        set_hook = getattr(allocator, setter, None)
        if set_hook is None:
            raise StallocError(
                f"torch {torch.__version__} has no {setter} for pluggable allocators, without "
                "which memory would be corrupted silently; use native mode"
            )
        set_hook(ctypes.cast(getattr(library, function), ctypes.c_void_p).value)


def _replace_statistics() -> None:
    """Lets torch's statistics ask stalloc. Names that a version of torch lacks are left out."""
    replacements = {
        "_cuda_memoryStats": _statistics,
        "_cuda_resetPeakMemoryStats": _core.compat_reset_peaks,
        "_cuda_resetAccumulatedMemoryStats": _core.compat_reset_totals,
        "_cuda_memorySnapshot": _snapshot,
        "_cuda_getMemoryFraction": _core.compat_fraction,
        "_cuda_isHistoryEnabled": lambda: False,
        "_accelerator_isAllocatorInitialized": torch.cuda.is_initialized,
        "_accelerator_getDeviceStats": _statistics,
        "_accelerator_resetPeakStats": _core.compat_reset_peaks,
        "_accelerator_resetAccumulatedStats": _core.compat_reset_totals,
        "_accelerator_emptyCache": torch.cuda.empty_cache,
    }
    for name, function in replacements.items():
        if hasattr(torch._C, name):
            setattr(torch._C, name, function)


def _statistics(device: int) -> dict[str, Any]:
    return _core.compat_statistics(device)


def _snapshot(pool: tuple[int, ...] | None = None, *_: Any, **__: Any) -> dict[str, Any]:
    """The state of memory, as torch gives it. `pool` begins with an id, (0, 0) being all."""
    segments = _core.compat_segments()
    if pool is not None and tuple(pool[:2]) != (0, 0):
        segments = [s for s in segments if tuple(s["segment_pool_id"]) == tuple(pool[:2])]
    return {
        "segments": segments,
        "device_traces": [[] for _ in range(torch.cuda.device_count())],
        "allocator_settings": {},
        "external_annotations": [],
    }
