"""The bound of the benchmarks for placements that add no waits (benchmarks/cuda/waitless.py)."""

from __future__ import annotations

import pytest
import torch
import waitless

import stalloc

MIB = 1 << 20


def profiled(waits: str) -> stalloc.Profile:
    """Two streams use 8 and 6 MiB by turns, and those that are named wait for the other one."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    with stalloc.profile(device="cuda") as prof:
        for _ in range(4):
            torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
            if "side" in waits:
                side.wait_stream(main)
            with torch.cuda.stream(side):
                torch.empty(6 * MIB, dtype=torch.uint8, device="cuda")
            if "main" in waits:
                main.wait_stream(side)
            prof.step()
    return prof


@pytest.mark.parametrize(
    ("waits", "mib"), [("", 14), ("side", 14), ("main", 14), ("side and main", 8)]
)
def test_streams_share_if_each_comes_after_the_other(waits: str, mib: int) -> None:
    prof = profiled(waits)
    assert waitless.bound(prof.trace) == mib * MIB
    assert prof.plan(streams="auto").pool == mib * MIB


def test_a_stream_between_two_others_leads_from_one_to_the_other() -> None:
    main, sides = torch.cuda.current_stream(), [torch.cuda.Stream() for _ in range(2)]
    with stalloc.profile(device="cuda") as prof:
        for _ in range(4):
            kept = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
            before = main
            for side in sides:
                side.wait_stream(before)
                with torch.cuda.stream(side):
                    torch.empty(6 * MIB, dtype=torch.uint8, device="cuda")
                before = side
            main.wait_stream(before)
            del kept
            prof.step()
    assert waitless.bound(prof.trace) == (4 + 6) * MIB


def test_the_reducer_is_bound_by_a_stream_that_waits_for_none() -> None:
    import reducer

    with stalloc.profile(device="cuda") as prof:
        reducer.train(4)
    bound = waitless.bound(prof.trace)
    weights = 4 * MIB  # they stay, beside the plan
    assert 0 <= prof.plan(streams="auto").pool + weights - bound < 4096
    assert prof.plan(streams="ordered").pool + weights < bound - 40 * MIB
