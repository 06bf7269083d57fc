"""Smoke test of native mode beside a CPU build of torch: profile, plan, serve, depart, end.

Native mode's module is the real one. CUDA's runtime library and torch's library for CUDA are
stand-ins (tests/standin, c10_cuda.cpp), so there are requests but no tensors. tests/cuda has the
tests with torch's own allocator, which need a CUDA build of torch.

Usage, which scripts/test_native.sh knows: python smoke.py LIBC10_CUDA
"""

from __future__ import annotations

import ctypes
import sys
import warnings
from pathlib import Path
from unittest import mock

import torch

import stalloc
from stalloc import _core, hooks
from stalloc._torch_modules import cuda_module

sys.path.append(str(Path(__file__).parent.parent / "cuda"))
import standin

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = (512, 3 * KIB, 20 * MIB, 7 * MIB, 700, MIB)
PROFILED, PLANNED = 3, 4


class Device:
    """Requests memory as tensors do, and checks that no two live blocks overlap."""

    def __init__(self, library: str) -> None:
        self._torch = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        self._torch.smoke_allocate.restype = ctypes.c_void_p
        for name in ("reserved", "shown"):
            getattr(self._torch, f"smoke_{name}").restype = ctypes.c_int64
        self._live: dict[int, int] = {}

    def take(self, size: int) -> int | None:
        """A block's address, or None if memory has run out."""
        address: int | None = self._torch.smoke_allocate(ctypes.c_size_t(size))
        if address is None:
            return None
        for other, other_size in self._live.items():
            assert address + size <= other or other + other_size <= address, "two blocks overlap"
        self._live[address] = size
        return address

    def free(self, address: int) -> None:
        del self._live[address]
        self._torch.smoke_free(ctypes.c_void_p(address))

    def reserved(self) -> int:
        """torch.cuda.memory_reserved()"""
        return int(self._torch.smoke_reserved())

    def shown(self) -> int:
        """The bytes of the pools in a snapshot."""
        return int(self._torch.smoke_shown())


def iteration(device: Device, factor: int = 1) -> list[int]:
    """A step of training; returns the addresses of its activations."""
    with hooks.phase("forward"):
        activations = [device.take(factor * size) for size in SIZES]
    addresses = [address for address in activations if address is not None]
    assert len(addresses) == len(SIZES)
    with hooks.phase("backward"):
        for address, size in zip(reversed(addresses), reversed(SIZES), strict=True):
            gradient = device.take(factor * size)
            assert gradient is not None
            device.free(address)
            device.free(gradient)
    stalloc.step()
    return addresses


def serve(device: Device, plan: stalloc.Plan) -> None:
    """Serves the plan, and what departs from it."""
    for _ in range(PLANNED - 1):
        iteration(device)
    stats = stalloc.memory_stats("cuda:0")
    before = stats["hits"]
    assert before > 0, "nothing was served from the plan"
    served = [iteration(device) for _ in range(2)]
    assert served[0] == served[1], "two iterations differ in their addresses"
    assert max(served[0]) - min(served[0]) < plan.pool
    assert device.reserved() == device.shown() == plan.pool
    assert stalloc.memory_stats("cuda:0")["hits"] - before == 4 * len(SIZES)
    iteration(device, factor=3)  # what departs is served, in the pool or beside it
    assert device.take(200 * GIB) is None
    assert served[0] == iteration(device), "the plan is in force again"
    _core.runtime("cuda:0").check()


def main() -> None:
    device = Device(sys.argv[1])
    with (
        mock.patch.object(torch.version, "cuda", "13.0"),
        mock.patch.object(torch.cuda, "is_available", return_value=True),
        mock.patch.object(torch.cuda, "current_device", return_value=0),
    ):
        warnings.simplefilter("error")
        begin = standin.used()
        with stalloc.profile(device="cuda") as profile:
            for _ in range(PROFILED):
                iteration(device)
        assert standin.used() == begin, "a profile leaves no memory behind"
        plan = profile.plan()
        assert plan.pool >= max(SIZES)
        with stalloc.enable(plan):
            serve(device, plan)
            kept = device.take(MIB)
        assert kept is not None
        device.free(kept)
        assert cuda_module().uninstall(), "native mode cannot leave"
        assert device.reserved() == 0
    assert standin.used() == begin
    assert (standin.hazards(), standin.misuses()) == (0, 0), standin.complaint()
    print(f"native mode serves {plan.pool} bytes beside torch {torch.__version__}")


if __name__ == "__main__":
    main()
