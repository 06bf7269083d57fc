"""Captured CUDA graphs that share memory.

torch gives each graph a private pool, so the memory of many graphs adds up, although they run one
after another. What a graph frees during its capture is needed only while it runs. `share_graphs()`
lets all graphs have the same memory for it:

    torch     | graph A: outputs, temporaries | graph B: outputs, temporaries | ...
    stalloc   | A: outputs | B: outputs | ... | temporaries of any of them |

Addresses stay those of the capture, so a replay costs what it did. The device's virtual memory puts
the same memory behind the addresses of different graphs, and behind those of one graph whose blocks
do not live at once. What lives on when a capture ends has memory of its own: outputs, and
activations for a graph of the backward pass. If graphs are replayed on different streams, a replay
waits on the device for those before it.

A capture is concerned if it is given no pool, or that of such a graph (`graph.pool()`), and so are
those of `torch.cuda.make_graphed_callables`. Graphs of `torch.compile`, and others with a pool of
`torch.cuda.graph_pool_handle()` or a `MemPool`, keep torch's memory.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from stalloc import _compat, _core
from stalloc._adapters import keep_graphs_unregistered, registers_memory
from stalloc._frameworks.patches import Patches
from stalloc.errors import OutOfMemory, StallocError

_LIBRARY = Path(_core.__file__).with_name("libstalloc_compat.so")
_cuda: Any = torch.cuda

PoolId = tuple[int, int]


@dataclass(frozen=True, slots=True)
class GraphMemory:
    """Memory of a device's graphs that share, in bytes.

    Attributes:
        addresses: What torch counts as reserved for them: each graph's, as if nothing were shared.
        shared: Memory that several graphs have.
        own: Memory of one graph, for what lives on after its capture.
        pools: Private pools, of which a graph has one unless it was given another graph's.
    """

    addresses: int
    shared: int
    own: int
    pools: int

    @property
    def reserved(self) -> int:
        """Bytes of the device's memory."""
        return self.shared + self.own


@dataclass(slots=True)
class _Replays:
    """The order of the replays on a device."""

    stream: Any = None
    event: Any = None  # of a stream that may be destroyed


@dataclass(slots=True)
class _State:
    allocator: Any
    shares: bool = True
    # Private pools whose segments come from stalloc. They are held until a capture into them has
    # ended: from then on the graph holds its pool.
    pools: dict[PoolId, Any] = field(default_factory=dict)
    # Graphs whose replays have an order.
    ordered: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    captured: Any = None  # the graph that is being captured
    into: PoolId | None = None
    follows: bool = False  # torch's memory history is on for this capture
    requests: int = 0  # of the device, before it
    replays: dict[int, _Replays] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)


_state: _State | None = None


