"""What calls cost: the driver's, a request of torch, the release of a pool.

The driver's calls are made through its own library, since torch hides them.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

import stalloc

MIB = 1 << 20
CHUNKS = ((2 * MIB, 256), (16 * MIB, 64), (128 * MIB, 16), (1024 * MIB, 8))  # size, how many
BLOCKS = (2 * MIB, 128 * MIB, 1024 * MIB, 16384 * MIB)
KEPT, KEPT_SIZE = 24, 512 * MIB  # what a request's iteration holds besides
REQUESTS, ITERATIONS = 400, 9


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("meta", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


_ON_FIRST_GPU = _Location(1, 0)
_READ_AND_WRITE = 3


def measure() -> dict[str, Any]:
    """Microseconds of the driver's calls, nanoseconds of requests, milliseconds of a pool's."""
    torch.zeros(1, device="cuda")  # the context
    driver = ctypes.CDLL("libcuda.so.1")
    result: dict[str, Any] = {
        "virtual_us": {f"{s // MIB} MiB": _chunks(driver, s, n) for s, n in CHUNKS},
    }
    if hasattr(driver, "cuMemAlloc_v2"):
        result["plain_us"] = {f"{s // MIB} MiB": _block(driver, s) for s in BLOCKS}
    result["request_ns"] = {"torch": _request()}
    with stalloc.profile(device="cuda") as prof:
        for _ in range(3):
            _iteration()
    plan = prof.plan()
    torch.cuda.empty_cache()
    began = time.perf_counter()
    stalloc.enable(plan)
    enabled = time.perf_counter() - began
    _iteration()
    result["request_ns"]["stalloc"] = _request()
    away, back = [], []
    for _ in range(3):
        torch.cuda.synchronize()
        away.append(_timed(stalloc.release_pool))
        back.append(_timed(stalloc.acquire_pool))
    result["pool_ms"] = {
        "bytes": plan.pool,
        "enable": round(1e3 * enabled, 2),
        "release_pool": round(1e3 * median(away), 2),
        "acquire_pool": round(1e3 * median(back), 2),
    }
    result["hit_rate"] = stalloc.memory_stats("cuda")["hit_rate"]
    stalloc.disable()
    return result


def _timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _each(calls: list[Callable[[], int]]) -> float:
    """The median microseconds of calls to the driver."""
    times = []
    for call in calls:
        began = time.perf_counter()
        error = call()
        times.append(time.perf_counter() - began)
        if error:
            raise RuntimeError(f"the driver failed with error {error}")
    return round(1e6 * median(times), 1)


def _chunks(driver: ctypes.CDLL, size: int, count: int) -> dict[str, float]:
    """Maps `count` chunks of memory to addresses, and takes them away, one by one."""
    bytes_ = ctypes.c_size_t
    begin = ctypes.c_uint64()
    properties = _Properties(type=1, location=_ON_FIRST_GPU)
    access = _Access(_ON_FIRST_GPU, _READ_AND_WRITE)
    zero = ctypes.c_uint64(0)
    whole = bytes_(size * count)
    _each([lambda: driver.cuMemAddressReserve(ctypes.byref(begin), whole, bytes_(0), zero, zero)])
    chunks = [ctypes.c_uint64() for _ in range(count)]
    at = [ctypes.c_uint64(begin.value + i * size) for i in range(count)]
    calls: dict[str, Callable[[int], int]] = {
        "create": lambda i: driver.cuMemCreate(
            ctypes.byref(chunks[i]), bytes_(size), ctypes.byref(properties), zero
        ),
        "map": lambda i: driver.cuMemMap(at[i], bytes_(size), bytes_(0), chunks[i], zero),
        "access": lambda i: driver.cuMemSetAccess(
            at[i], bytes_(size), ctypes.byref(access), bytes_(1)
        ),
        "unmap": lambda i: driver.cuMemUnmap(at[i], bytes_(size)),
        "release": lambda i: driver.cuMemRelease(chunks[i]),
    }
    result = {
        name: _each([lambda i=i, call=call: call(i) for i in range(count)])  # type: ignore[misc]
        for name, call in calls.items()
    }
    _each([lambda: driver.cuMemAddressFree(begin, whole)])
    return result


def _block(driver: ctypes.CDLL, size: int) -> dict[str, float]:
    """Takes and gives back a block of plain memory five times."""
    address = ctypes.c_uint64()
    taken, given = [], []
    for _ in range(5):
        taken.append(
            _each([lambda: driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))])
        )
        given.append(_each([lambda: driver.cuMemFree_v2(address)]))
    return {"cudaMalloc": median(taken), "cudaFree": median(given)}


def _iteration() -> float:
    """An iteration of small and large requests; returns the seconds of one."""
    kept = [torch.empty(KEPT_SIZE, dtype=torch.uint8, device="cuda") for _ in range(KEPT)]
    began = time.perf_counter()
    for _ in range(REQUESTS):
        small = torch.empty(1000, device="cuda")
        large = torch.empty(300_000, device="cuda")
        del small, large
    seconds = (time.perf_counter() - began) / (2 * REQUESTS)
    del kept
    stalloc.step()
    return seconds


def _request() -> int:
    """The median nanoseconds of torch.empty() and the free of its result."""
    return round(1e9 * median([_iteration() for _ in range(ITERATIONS)][2:]))
