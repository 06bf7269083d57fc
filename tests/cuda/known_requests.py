"""Requests that a test knows by itself, to check a recording by."""

from __future__ import annotations

import torch

import stalloc

MIB = 1 << 20


def check_recording(*, exact: bool) -> None:
    """Records an iteration of three requests, of which the first is freed before the third."""
    sizes = [5 * MIB, 3 * MIB, MIB]
    with stalloc.profile(device="cuda", exact=exact) as profile:
        for _ in range(2):
            blocks = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes[:2]]
            del blocks[0]
            blocks.append(torch.empty(sizes[2], dtype=torch.uint8, device="cuda"))
            del blocks
            profile.step()
    requests = profile.trace.requests
    assert requests.size.tolist() == 2 * sizes
    first, second, third = range(3, 6)
    assert requests.upper[first] <= requests.lower[third] < requests.upper[second]
    assert profile.trace.profile().load_bytes == sizes[0] + sizes[1]
