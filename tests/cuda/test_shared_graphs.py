"""Captured graphs that share memory for what does not live on after their captures."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import standin
import torch
from isolation import isolated
from torch import Tensor, nn

import stalloc
from stalloc.errors import StallocError

MIB = 1 << 20
SIZES = (1, 2, 4, 8)


def held() -> int:
    free, total = torch.cuda.mem_get_info()
    return total - free


def mib(count: int) -> Tensor:
    return torch.empty(count * MIB, dtype=torch.uint8, device="cuda")


def captured(body: Any, pool: Any = None) -> tuple[torch.cuda.CUDAGraph, Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = body()
    return graph, result


def temporaries(size: int, outputs: int = 2) -> Tensor:
    """Temporaries of 40 MiB for each unit of size, and an output that lives on."""
    output = mib(outputs)
    for _ in range(3):
        mib(40 * size)
    return output


@isolated
def test_graphs_have_the_memory_of_the_largest() -> None:
    torch.cuda.init()
    before = held()
    plain = [captured(lambda size=size: temporaries(size)) for size in SIZES]
    alone = held() - before
    assert alone >= 40 * MIB * sum(SIZES)
    plain.clear()
    torch.cuda.empty_cache()
    assert held() <= before + 2 * MIB

    before = held()
    stalloc.share_graphs()
    graphs = [captured(lambda size=size: temporaries(size)) for size in SIZES]
    memory = stalloc.graph_memory()
    assert held() - before == memory.reserved
    largest = 40 * MIB * max(SIZES)
    assert largest <= memory.shared <= largest + 20 * MIB
    assert len(SIZES) * 2 * MIB <= memory.own <= len(SIZES) * 4 * MIB
    assert memory.pools == len(SIZES)
    assert memory.addresses >= alone - 20 * MIB
    for each in graphs:
        each[0].replay()
    torch.cuda.synchronize()
    del graphs, each
    torch.cuda.empty_cache()
    assert stalloc.graph_memory().reserved == 0
    assert held() == before
    assert standin.misuses() == 0, standin.complaint()


@isolated
def test_what_lives_on_shares_with_nobody() -> None:
    stalloc.share_graphs()
    chunks: list[int] = []
    kept = []
    for size in SIZES:
        kept.append(captured(lambda size=size: [temporaries(size, size) for _ in range(3)]))
        for output in kept[-1][1]:
            begin = output.data_ptr() // (2 * MIB) * 2 * MIB
            end = output.data_ptr() + output.numel()
            chunks += {standin.memory_at(at) for at in range(begin, end, 2 * MIB)}
    # Outputs of one graph may lie on one chunk; those of two graphs never do.
    assert all(chunks)
    graphs = [
        {
            standin.memory_at(at)
            for output in outputs
            for at in range(output.data_ptr(), output.data_ptr() + output.numel(), MIB)
        }
        for _, outputs in kept
    ]
    for i, mine in enumerate(graphs):
        for other in graphs[i + 1 :]:
            assert not mine & other


@isolated
def test_graphs_of_one_pool_and_its_successors() -> None:
    stalloc.share_graphs()
    first, output = captured(lambda: temporaries(1))
    second, other = captured(lambda: temporaries(2), pool=first.pool())
    assert stalloc.graph_memory().pools == 1
    assert standin.memory_at(output.data_ptr()) != standin.memory_at(other.data_ptr()) or (
        output.data_ptr() // (2 * MIB) == other.data_ptr() // (2 * MIB)
    )
    del first, output
    torch.cuda.empty_cache()
    assert stalloc.graph_memory().pools == 1, "the second graph has the pool"
    second.replay()
    del second, other
    torch.cuda.empty_cache()
    assert stalloc.graph_memory().reserved == 0


@isolated
def test_a_graph_has_what_lives_at_once() -> None:
    def growing() -> Tensor:
        for size in (10, 30, 60, 90, 120):  # none fits where an earlier one was
            mib(size)
        return mib(2)

    plain = captured(growing)
    segments: Any = torch.cuda.memory_snapshot(plain[0].pool())
    assert sum(segment["total_size"] for segment in segments) >= 310 * MIB
    stalloc.share_graphs()
    first = captured(growing)
    assert stalloc.graph_memory().reserved <= 126 * MIB
    second = captured(growing, pool=first[0].pool())
    assert stalloc.graph_memory().reserved <= 130 * MIB
    # A history that the user has on is left alone, and tells nothing.
    torch.cuda.memory._record_memory_history()
    third = captured(growing)
    assert stalloc.graph_memory().shared >= (310 - 2) * MIB  # all but the output's
    assert torch._C._cuda_isHistoryEnabled()
    for graph, _ in (first, second, third):
        graph.replay()


@isolated
def test_a_history_that_the_program_stops_tells_nothing() -> None:
    def stopping() -> Tensor:
        mib(100)
        torch.cuda.memory._record_memory_history(None)
        mib(120)
        return mib(2)

    def restarting() -> Tensor:
        mib(100)
        torch.cuda.memory._record_memory_history("all", context=None, clear_history=True)
        mib(120)
        return mib(2)

    stalloc.share_graphs()
    for body in (stopping, restarting):
        graph = captured(body)
        assert stalloc.graph_memory().shared >= (100 + 120 - 2) * MIB
        torch.cuda.memory._record_memory_history(None)
        del graph
        torch.cuda.empty_cache()


def scattered(kib: tuple[int, int] = (1000, 40)) -> list[Tensor]:
    """Eight small results, each in a segment of torch's that is full of temporaries."""

    temporaries, kept = [], []
    for _ in range(8):
        for size in (kib[0], kib[0], kib[1]):
            block = torch.empty(size << 10, dtype=torch.uint8, device="cuda")
            (temporaries if size == kib[0] else kept).append(block)
    return kept


