"""Requests of libraries, whose sizes are constants: workspaces and buffers.

They do not depend on the allocator. On the pretended GPU torch itself requests the workspaces of
cuBLAS; NCCL's buffers, which no allocator of torch's sees, are taken of the device beside it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from configs import Config, Overlap

from stalloc._estimate.extras import cublas_workspace

CAPABILITY = (9, 0)
"""Of the pretended GPU."""

# src/include/device.h and src/init.cc of github.com/NVIDIA/nccl
_STEPS, _CHANNELS = 8, 32
_SIMPLE = 1 << 22  # NCCL_BUFFSIZE's default
_LL = 8 * 512 * _STEPS * 16  # lines a thread, threads, steps, bytes of a line
_LL128 = 120 * 640 * _STEPS * 8  # elements a thread, threads, steps, bytes of an element


@dataclass(frozen=True)
class Fixed:
    """One request.

    Attributes:
        name: Its purpose.
        size: Bytes.
        source: The documents or files that say so.
    """

    name: str
    size: int
    source: str


CUBLAS = Fixed(
    "workspace of cuBLAS, for each thread and stream that multiplies",
    cublas_workspace(CAPABILITY),
    "aten/src/ATen/cuda/CublasHandlePool.cpp of torch, after "
    "https://docs.nvidia.com/cuda/cublas/#cublassetworkspace",
)
NCCL = Fixed(
    "buffers of an NCCL communicator: a ring that receives in 32 channels, under all three "
    "protocols",
    _CHANNELS * (_SIMPLE + _LL + _LL128),
    "defaults in src/init.cc and src/include/device.h of github.com/NVIDIA/nccl; NCCL_BUFFSIZE in "
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
)


def communicators(config: Config) -> int:
    """The number of communicators of a rank: for each kind of parallelism that it has."""
    if config.overlap is Overlap.NONE:
        return 0
    parallelism = config.parallelism
    sizes = (parallelism.tensor, parallelism.pipeline, parallelism.data, parallelism.expert)
    return sum(size > 1 for size in sizes)


def take_buffers(config: Config) -> int:
    """Takes the memory of the communicators of the device. Returns its bytes.

    Raises:
        MemoryError: The device has no room for it.
    """
    count = communicators(config)
    for _ in range(count):
        if ctypes.CDLL(None).cudaMalloc(
            ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(NCCL.size)
        ):
            raise MemoryError(NCCL.name)
    return count * NCCL.size
