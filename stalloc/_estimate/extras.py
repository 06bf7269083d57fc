"""The memory that a run holds beside torch's allocator, and the libraries that request from it.

    reserved by torch's allocator   tensors, and the workspaces of cuBLAS
    beside it                       CUDA's context with the loaded kernels, NCCL (`nccl`)
    a range of its own              workspaces of cuDNN, which differ from kernel to kernel

The workspaces are requests of the trace: torch makes them at the first matrix product of each
thread. Two threads multiply, the one that trains and autograd's. Sizes are torch's own defaults:
`getChosenWorkspaceSize` in aten/src/ATen/cuda/CublasHandlePool.cpp (2 x 4096 KiB + 8 x 16 KiB; on
Hopper and Blackwell 8 x 4096 KiB), and CUBLAS_WORKSPACE_CONFIG overrides them.

Compiled code decides some things by trials on the GPU (`stalloc._estimate.compiled`). The allocator
caches the memory of a trial, and so it is an extra, too.

The context is a range: it depends on the driver and on how many kernels the program has loaded
(CUDA_MODULE_LOADING=LAZY since CUDA 11.7).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

_MIB = 1 << 20
_KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class Extra:
    """Memory that no tensor holds.

    Attributes:
        name: Its holder.
        low: The least, in bytes.
        high: The most.
        source: The origin of the figures.
    """

    name: str
    low: int
    high: int
    source: str


# Bytes of a context after the first kernels, with lazily loaded modules, by major capability. The
# upper ends have the kernels of cuBLAS, cuDNN and attention loaded, too.
_CONTEXTS = {
    7: (250, 460),
    8: (220, 520),
    9: (390, 720),
    10: (450, 900),
    12: (300, 700),
}
_CONTEXT_SOURCE = (
    "estimated, not measured: a process's memory in nvidia-smi beside what torch has reserved, for "
    "CUDA 12 with lazily loaded modules"
)


def context(capability: tuple[int, int]) -> Extra:
    """CUDA's context and the kernels that are loaded."""
    low, high = _CONTEXTS.get(capability[0], (220, 900))
    return Extra("CUDA context and kernels", low * _MIB, high * _MIB, _CONTEXT_SOURCE)


def cudnn(convolved: int) -> Extra | None:
    """Workspaces of convolutions, of which the largest takes so many bytes; None without any."""
    if not convolved:
        return None
    source = (
        "estimated: at most the input, the weight and the result of the largest convolution once "
        "more, in the layout of a kernel; cuDNN may take more where there is room, and torch tries "
        "another kernel where there is not (aten/src/ATen/native/cudnn/Conv_v8.cpp)"
    )
    return Extra("cuDNN's workspaces", 0, convolved, source)


_CLEARED = 256 * _MIB  # torch/_inductor/runtime/benchmarking.py: L2_cache_size


def compiled(padded: int) -> list[Extra]:
    """The memory of compiled code's trials, and of the largest product that it may pad."""
    trials = (
        "at most: the buffer by which Inductor clears the GPU's cache between trials of kernels, "
        "as large as the cache, or 256 MiB (torch/_inductor/runtime/benchmarking.py)"
    )
    copies = (
        "at most: the copies of the largest product whose sizes are not aligned. Inductor tries "
        "whether padding is faster (torch/_inductor/fx_passes/pad_mm.py)"
    )
    extras = [Extra("torch.compile's trials", 0, _CLEARED, trials)]
    return extras + ([Extra("torch.compile's padding", 0, padded, copies)] if padded else [])


def cublas_workspace(capability: tuple[int, int]) -> int:
    """Bytes of the workspace that torch requests for cuBLAS, for each thread that multiplies."""
    text = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    parts = re.findall(r":(\d{1,9}):(\d{1,9})", text)
    if parts:
        return sum(int(size) * int(count) for size, count in parts) * _KIB
    if capability[0] >= 9:
        return 8 * 4096 * _KIB
    return 2 * 4096 * _KIB + 8 * 16 * _KIB
