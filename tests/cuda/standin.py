"""The controls of the pretended GPU, which scripts/test_cuda.sh preloads: see standin.h."""

from __future__ import annotations

import ctypes

CHUNK = 2 << 20
"""Bytes; the driver maps virtual memory in whole chunks."""

_library = ctypes.CDLL("libcudart.so.13")
_library.standin_last_complaint.restype = ctypes.c_char_p
for _name in ("hazards", "misuses", "calls", "used", "host_waits", "events", "reservations"):
    getattr(_library, f"standin_{_name}").restype = ctypes.c_int64
_library.standin_memory_at.restype = ctypes.c_uint64


def use(stream: int, tensor_address: int, size: int, owner: int) -> None:
    """Work on a stream that reads and writes a tensor."""
    error = _library.standin_use(
        ctypes.c_void_p(stream),
        ctypes.c_void_p(tensor_address),
        ctypes.c_uint64(size),
        ctypes.c_uint64(owner),
    )
    assert error == 0, f"error {error}: {complaint()}"


def allocation_around(address: int) -> tuple[int, int]:
    """The beginning and the bytes of the driver's allocation, as registrations ask for them."""
    function, status = ctypes.c_void_p(), ctypes.c_int()
    assert (
        _library.cudaGetDriverEntryPointByVersion(
            b"cuMemGetAddressRange", ctypes.byref(function), 0, 0, ctypes.byref(status)
        )
        == 0
    )
    assert function.value is not None
    find = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
    begin, size = ctypes.c_uint64(), ctypes.c_size_t()
    assert find(function.value)(ctypes.addressof(begin), ctypes.addressof(size), address) == 0
    return begin.value, size.value


def new_stream() -> int:
    """A stream's handle: one that no other part of the process uses."""
    handle = ctypes.c_void_p()
    assert _library.cudaStreamCreateWithFlags(ctypes.byref(handle), 1) == 0
    assert handle.value is not None
    return handle.value


def destroy_stream(handle: int) -> None:
    assert _library.cudaStreamDestroy(ctypes.c_void_p(handle)) == 0


def set_manual(manual: bool) -> None:
    """Lets the work of new streams wait for a command, or not."""
    _library.standin_set_manual(int(manual))


def memory_at(address: int) -> int:
    """The handle of the memory that is mapped to an address; 0 if there is none."""
    handle: int = _library.standin_memory_at(ctypes.c_void_p(address))
    return handle


def read(address: int, to: int, size: int) -> None:
    """Copies from device memory, whose contents are kept, to the host's."""
    error = _library.standin_read(
        ctypes.c_void_p(address), ctypes.c_void_p(to), ctypes.c_uint64(size)
    )
    assert error == 0, f"error {error}: {complaint()}"


def write(address: int, values: int, size: int) -> None:
    """Copies to device memory from the host's."""
    error = _library.standin_write(
        ctypes.c_void_p(address), ctypes.c_void_p(values), ctypes.c_uint64(size)
    )
    assert error == 0, f"error {error}: {complaint()}"


def fill(address: int, pattern: int, length: int, size: int) -> None:
    """Fills device memory with a pattern of some bytes of the host's memory."""
    error = _library.standin_fill(
        ctypes.c_void_p(address),
        ctypes.c_void_p(pattern),
        ctypes.c_uint64(length),
        ctypes.c_uint64(size),
    )
    assert error == 0, f"error {error}: {complaint()}"


def drain_all() -> None:
    """Completes all work."""
    _library.standin_drain_all()


def advance(stream: int, items: int) -> None:
    """Completes some work of a stream."""
    _library.standin_advance(ctypes.c_void_p(stream), ctypes.c_int64(items))


def hold(held: bool) -> None:
    """Lets threads that wait for a device wait on, or go on."""
    _library.standin_hold(int(held))


def held() -> int:
    """The threads that wait on."""
    return int(_library.standin_held())


def fail(call: str, nth: int, error: int, times: int = 1) -> None:
    """Lets a call fail: the nth from now."""
    _library.standin_fail(
        call.encode(), ctypes.c_int64(nth), ctypes.c_int(error), ctypes.c_int64(times)
    )


def lose_device(error: int) -> None:
    """Every call fails from now on; 0 takes that back."""
    _library.standin_lose_device(error)


def set_memory(device: int, size: int) -> None:
    """Sets the bytes of a device."""
    _library.standin_set_memory(device, ctypes.c_uint64(size))


def hazards() -> int:
    """Addresses used for another owner without order after the one before."""
    return int(_library.standin_hazards())


def misuses() -> int:
    """Calls that no correct program makes."""
    return int(_library.standin_misuses())


def complaint() -> str:
    """The last of either."""
    return bytes(_library.standin_last_complaint()).decode()


def last_error() -> int:
    """The error that the thread's next call by torch would report."""
    return int(_library.cudaPeekAtLastError())


def used(device: int = 0) -> int:
    """Bytes of a device that are taken."""
    return int(_library.standin_used(device))


def calls(name: str) -> int:
    """The number of calls of a function."""
    return int(_library.standin_calls(name.encode()))


def host_waits() -> int:
    """Calls in which the host waited for work that was not complete."""
    return int(_library.standin_host_waits())


def reservations() -> int:
    """Live ranges of virtual addresses."""
    return int(_library.standin_reservations())


def has_context(device: int) -> bool:
    """True if the process uses the device, which costs memory there."""
    return bool(_library.standin_has_context(device))