class SharedGraphs:
    """Captures share memory until `stop()`, or the end of the `with` block.

    Graphs that were captured before keep what they have, and their replays keep their order.
    """

    def __enter__(self) -> SharedGraphs:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Leaves further captures to torch."""
        if _state is not None:
            _state.shares = False


def share_graphs() -> SharedGraphs:
    """Lets the CUDA graphs that are captured from now on share memory.

    Example::

        stalloc.share_graphs()
        for size in (1, 2, 4, 8, 16):
            graphs[size] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[size]):
                outputs[size] = model(inputs[size])

    Replays through `CUDAGraph.replay` are ordered. A library that launches a graph by itself
    (`raw_cuda_graph_exec`) has to order it after other graphs, and others after it.

    Returns:
        An object that ends it: `stop()`, or a `with` block.

    Raises:
        StallocError: This torch has no GPU support, the device no virtual memory, or NCCL is to
            register what graphs send and receive.
    """
    global _state
    if torch.version.cuda is None or not torch.cuda.is_available():
        raise StallocError(
            "graphs share memory on a GPU of CUDA, and this process has none: "
            f"torch {torch.__version__}"
        )
    if _compat.installed():
        raise StallocError(
            "graphs share memory by torch's private pools, which compat mode does not use; use "
            "native mode, or no plan"
        )
    if registers_memory():
        raise StallocError(
            "graphs share virtual memory, which NCCL cannot register, and NCCL_GRAPH_REGISTER or "
            "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK asks for that; set them to 0, or leave "
            "out share_graphs()"
        )
    keep_graphs_unregistered()
    _core.graph_memory_of(torch.cuda.current_device())
    if _state is None:
        made = torch.cuda.memory.CUDAPluggableAllocator(
            str(_LIBRARY), "stalloc_graph_malloc", "stalloc_graph_free"
        )
        _state = _State(made)
        _patch(_state)
    _state.shares = True
    return SharedGraphs()


def graph_memory(device: int | torch.device | None = None) -> GraphMemory:
    """The memory of the graphs of a device that share.

    Args:
        device: The GPU; the current one by default.
    """
    return GraphMemory(**_core.graph_memory(_index(device)))


def _index(device: int | torch.device | None) -> int:
    if isinstance(device, torch.device):
        device = device.index
    return torch.cuda.current_device() if device is None else device


def _patch(state: _State) -> None:
    """Follows captures and replays, for the rest of the process: graphs live as long."""
    patches = Patches()
    graph = torch.cuda.CUDAGraph
    begin: Any = graph.capture_begin
    end: Any = graph.capture_end
    replay: Any = graph.replay

    def begun(this: Any, pool: Any = None, *args: Any, **kwargs: Any) -> None:
        device = torch.cuda.current_device()
        given = getattr(pool, "id", pool)
        into = _new_pool(state, device) if given is None and state.shares else given
        given_on = () if into is None else (into,)
        ours = into in state.pools
        _core.begin_graph_pool(device, into if ours else (0, 0))
        state.captured, state.into = this, into if ours else None
        try:
            # The history of a user who has it on may have begun to forget.
            if ours and not torch._C._cuda_isHistoryEnabled():
                _follow(True)
                state.follows, state.requests = True, _requests(device)
            begin(this, *given_on, *args, **kwargs)
        except BaseException:
            _left(state, device)
            raise

    def ended(this: Any, *args: Any, **kwargs: Any) -> None:
        device = torch.cuda.current_device()
        into = state.into
        kept = [] if into is None else _live(into)
        uses = None
        try:
            end(this, *args, **kwargs)
            if state.follows:
                uses = _uses(device, _requests(device) - state.requests)
        finally:
            _left(state, device)
        if into is None:
            return
        state.ordered.add(this)
        try:
            _core.settle_graph_pool(device, into, kept + _live(into), uses)
        except OutOfMemory as error:
            this.reset()
            raise torch.OutOfMemoryError(str(error)) from error

    def replayed(this: Any, *args: Any, **kwargs: Any) -> None:
        if torch.cuda.is_current_stream_capturing():
            if this in state.ordered and state.captured is not None:
                state.ordered.add(state.captured)  # of which it becomes a part
            replay(this, *args, **kwargs)
        elif this in state.ordered:
            with state.lock:
                replays = _wait_for_others(state)
                replay(this, *args, **kwargs)
                if isinstance(replays.stream, torch.cuda.ExternalStream):  # may be destroyed
                    replays.event = _cuda.Event()
                    replays.event.record(replays.stream)
        else:
            replay(this, *args, **kwargs)

    patches.replace(graph, "capture_begin", begun)
    patches.replace(graph, "capture_end", ended)
    patches.replace(graph, "replay", replayed)
    handle: Any = _cuda.graphs.graph_pool_handle

    def handed() -> Any:  # to make_graphed_callables
        return _new_pool(state, torch.cuda.current_device()) if state.shares else handle()

    patches.replace(_cuda.graphs, "graph_pool_handle", handed)


def _new_pool(state: _State, device: int) -> PoolId:
    _core.graph_memory_of(device)
    made = torch.cuda.MemPool(state.allocator.allocator())
    pool: PoolId = tuple(made.id)  # type: ignore[assignment]
    state.pools[pool] = made
    return pool


def _left(state: _State, device: int) -> None:
    """A capture has ended, or failed."""
    state.captured, into, state.into = None, state.into, None
    if state.follows:
        state.follows = False
        _follow(False)
    _core.end_graph_pool(device)
    if into is not None:
        state.pools[into] = None


def _follow(on: bool) -> None:
    """Turns torch's history of requests on, without stacks, or off."""
    _cuda.memory._record_memory_history("all" if on else None, context=None, clear_history=True)


def _requests(device: int) -> int:
    """The number of requests that torch has served on a device."""
    count: int = torch.cuda.memory_stats(device)["allocation.all.allocated"]
    return count


def _uses(device: int, requests: int) -> list[tuple[int, int, int, int, int]] | None:
    """The blocks that came and went: begin, end, first and last tick, and stream.

    None if the history does not have all requests of the capture: the program may have stopped or
    cleared it.
    """
    trace = _cuda.memory._snapshot()["device_traces"][device]
    begun: dict[int, tuple[int, int, int]] = {}
    uses = []
    if sum(entry["action"] == "alloc" for entry in trace) != requests:
        return None
    for tick, entry in enumerate(trace):
        address = entry.get("addr", 0)
        if entry["action"] == "alloc":
            begun[address] = (tick, entry["size"], entry["stream"])
        elif entry["action"] == "free_completed" and address in begun:
            first, size, stream = begun.pop(address)
            uses.append((address, address + size, first, tick, stream))
    return uses


def _live(pool: PoolId) -> list[tuple[int, int]]:
    """The blocks of a private pool that live, or wait for another stream."""
    return [
        (block["address"], block["address"] + block["size"])
        for segment in _cuda.memory_snapshot(pool)
        if tuple(segment["segment_pool_id"]) == pool
        for block in _with_addresses(segment)
        if block["state"] != "inactive"
    ]


def _with_addresses(segment: dict[str, Any]) -> list[dict[str, Any]]:
    address = segment["address"]
    blocks = []
    for block in segment["blocks"]:
        blocks.append({**block, "address": address})
        address += block["size"]
    return blocks


def _wait_for_others(state: _State) -> _Replays:
    """Orders a replay on the current stream after those before it, whose last one it becomes."""
    stream = torch.cuda.current_stream()
    replays = state.replays.setdefault(torch.cuda.current_device(), _Replays())
    if replays.event is not None:
        stream.wait_event(replays.event)
    elif replays.stream is not None and replays.stream != stream:
        stream.wait_stream(replays.stream)
    replays.stream, replays.event = stream, None
    return replays
