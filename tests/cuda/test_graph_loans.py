"""Eager tensors in the memory of captured graphs, between their replays."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import standin
import torch
from isolation import isolated
from torch import Tensor

import stalloc
from stalloc.errors import StallocError

MIB = 1 << 20
CHUNK = 2 * MIB


def held() -> int:
    free, total = torch.cuda.mem_get_info()
    return total - free


def mib(count: float) -> Tensor:
    return torch.empty(int(count * MIB), dtype=torch.uint8, device="cuda")


def chunks_of(block: Tensor) -> set[int]:
    begin = block.data_ptr()
    end = begin + block.numel()
    return {standin.memory_at(at) for at in [*range(begin, end, CHUNK), end - 1]}


class Graph:
    """A captured graph that uses all its memory: temporaries, and an output of 2 MiB."""

    made = 0

    def __init__(self, temporaries: int, pool: Any = None) -> None:
        Graph.made += 1
        self.owner = 1000 + Graph.made
        self.graph = torch.cuda.CUDAGraph()
        self.temporary: list[tuple[int, int]] = []  # address, size
        with torch.cuda.graph(self.graph, pool=pool, stream=torch.cuda.Stream()):
            self.output = mib(2)
            held = mib(temporaries)
            self.temporary.append((held.data_ptr(), held.numel()))
            use(held, self.owner)  # at each replay
            del held

    def chunks(self) -> set[int]:
        return {
            standin.memory_at(at)
            for begin, size in self.temporary
            for at in range(begin, begin + size, 2 * MIB)
        }

    def replay(self) -> None:
        self.graph.replay()


def use(block: Tensor, owner: int, stream: Any = None) -> None:
    stream = stream or torch.cuda.current_stream()
    standin.use(stream.cuda_stream, block.data_ptr(), block.numel(), owner)


def assert_sound() -> None:
    assert standin.hazards() == 0, standin.complaint()
    assert standin.misuses() == 0, standin.complaint()


@isolated
def test_eager_tensors_have_the_memory_of_graphs() -> None:
    stalloc.share_graphs(eager=True)
    graphs = [Graph(40), Graph(60)]
    before = held()
    for turn in range(4):
        graphs[turn % 2].replay()
        for _ in range(3):
            block, other = mib(30), mib(20)
            assert chunks_of(block) | chunks_of(other) <= graphs[1].chunks()
            assert not chunks_of(block) & chunks_of(other)
            use(block, 1)
            use(other, 2)
            del block, other
    assert held() == before
    assert stalloc.graph_memory().eager == 0
    assert_sound()


@isolated
def test_nothing_is_lent_unless_asked_for() -> None:
    stalloc.share_graphs()
    graph = Graph(40)
    graph.replay()
    assert chunks_of(mib(30)) == {0}


@isolated
def test_what_does_not_fit_lies_elsewhere() -> None:
    stalloc.share_graphs(eager=True)
    graph = Graph(60)
    graph.replay()
    small, large, first = mib(1), mib(61), mib(40)
    second = mib(30)
    assert chunks_of(small) == chunks_of(large) == chunks_of(second) == {0}
    assert chunks_of(first) <= graph.chunks()
    del first
    assert chunks_of(mib(40)) <= graph.chunks()
    assert_sound()


@isolated
def test_a_tensor_that_lives_at_a_replay_keeps_its_memory() -> None:
    stalloc.share_graphs(eager=True)
    graphs = [Graph(40), Graph(60)]
    graphs[0].replay()
    kept, gone = mib(10), mib(8)
    chunks = chunks_of(kept)
    assert chunks <= graphs[1].chunks()
    use(kept, 1)
    use(gone, 2)
    del gone
    before = held()
    waits = standin.calls("cudaDeviceSynchronize")
    graphs[1].replay()
    assert standin.calls("cudaDeviceSynchronize") > waits
    assert chunks_of(kept) == chunks
    for graph in graphs:
        assert len(graph.chunks()) == len(graph.temporary) * graph.temporary[0][1] // (2 * MIB)
        assert not graph.chunks() & chunks
    assert graphs[0].chunks() <= graphs[1].chunks(), "they still share"
    memory = stalloc.graph_memory()
    assert memory.eager == len(chunks) * 2 * MIB
    assert held() == before + memory.eager
    use(kept, 1)
    # The next of its size lies elsewhere, and others go on.
    other, more = mib(10), mib(8)
    assert chunks_of(other) == {0}
    assert chunks_of(more) <= graphs[1].chunks()
    del more
    waits = standin.calls("cudaDeviceSynchronize")
    for graph in graphs * 2:
        graph.replay()
        mib(8)
    assert standin.calls("cudaDeviceSynchronize") == waits
    del kept
    torch.cuda.empty_cache()
    assert stalloc.graph_memory().eager == 0
    assert held() == before + 10 * MIB, "other's segment"
    assert_sound()


@isolated
def test_without_memory_for_the_graphs_a_replay_raises_before_it_begins() -> None:
    stalloc.share_graphs(eager=True)
    graph = Graph(60)
    graph.replay()
    kept = mib(40)
    chunks = chunks_of(kept)
    free, _ = torch.cuda.mem_get_info()
    rest = torch.empty(free - 4 * MIB, dtype=torch.uint8, device="cuda")
    launches = standin.calls("cudaGraphLaunch")
    with pytest.raises(torch.OutOfMemoryError, match="eager tensors are in 40"):
        graph.replay()
    assert standin.calls("cudaGraphLaunch") == launches
    assert chunks_of(kept) == chunks
    assert chunks <= graph.chunks()
    use(kept, 1)
    side = torch.cuda.Stream()
    del kept
    with torch.cuda.stream(side):
        graph.replay()
    kept = mib(4)
    del rest
    torch.cuda.empty_cache()
    graph.replay()
    assert not chunks_of(kept) & graph.chunks()
    assert_sound()


@isolated
def test_streams_wait_for_each_other() -> None:
    stalloc.share_graphs(eager=True)
    standin.set_manual(True)
    graph = Graph(60)
    streams = [torch.cuda.Stream() for _ in range(3)]
    for turn in range(12):
        with torch.cuda.stream(streams[turn % 3]):
            graph.replay()
        eager = streams[turn % 2]
        with torch.cuda.stream(eager):
            for owner in range(2):
                block = mib(25)
                assert chunks_of(block) <= graph.chunks()
                use(block, 10 + owner)
        with torch.cuda.stream(streams[(turn + 1) % 2]):  # one stream at a time
            assert chunks_of(mib(8)) == {0}
        del block
    standin.drain_all()
    assert_sound()


@isolated
def test_a_stream_of_the_replay_waits_for_nothing() -> None:
    stalloc.share_graphs(eager=True)
    graph = Graph(60)
    waits = standin.calls("cudaStreamWaitEvent")
    for _ in range(5):
        graph.replay()
        use(mib(30), 1)
    assert standin.calls("cudaStreamWaitEvent") == waits


@isolated
def test_replays_wait_for_recorded_streams() -> None:
    stalloc.share_graphs(eager=True)
    standin.set_manual(True)
    graph = Graph(60)
    side = torch.cuda.Stream()
    for turn in range(4):
        graph.replay()
        block, other = mib(30), mib(20)
        assert (chunks_of(block) <= graph.chunks()) == (turn == 0)
        use(block, 1)
        use(other, 2)
        side.wait_stream(torch.cuda.current_stream())
        use(block, 1, side)
        block.record_stream(side)
        other.record_stream(torch.cuda.current_stream())
        del block, other
        assert chunks_of(mib(20)) <= graph.chunks()
        if turn == 0:
            assert chunks_of(mib(35)) == {0}, "torch has not got the block back"
        waits = standin.host_waits()
        graph.replay()
        assert standin.host_waits() == waits
        standin.drain_all()
    assert_sound()


@isolated
def test_streams_that_may_vanish_get_no_memory_of_graphs() -> None:
    stalloc.share_graphs(eager=True)
    graph = Graph(60)
    handle = torch.cuda.Stream().cuda_stream
    with torch.cuda.stream(torch.cuda.ExternalStream(handle)):
        assert chunks_of(mib(30)) == {0}
        graph.replay()
    assert chunks_of(mib(30)) == {0}, "what follows that replay is not known"
    graph.replay()
    assert chunks_of(mib(30)) <= graph.chunks()
    assert_sound()


@isolated
def test_captures_see_no_lent_memory() -> None:
    """A graph reads it at each replay: it is kept when the capture begins."""
    stalloc.share_graphs(eager=True)
    first = Graph(60)
    first.replay()
    given = mib(20)
    address, chunks = given.data_ptr(), chunks_of(given)
    assert chunks <= first.chunks()
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        assert not chunks & first.chunks()
        inside = mib(30)
        with torch.cuda.stream(side):
            beside = chunks_of(mib(8))
    assert not beside & first.chunks()
    del inside
    for each in (first.graph, graph):
        each.replay()
    assert (given.data_ptr(), chunks_of(given)) == (address, chunks)
    assert chunks_of(mib(20)) <= first.chunks(), "a capture teaches nothing about a size"
    del given
    failed = torch.cuda.CUDAGraph()
    with pytest.raises(ValueError, match="of the program"), torch.cuda.graph(failed):
        raise ValueError("of the program")
    first.replay()
    assert chunks_of(mib(20)) <= first.chunks(), "a capture that fails ends, too"
    assert_sound()


@isolated
def test_memory_goes_with_the_graphs() -> None:
    torch.cuda.init()
    before = held()
    stalloc.share_graphs(eager=True)
    for _ in range(3):
        graphs = [Graph(40), Graph(60)]
        for graph in graphs:
            graph.replay()
            mib(30)
        del graphs, graph
        torch.cuda.empty_cache()
        assert stalloc.graph_memory().reserved == 0
        assert held() == before
    assert_sound()


@isolated
def test_memory_of_graphs_that_are_gone_serves_others() -> None:
    stalloc.share_graphs(eager=True)
    graph = Graph(60)
    graph.replay()
    mib(30)
    free, _ = torch.cuda.mem_get_info()
    del graph
    rest = torch.empty(free + 50 * MIB, dtype=torch.uint8, device="cuda")
    assert stalloc.graph_memory().reserved == 0
    del rest


@isolated
def test_graphs_that_go_leave_lent_tensors_their_memory() -> None:
    stalloc.share_graphs(eager=True)
    first, second = Graph(60), Graph(40)
    first.replay()
    block = mib(50)
    chunks = chunks_of(block)
    del first
    torch.cuda.empty_cache()
    assert chunks_of(block) == chunks
    use(block, 1)
    second.replay()
    assert chunks_of(block) == chunks
    assert not chunks & second.chunks()
    use(block, 1)
    third = Graph(60)
    third.replay()
    assert chunks_of(block) == chunks
    assert not chunks & (second.chunks() | third.chunks())
    del block
    torch.cuda.empty_cache()
    assert stalloc.graph_memory().eager == 0
    assert_sound()


@isolated
def test_larger_graphs_lend_more() -> None:
    stalloc.share_graphs(eager=True)
    graph = Graph(40)
    graph.replay()
    assert chunks_of(mib(60)) == {0}
    larger = Graph(80)
    assert chunks_of(mib(60)) <= larger.chunks()
    graph.replay()
    assert_sound()


@pytest.mark.parametrize("name", ["raw_cuda_graph", "raw_cuda_graph_exec"])
@isolated
def test_lending_ends_if_the_program_may_launch_graphs_by_itself(name: str) -> None:
    stalloc.share_graphs(eager=True)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        temporary = mib(60).data_ptr()
    graph.instantiate()
    graph.replay()
    block = mib(30)
    assert standin.memory_at(temporary) in chunks_of(block)
    getattr(graph, name)()
    assert standin.memory_at(temporary) not in chunks_of(block)
    del block
    assert chunks_of(mib(30)) == {0}
    graph.replay()
    stalloc.share_graphs(eager=True)
    graph.replay()
    assert chunks_of(mib(30)) == {0}, "for good"
    assert_sound()


@isolated
def test_lending_stops_and_begins_again() -> None:
    shared = stalloc.share_graphs(eager=True)
    graph = Graph(60)
    graph.replay()
    kept = mib(10)
    shared.stop()
    assert chunks_of(mib(30)) == {0}
    graph.replay()
    assert not chunks_of(kept) & graph.chunks()
    stalloc.share_graphs(eager=True)
    assert chunks_of(mib(30)) <= graph.chunks()
    graph.replay()
    assert_sound()


@isolated
def test_lending_begins_after_graphs_have_run() -> None:
    stalloc.share_graphs()
    graph = Graph(60)
    side = torch.cuda.Stream()
    standin.set_manual(True)
    with torch.cuda.stream(side):
        graph.replay()
    stalloc.share_graphs(eager=True)
    assert chunks_of(mib(30)) == {0}
    graph.replay()
    assert chunks_of(mib(30)) <= graph.chunks()
    assert_sound()


@isolated
def test_lending_does_not_begin_during_a_capture() -> None:
    stalloc.share_graphs()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(StallocError, match="before the first capture"):
        stalloc.share_graphs(eager=True)


@isolated
def test_pools_of_the_program_come_first() -> None:
    stalloc.share_graphs(eager=True)
    graph = Graph(60)
    graph.replay()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        block = mib(30)
        graph.replay()
    assert chunks_of(block) == {0}
    assert chunks_of(mib(30)) <= graph.chunks()
    assert_sound()


@isolated
def test_a_plan_and_a_profile_keep_their_requests() -> None:
    stalloc.share_graphs(eager=True)
    graph = Graph(60)
    weight = torch.zeros(8 * MIB, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step() -> None:
        (weight * 2).tanh().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        stalloc.step()

    with stalloc.profile(device="cuda") as prof:
        for _ in range(3):
            graph.replay()
            step()
            assert not chunks_of(mib(30)) & graph.chunks()
    with stalloc.enable(prof.plan()):
        for _ in range(4):
            graph.replay()
            step()
            assert not chunks_of(mib(30)) & graph.chunks()
        assert stalloc.memory_stats()["hit_rate"] > 0.7
    graph.replay()
    assert chunks_of(mib(30)) <= graph.chunks()
    assert_sound()


@isolated
def test_shared_with_other_processes_is_refused_clearly() -> None:
    stalloc.share_graphs(eager=True)
    graph = Graph(60)
    graph.replay()
    block = mib(30)
    with pytest.raises(RuntimeError, match="memory of captured graphs cannot be shared"):
        block.untyped_storage()._share_cuda_()


@isolated
def test_devices_do_not_concern_each_other() -> None:
    stalloc.share_graphs(eager=True)
    graphs = []
    for device in range(2):
        with torch.cuda.device(device):
            graphs.append(Graph(60))
            graphs[-1].replay()
    first, second = mib(30), torch.empty(30 * MIB, dtype=torch.uint8, device="cuda:1")
    assert chunks_of(first) <= graphs[0].chunks()
    assert chunks_of(second) <= graphs[1].chunks()
    graphs[1].graph.replay()  # from the other device
    assert chunks_of(first) <= graphs[0].chunks()
    assert not chunks_of(second) & graphs[1].chunks()
    del second
    with torch.cuda.device(1):
        graphs[1].replay()
    assert_sound()


@isolated
def test_threads_replay_and_request_at_once() -> None:
    stalloc.share_graphs(eager=True)
    graphs = [Graph(40), Graph(60)]
    stop = threading.Event()
    problems: list[BaseException] = []

    def request(seed: int) -> None:
        rng = random.Random(seed)
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                while not stop.is_set():
                    block = mib(rng.uniform(2, 20))
                    use(block, rng.randrange(1, 1 << 30))
                    del block
        except BaseException as e:
            problems.append(e)

    threads = [threading.Thread(target=request, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(300):
        graphs[turn % 2].replay()
    stop.set()
    for thread in threads:
        thread.join()
    assert not problems
    assert_sound()


@isolated
def test_torchs_statistics_know_only_the_programs_requests() -> None:
    stalloc.share_graphs(eager=True)
    graph = Graph(60)
    graph.replay()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    block = mib(20)
    assert chunks_of(block) <= graph.chunks()
    assert torch.cuda.memory_allocated() == before["allocated_bytes.all.current"] + 20 * MIB
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
    more = mib(30)
    del block
    after = torch.cuda.memory_stats()
    assert after["allocated_bytes.all.peak"] == before["allocated_bytes.all.current"] + 50 * MIB
    assert after["allocated_bytes.all.allocated"] == (
        before["allocated_bytes.all.allocated"] + 50 * MIB
    )
    assert after["allocation.large_pool.freed"] == before["allocation.large_pool.freed"] + 1
    assert after["reserved_bytes.all.peak"] == before["reserved_bytes.all.current"] + 60 * MIB
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0
    del more


@isolated
def test_requests_during_a_replay_lie_elsewhere() -> None:
    requested: list[set[int]] = []
    launch: Any = torch.cuda.CUDAGraph.replay

    def replay(this: Any) -> None:
        def request() -> None:
            requested.append(chunks_of(mib(30)))

        thread = threading.Thread(target=request)
        thread.start()
        thread.join()
        launch(this)

    torch.cuda.CUDAGraph.replay = replay  # type: ignore[method-assign]
    stalloc.share_graphs(eager=True)
    graph = Graph(60)
    for _ in range(3):
        assert chunks_of(mib(30)) <= graph.chunks()
        graph.replay()
    assert requested == [{0}] * 3
    assert_sound()


@pytest.mark.parametrize("seed", range(8))
@isolated
def test_any_program_is_sound(seed: int) -> None:
    """No live tensor is in a chunk of another one, or of a graph that runs."""
    rng = random.Random(seed)
    standin.set_manual(rng.random() < 0.5)
    stalloc.share_graphs(eager=True)
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    graphs: list[Graph] = []
    live: dict[int, tuple[Tensor, set[int], Any]] = {}  # by owner
    graph: Graph | None = None
    owners = 0
    lent = 0

    def check() -> None:
        pages: dict[int, int] = {}  # by chunk: the only address at which something lives there
        for block in [*(entry[0] for entry in live.values()), *(graph.output for graph in graphs)]:
            begin, end = block.data_ptr(), block.data_ptr() + block.numel()
            for page in range(begin // CHUNK, (end - 1) // CHUNK + 1):
                if chunk := standin.memory_at(page * CHUNK):
                    assert pages.setdefault(chunk, page) == page
        for block, chunks, _ in live.values():
            assert chunks_of(block) == chunks

    for _ in range(250):
        action = rng.random()
        stream = rng.choice(streams)
        if action < 0.06 and len(graphs) < 6:
            torch.cuda.synchronize()
            pool = rng.choice(graphs).graph.pool() if graphs and rng.random() < 0.3 else None
            graphs.append(Graph(rng.randrange(10, 80), pool))
        elif action < 0.09 and graphs:
            graphs.pop(rng.randrange(len(graphs)))
            if rng.random() < 0.5:
                torch.cuda.empty_cache()
        elif action < 0.35 and graphs:
            with torch.cuda.stream(stream):
                graph = rng.choice(graphs)
                graph.replay()
                for _, chunks, _ in live.values():
                    assert not chunks & graph.chunks(), "alive at a replay"
        elif action < 0.7:
            with torch.cuda.stream(stream):
                owners += 1
                block = mib(rng.choice([2, 3, 5, 8, 13, 21, 34]))
                chunks = chunks_of(block)
                shared = set().union(*(graph.chunks() for graph in graphs))
                lent += bool(chunks & shared)
                use(block, owners)
                live[owners] = (block, chunks, stream)
                if rng.random() < 0.5:
                    del live[owners]
                del block
        elif action < 0.75 and live:
            owner = rng.choice(list(live))
            block, _, home = live[owner]
            other = rng.choice(streams)
            other.wait_stream(home)
            use(block, owner, other)
            block.record_stream(other)
            del block
        elif live:
            del live[rng.choice(list(live))]
        if rng.random() < 0.3:
            standin.drain_all()
        check()
    assert lent > 0
    standin.drain_all()
    live.clear()
    graphs.clear()
    graph = None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert stalloc.graph_memory().reserved == 0
    assert_sound()