def own_of(body: Any, pool: Any = None) -> tuple[int, Any]:
    """The memory that a capture adds for what lives on, and the graph with its result."""
    before = stalloc.graph_memory().own
    each = captured(body, pool)
    return stalloc.graph_memory().own - before, each


@isolated
def test_what_lives_on_lies_together_once_its_like_was_captured() -> None:
    stalloc.share_graphs()
    graphs = [own_of(scattered)]
    assert graphs[0][0] == 16 * MIB, "as torch places them"
    for _ in range(3):
        graphs.append(own_of(scattered))
        assert graphs[-1][0] == 2 * MIB
    # Smaller ones, in the same order.
    graphs.append(own_of(lambda: scattered(kib=(960, 20))))
    assert graphs[-1][0] == 2 * MIB
    # Two kinds by turns.
    for _ in range(2):
        graphs += [own_of(lambda: temporaries(1, outputs=6)), own_of(scattered)]
        assert graphs[-1][0] == 2 * MIB
    assert graphs[-2][0] == 6 * MIB
    for _, each in graphs:
        each[0].replay()
    assert standin.misuses() == 0, standin.complaint()


@isolated
def test_captures_unlike_those_before_keep_what_lives_on() -> None:
    def other() -> list[Tensor]:  # of the same sizes, and nothing of it lives on as before
        kept = []
        for _ in range(8):
            kept += [torch.empty(1000 << 10, dtype=torch.uint8, device="cuda") for _ in range(2)]
            torch.empty(40 << 10, dtype=torch.uint8, device="cuda")
        return kept

    stalloc.share_graphs()
    graphs = [captured(scattered), captured(other), captured(scattered), captured(other)]
    chunks = [
        {
            standin.memory_at(at)
            for block in kept
            for at in (block.data_ptr(), block.data_ptr() + block.numel() - 1)
        }
        for _, kept in graphs
    ]
    for i, mine in enumerate(chunks):
        for others in chunks[i + 1 :]:
            assert not mine & others
    assert standin.misuses() == 0, standin.complaint()


@isolated
def test_memory_goes_with_a_graph_that_is_reset() -> None:
    stalloc.share_graphs()
    before = held()
    for _ in range(2):
        graphs = [captured(scattered)[0] for _ in range(3)]
        graphs.append(captured(scattered, pool=graphs[0].pool())[0])
        graphs[0].reset()
        torch.cuda.empty_cache()
        assert stalloc.graph_memory().pools == 3, "another graph has the pool"
        for graph in graphs[1:]:
            graph.replay()
            graph.reset()
        torch.cuda.empty_cache()
        assert stalloc.graph_memory().reserved == 0
        assert held() == before
    assert standin.misuses() == 0, standin.complaint()


@isolated
def test_results_outlive_their_graphs() -> None:
    stalloc.share_graphs()
    graph, kept = captured(scattered)
    again, others = captured(scattered, pool=graph.pool())
    handles = [standin.memory_at(block.data_ptr()) for block in others]
    del graph, again
    torch.cuda.empty_cache()
    assert [standin.memory_at(block.data_ptr()) for block in others] == handles
    assert all(handles)
    del kept, others
    torch.cuda.empty_cache()
    assert stalloc.graph_memory().reserved == 0


