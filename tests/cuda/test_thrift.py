"""Idle pages of torch's allocator that go before it reserves more than ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import standin
import torch
from isolation import isolated

import stalloc
from stalloc._adapters import adapter
from stalloc._expandable import Switch

MIB = 1 << 20


def block(mib: int, device: str = "cuda:0") -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device=device)


@contextmanager
def expandable() -> Iterator[None]:
    switch = Switch(adapter("cuda:0"))
    switch.set(True)
    try:
        yield
    finally:
        switch.set(False)


def grow() -> int:
    """Frees 400 MiB between two blocks that stay; then asks for more. Returns the peak, in MiB."""
    first, idle, last = block(48), block(384), block(48)
    del idle
    larger = block(480)
    assert first.data_ptr() != larger.data_ptr() != last.data_ptr()
    return torch.cuda.max_memory_reserved("cuda:0") // MIB


@isolated
def test_what_is_idle_goes_before_a_new_peak() -> None:
    with expandable():
        assert grow() <= 48 + 48 + 480 + 2 * 24, "and the pages at the ends of what was idle"


@isolated
def test_torch_alone_keeps_it() -> None:
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    adapter("cuda:0")
    assert grow() >= 48 + 384 + 48 + 480


@isolated
def test_no_page_goes_below_the_peak() -> None:
    with expandable():
        grow()
        torch.cuda.empty_cache()
        blocks = [block(100) for _ in range(4)]
        del blocks[::2]
        given_back = standin.calls("cuMemUnmap")
        larger = block(150)
        assert standin.calls("cuMemUnmap") == given_back, "the run has held more before"
        del larger, blocks


@isolated
def test_a_run_that_comes_to_its_peak_in_each_iteration_is_to_reserve_more() -> None:
    with expandable():
        for _ in range(1000):
            first, idle, last = block(48), block(384), block(48)
            del idle
            larger = block(480)
            del first, last, larger
            torch.cuda.reset_peak_memory_stats()
        given_back = standin.calls("cuMemUnmap")
        grow()
        assert standin.calls("cuMemUnmap") == given_back


@isolated
def test_nothing_goes_while_another_device_is_in_use() -> None:
    other = block(1, "cuda:1")
    with expandable():
        assert grow() >= 48 + 384 + 48 + 480, "its lock may be taken by who waits for this one"
    del other


@isolated
def test_nothing_goes_once_another_device_was_used() -> None:
    with expandable():
        del [block(1, "cuda:1")][0]
        torch.cuda.empty_cache()
        assert grow() >= 48 + 384 + 48 + 480, "a thread may use it again at any time"


@isolated
def test_a_context_without_memory_is_no_use_of_a_device() -> None:
    with torch.cuda.device(1):
        torch.cuda.synchronize()
    assert torch._C._cuda_hasPrimaryContext(1)
    with expandable():
        assert grow() <= 48 + 48 + 480 + 2 * 24


@isolated
def test_nothing_goes_during_a_capture() -> None:
    with expandable():
        kept = [block(48), block(384), block(48)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="relaxed"):
            given_back = standin.calls("cuMemUnmap")
            del kept[1]
            larger = block(480)
            assert standin.calls("cuMemUnmap") == given_back
        del larger, graph


@isolated
def test_nothing_goes_in_a_capture_after_one_that_began_before_stalloc() -> None:
    from threading import Thread

    torch.cuda.init()
    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="relaxed"):
        block(4)
        adapter("cuda:0")
    with expandable():
        freed = torch.cuda.CUDAGraph()
        with torch.cuda.graph(freed):
            block(64)
        kept = [block(48), block(384), block(48)]

        def come_to_a_peak() -> None:
            del kept[1]
            kept.append(block(480))

        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            block(4)
            freed.reset()  # emptying the cache would return its pool
            given_back = standin.calls("cuMemUnmap")
            thread = Thread(target=come_to_a_peak)
            thread.start()
            thread.join()
            assert standin.calls("cuMemUnmap") == given_back
        assert len(kept) == 3, "the thread has its block"


@isolated
def test_nothing_goes_while_the_history_is_recorded() -> None:
    with expandable():
        torch.cuda.memory._record_memory_history()
        assert grow() >= 48 + 384 + 48 + 480, "a stack of Python would be gathered under the lock"
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


@isolated
def test_blocks_keep_their_addresses_and_threads_do_not_wait_for_each_other() -> None:
    from threading import Thread

    problems: list[BaseException] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        live: list[torch.Tensor] = []
        try:
            for _ in range(400):
                live.append(block(int(torch.randint(1, 60, (1,), generator=generator))))
                if len(live) > 6:
                    del live[int(torch.randint(0, 6, (1,), generator=generator))]
        except BaseException as error:
            problems.append(error)

    with expandable():
        threads = [Thread(target=work, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not problems


@isolated
def test_the_first_segment_that_is_made_leaves_no_memory() -> None:
    switch = Switch(adapter("cuda:0"))
    before = torch.cuda.memory_reserved()
    switch.set(True)
    assert torch.cuda.memory_reserved() == before
    switch.set(False)


@pytest.mark.parametrize("on", [True, False])
@isolated
def test_the_least_page_is_set_and_taken_back(on: bool) -> None:
    from stalloc import _expandable

    switch = Switch(adapter("cuda:0"))
    switch.set(True)
    if not on:
        switch.set(False)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    small = block(3)
    assert torch.cuda.memory_reserved() - before == (12 if on else 20) * MIB
    assert _expandable.large_page == 12 * MIB
    switch.set(False)
    stalloc.disable()
    del small
