"""Native mode passes on every call of torch's allocator interface.

A virtual function with a default that is not passed on would do nothing, or say that it is not
supported, and no compiler would say so. So the header of the torch that is installed is read.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

import stalloc

INCLUDE = Path(torch.__file__).parent / "include" / "c10"
ADAPTERS = Path(stalloc.__file__).parents[1] / "csrc" / "torch" / "cuda"


def virtual_functions(header: str, kind: str) -> set[str]:
    """The names of a class's virtual functions, without its destructor."""
    text = re.sub(r"//.*", "", (INCLUDE / header).read_text())
    body = text[re.search(rf"(class|struct)[A-Z0-9_ ]* {kind} [^;{{]*{{", text).end() :]  # type: ignore[union-attr]
    body = body[: body.index("\n};")]
    return set(re.findall(r"virtual [^;{(~]*?(\w+)\(", body))


def overridden(file: str) -> set[str]:
    return set(re.findall(r"(\w+)\([^;]*?\)(?: const)? override", (ADAPTERS / file).read_text()))


def test_every_virtual_function_of_the_host_allocator_is_passed_on() -> None:
    functions = virtual_functions("core/Allocator.h", "Allocator")
    functions |= virtual_functions("../ATen/core/CachingHostAllocator.h", "HostAllocator")
    assert "record_event" in functions
    assert functions <= overridden("pinned.h"), functions - overridden("pinned.h")


def test_every_virtual_function_is_passed_on() -> None:
    passed_on = overridden("delegate.h")
    for header, kind in [
        ("core/Allocator.h", "Allocator"),
        ("core/CachingDeviceAllocator.h", "DeviceAllocator"),
        ("cuda/CUDACachingAllocator.h", "CUDAAllocator"),
    ]:
        functions = virtual_functions(header, kind)
        assert len(functions) > 3
        assert functions <= passed_on, f"{kind} has more: {functions - passed_on}"