@isolated
def test_graphs_without_native_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stalloc.graphs._module", lambda: None)
    stalloc.share_graphs()
    graphs = [captured(scattered) for _ in range(3)]
    for graph, _ in graphs:
        graph.replay()
    del graphs, graph, _
    torch.cuda.empty_cache()
    assert stalloc.graph_memory().reserved == 0


@isolated
def test_captures_of_others_have_their_own_pools() -> None:
    stalloc.share_graphs()
    captured(scattered)
    stream = torch.cuda.Stream()
    handle = torch.cuda.MemPool()

    def beside() -> list[Tensor]:
        kept = scattered()
        with torch.cuda.use_mem_pool(handle):  # what the program asks for comes first
            kept.append(mib(4))
        return kept

    _graph, kept = captured(beside)
    assert kept[-1].data_ptr() in {
        segment["address"] for segment in torch.cuda.memory_snapshot(handle.id)
    }
    with torch.cuda.stream(stream):
        mib(2)
    assert standin.misuses() == 0, standin.complaint()


class Captured:
    """A capture of its own stream that this thread begins and ends, while others go on."""

    def __init__(self, device: int = 0, pool: Any = None) -> None:
        self.graph, self.stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
        with self:
            self.graph.capture_begin(pool=pool, capture_error_mode="relaxed")

    def __enter__(self) -> None:
        self._context = torch.cuda.stream(self.stream)
        self._context.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)

    def kept(self, count: int) -> Tensor:
        """A block of the capture that lives on, after a temporary."""
        with self:
            mib(40)
            return mib(count)

    def end(self) -> None:
        with self:
            self.graph.capture_end()


def in_a_thread(body: Any) -> Any:
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(body).result()


def chunks_of(block: Tensor) -> set[int]:
    begin = block.data_ptr()
    return {standin.memory_at(at) for at in range(begin, begin + block.numel(), MIB)}


@isolated
def test_a_capture_that_begins_during_another_has_torchs_memory() -> None:
    stalloc.share_graphs()
    first = Captured()
    early = first.kept(2)

    def meanwhile() -> tuple[Captured, Tensor]:
        second = Captured()
        kept = second.kept(3)
        second.end()
        return second, kept

    second, theirs = in_a_thread(meanwhile)
    late = first.kept(21)
    first.end()
    assert stalloc.graph_memory().pools == 1
    assert all(chunks_of(early) | chunks_of(late)), "memory of stalloc's"
    assert chunks_of(theirs) == {0}, "memory of torch's"
    third, own = captured(lambda: temporaries(1))
    assert stalloc.graph_memory().pools == 2
    kept_apart = [chunks_of(block) for block in (early, late, own)]
    assert len(set.union(*kept_apart)) >= 2 + 21 // 2
    assert not (kept_apart[0] | kept_apart[1]) & kept_apart[2]
    for graph in (first.graph, second.graph, third):
        graph.replay()
    assert standin.misuses() == 0, standin.complaint()


@isolated
def test_a_capture_that_shares_outlasts_or_follows_one_of_torchs() -> None:
    """Both orders of their ends; the segments that go meanwhile do so later."""
    stalloc.share_graphs()
    gone = captured(lambda: temporaries(1))[0]
    for torchs_ends_first in (True, False):
        torchs = Captured(pool=torch.cuda.graph_pool_handle())
        shares = Captured()
        kept = shares.kept(4)
        gone.reset()
        order = [torchs, shares] if torchs_ends_first else [shares, torchs]
        for each in order:
            each.kept(2)
            each.end()
        assert all(chunks_of(kept))
        gone, result = captured(lambda: temporaries(1))
        assert not chunks_of(kept) & chunks_of(result)
        for graph in (torchs.graph, shares.graph, gone):
            graph.replay()
        del kept, result, torchs, shares, each, order, graph
    torch.cuda.empty_cache()
    assert stalloc.graph_memory().pools == 1
    assert standin.misuses() == 0, standin.complaint()


@isolated
def test_a_sharing_pool_takes_no_capture_during_another() -> None:
    stalloc.share_graphs()
    earlier = captured(lambda: temporaries(1))[0]
    for pool in (None, torch.cuda.graph_pool_handle()):
        first = Captured(pool=pool)
        with pytest.raises(StallocError, match="another graph is being captured on GPU 0"):
            in_a_thread(lambda: Captured(pool=earlier.pool()))
        first.kept(2)
        first.end()
        first.graph.replay()
    again, kept = captured(lambda: temporaries(1), pool=earlier.pool())
    assert all(chunks_of(kept))
    again.replay()
    assert standin.misuses() == 0, standin.complaint()


@isolated
def test_a_later_graph_of_a_pool_ends_while_another_is_captured() -> None:
    """Its memory would have to be taken from graphs that may run, so it is reset."""
    stalloc.share_graphs()
    earlier, kept = captured(lambda: temporaries(1))
    later = Captured(pool=earlier.pool())
    later.kept(2)
    other = Captured()
    with pytest.raises(StallocError, match="where another graph is being captured"):
        later.end()
    with pytest.raises(RuntimeError):
        later.graph.replay()
    other.kept(2)
    other.end()
    before = chunks_of(kept)
    again, _ = captured(lambda: temporaries(1), pool=earlier.pool())
    assert chunks_of(kept) == before
    for graph in (earlier, other.graph, again):
        graph.replay()
    assert standin.misuses() == 0, standin.complaint()


@isolated
def test_captures_on_two_devices_share_at_once() -> None:
    stalloc.share_graphs()
    graphs = []
    for _ in range(2):
        both = [Captured(device) for device in (0, 1)]
        kept = [each.kept(2) for each in both]
        for each in both:
            each.end()
        graphs.append((both, kept))
    for device in (0, 1):
        memory = stalloc.graph_memory(device)
        assert memory.pools == 2
        assert memory.shared < 80 * MIB
        blocks = [chunks_of(kept[device]) for _, kept in graphs]
        assert not blocks[0] & blocks[1]
    for both, _ in graphs:
        for each in both:
            with each:
                each.graph.replay()
    assert standin.misuses() == 0, standin.complaint()


@isolated
def test_replays_on_other_streams_wait() -> None:
    stalloc.share_graphs()
    standin.set_manual(True)
    graphs = [captured(lambda: temporaries(1))[0] for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]

    def replay(number: int, stream: torch.cuda.Stream) -> None:
        with torch.cuda.stream(stream):
            graphs[number].replay()

    waits = standin.calls("cudaStreamWaitEvent")
    for _ in range(3):
        replay(0, streams[0])
        replay(1, streams[0])
    assert standin.calls("cudaStreamWaitEvent") == waits, "one stream keeps its order"
    replay(0, streams[1])
    replay(1, streams[0])
    assert standin.calls("cudaStreamWaitEvent") == waits + 2
    worker = threading.Thread(target=replay, args=(0, streams[1]))
    worker.start()
    worker.join()
    assert standin.calls("cudaStreamWaitEvent") == waits + 3
    standin.drain_all()


@isolated
def test_replays_on_streams_that_may_vanish_leave_an_event() -> None:
    stalloc.share_graphs()
    graphs = [captured(lambda: temporaries(1))[0] for _ in range(2)]
    handle = torch.cuda.Stream().cuda_stream
    with torch.cuda.stream(torch.cuda.ExternalStream(handle)):
        graphs[0].replay()
    waits = standin.calls("cudaStreamWaitEvent")
    graphs[1].replay()
    assert standin.calls("cudaStreamWaitEvent") == waits + 1
    assert standin.misuses() == 0, standin.complaint()


@isolated
def test_replays_on_a_stream_that_has_vanished_are_waited_for() -> None:
    stalloc.share_graphs()
    graphs = [captured(lambda: temporaries(1))[0] for _ in range(2)]
    handle = standin.new_stream()
    with torch.cuda.stream(torch.cuda.ExternalStream(handle)):
        graphs[0].replay()
    standin.destroy_stream(handle)
    graphs[1].replay()
    assert standin.misuses() == 0, standin.complaint()


@isolated
def test_replays_from_another_device_are_ordered() -> None:
    stalloc.share_graphs()
    captured_there = Captured(1)
    captured_there.kept(2)
    captured_there.end()
    streams = [torch.cuda.Stream(1) for _ in range(2)]
    waits = standin.calls("cudaStreamWaitEvent")
    for stream in streams:
        with torch.cuda.stream(stream), torch.cuda.device(0):
            captured_there.graph.replay()
    assert standin.calls("cudaStreamWaitEvent") == waits + 1


@isolated
def test_layers_that_torch_graphs_share() -> None:
    def layer() -> nn.Module:
        return nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()

    def graphed(count: int) -> list[Any]:
        x = torch.randn(2048, 512, device="cuda", requires_grad=True)
        return [torch.cuda.make_graphed_callables(layer(), (x,)) for _ in range(count)]

    def memory_of(count: int) -> int:
        before = held()
        layers = graphed(count)
        x = torch.randn(2048, 512, device="cuda", requires_grad=True)
        for each in layers:
            x = each(x)
        x.sum().backward()
        result = held() - before
        del layers, x, each
        torch.cuda.empty_cache()
        return result

    plain = memory_of(4)
    stalloc.share_graphs()
    shared = memory_of(4)
    assert shared < plain
    assert standin.misuses() == 0, standin.complaint()


@isolated
def test_gradients_have_the_memory_of_activations() -> None:
    """A later layer adds its activations, and the gradient that comes before their end."""
    width, rows = 512, 4096

    def layer() -> nn.Module:
        return nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        ).cuda()

    stalloc.share_graphs()
    x = torch.randn(rows, width, device="cuda", requires_grad=True)
    layers = [torch.cuda.make_graphed_callables(layer(), (x,)) for _ in range(2)]
    before = stalloc.graph_memory()
    layers.append(torch.cuda.make_graphed_callables(layer(), (x,)))
    added = stalloc.graph_memory().reserved - before.reserved
    activations = (2 * 4 + 1) * rows * width * 4  # of the first linear, of the GELU, and the result
    assert added <= activations + 4 * width * width * 4 + 2 * MIB
    y = x
    for each in layers:
        y = each(y)
    y.sum().backward()
    assert standin.misuses() == 0, standin.complaint()


@isolated
def test_a_capture_that_fails_leaves_nothing() -> None:
    stalloc.share_graphs()

    def failing() -> None:
        mib(40)
        raise ValueError("of the program")

    for _ in range(3):
        with pytest.raises(ValueError, match="of the program"):
            captured(failing)
    torch.cuda.empty_cache()
    assert stalloc.graph_memory().reserved == 0
    graph, _ = captured(lambda: temporaries(1))
    graph.replay()


@isolated
def test_a_device_without_memory_raises_and_goes_on() -> None:
    stalloc.share_graphs()
    first = captured(lambda: temporaries(2))
    rest = mib(1)
    free, _ = torch.cuda.mem_get_info()
    rest = torch.empty(free - 4 * MIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match=r"out of memory: a captured graph needs 2"):
        captured(lambda: [mib(60), mib(4)])
    with pytest.raises(torch.OutOfMemoryError):
        captured(lambda: temporaries(8))
    del rest
    torch.cuda.empty_cache()
    second = captured(lambda: temporaries(1, outputs=60))
    for graph, _ in (first, second):
        graph.replay()
    assert standin.misuses() == 0, standin.complaint()


@isolated
def test_captures_are_left_to_torch_after_the_end() -> None:
    with stalloc.share_graphs():
        mine = captured(lambda: temporaries(1))
    memory = stalloc.graph_memory()
    assert memory.pools == 1
    theirs = captured(lambda: temporaries(1))
    handle = torch.cuda.graph_pool_handle()
    stalloc.share_graphs()
    pooled = captured(lambda: temporaries(1), pool=handle)
    assert stalloc.graph_memory() == memory
    for graph, _ in (mine, theirs, pooled):
        graph.replay()


@isolated
def test_graphs_share_beside_a_plan() -> None:
    weight = torch.zeros(MIB, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step() -> None:
        (weight * 2).tanh().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        stalloc.step()

    with stalloc.profile(device="cuda") as prof:
        for _ in range(3):
            step()
    stalloc.enable(prof.plan())
    stalloc.share_graphs()
    graphs = [captured(lambda: temporaries(1)) for _ in range(3)]
    for _ in range(4):
        for graph, _ in graphs:
            graph.replay()
        step()
    assert stalloc.graph_memory().shared < 80 * MIB
    assert stalloc.memory_stats()["hit_rate"] > 0.9
    graphs.append(captured(scattered))
    assert own_of(scattered)[0] == 2 * MIB
    for _ in range(2):
        step()
    assert stalloc.memory_stats()["hit_rate"] > 0.9
    assert standin.hazards() == 0, standin.complaint()


@pytest.mark.parametrize(
    "asked", ["TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "NCCL_GRAPH_REGISTER"]
)
@isolated
def test_graphs_that_nccl_registers_are_refused(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(asked, "1")
    with pytest.raises(StallocError, match="NCCL cannot register"):
        stalloc.share_graphs()


@isolated
def test_nccl_registers_no_graphs_that_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", "")
    with stalloc.share_graphs():
        assert os.environ["NCCL_GRAPH_REGISTER"] == "0"


@isolated
def test_compat_mode_is_refused() -> None:
    stalloc.install_compat()
    with pytest.raises(StallocError, match="compat mode does not use"):
        stalloc.share_graphs()
