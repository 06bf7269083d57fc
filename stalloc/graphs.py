"""Captured CUDA graphs that share memory.

torch gives each graph a private pool, so the memory of many graphs adds up, although they run one
after another. What a graph frees during its capture is needed only while it runs. `share_graphs()`
lets all graphs have the same memory for it:

    torch     | graph A: outputs, temporaries | graph B: outputs, temporaries | ...
    stalloc   | A: outputs | B: outputs | ... | temporaries of any of them |

Addresses stay those of the capture, so a replay costs what it did. The device's virtual memory puts
the same memory behind the addresses of different graphs, and behind those of one graph whose blocks
do not live at once. What lives on when a capture ends has memory of its own: outputs, and
activations for a graph of the backward pass. torch places it apart from the temporaries once a
capture of the same kind has shown which requests those are. If graphs are replayed on different
streams, a replay waits on the device for those before it.

A capture is concerned if it is given no pool, or that of such a graph (`graph.pool()`), and so are
those of `torch.cuda.make_graphed_callables`. Graphs of `torch.compile`, and others with a pool of
`torch.cuda.graph_pool_handle()` or a `MemPool`, keep torch's memory. So does a graph without a pool
whose capture begins during one that shares on the same device. A capture into a sharing pool is
refused then.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch

from stalloc import _compat, _core
from stalloc._adapters import adapter, keep_graphs_unregistered, registers_memory
from stalloc._frameworks.patches import Patches
from stalloc._torch_modules import CudaModule, cuda_module
from stalloc.errors import OutOfMemory, StallocError

_LIBRARY = Path(_core.__file__).with_name("libstalloc_compat.so")
_cuda: Any = torch.cuda

PoolId = tuple[int, int]
_Use = tuple[int, int, int, int, int]  # begin, end, first and last tick, stream
_ALWAYS = 1 << 40  # a tick later than any capture's end


class _Block(NamedTuple):
    begin: int
    end: int
    stream: int


@dataclass(frozen=True, slots=True)
class GraphMemory:
    """Memory of a device's graphs that share, in bytes.

    Attributes:
        addresses: What torch counts as reserved for them: each graph's, as if nothing were shared.
        shared: Memory that several graphs have.
        own: Memory of one graph, for what lives on after its capture.
        eager: Memory that eager tensors have kept because they lived at a replay.
        pools: Private pools, of which a graph has one unless it was given another graph's.
    """

    addresses: int
    shared: int
    own: int
    eager: int
    pools: int

    @property
    def reserved(self) -> int:
        """Bytes of the device's memory."""
        return self.shared + self.own + self.eager


@dataclass(slots=True)
class _Replays:
    """The order of the replays on a device."""

    stream: Any = None
    event: Any = None  # of a stream that may be destroyed


@dataclass(slots=True)
class _Pool:
    """A private pool whose segments come from stalloc.

    Attributes:
        ids: Its id in torch, and that of the pool beside it for what lives on, if there is one.
        made: These pools, held until a capture into them has ended: then the graph holds them.
        captures: The captures into it.
        graphs: Those that hold the pool beside it.
    """

    ids: list[PoolId]
    made: list[Any]
    captures: int = 0
    graphs: int = 0

    @property
    def kept(self) -> PoolId | None:
        """The pool for what lives on, unless it is gone."""
        return self.ids[1] if len(self.ids) > 1 and (self.graphs or self.made) else None

    def live(self) -> list[_Block]:
        """The blocks that live, or wait for another stream."""
        return [block for pool in self.ids for block in _live(pool)]


@dataclass(slots=True)
class _Capture:
    """A capture that goes on.

    Attributes:
        device: The GPU's index.
        into: Its pool, if that shares memory.
        follows: True if torch's memory history is on for it.
        before: Blocks of the pool that lived before it, if they are needed.
        requests: The number of requests of the device before it.
    """

    device: int
    into: PoolId | None
    follows: bool = False
    before: list[_Block] = field(default_factory=list)
    requests: int = 0

    @property
    def pool(self) -> PoolId:
        """The pool as `_core` calls it."""
        return self.into or (0, 0)


@dataclass(slots=True)
class _State:
    allocator: Any
    module: CudaModule | None  # none: not built for this torch; blocks lie where torch puts them
    shares: bool = True
    pools: dict[PoolId, _Pool] = field(default_factory=dict)
    # Graphs whose replays have an order: their devices.
    ordered: weakref.WeakKeyDictionary[Any, int] = field(default_factory=weakref.WeakKeyDictionary)
    # The work of a graph when it goes.
    ends: weakref.WeakKeyDictionary[Any, Any] = field(default_factory=weakref.WeakKeyDictionary)
    captures: dict[Any, _Capture] = field(default_factory=dict)  # that go on, by graph
    paused: dict[Any, int] = field(default_factory=dict)  # devices that lend nothing, by capture
    # The capture whose requests that will live on have a pool of their own.
    routed: _Capture | None = None
    replays: dict[int, _Replays] = field(default_factory=dict)
    lends: bool = False  # memory of graphs to eager tensors, on devices where graphs share
    lent: set[int] = field(default_factory=set)  # devices on which it has, which replays look at
    may_lend: bool = True  # until the program may launch graphs by itself
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
        """Leaves further captures to torch, and further eager requests."""
        if _state is not None:
            _state.shares = _state.lends = False
            for device in _state.lent:
                _lending(_state).stop_graph_loans(device)


def share_graphs(*, eager: bool = False) -> SharedGraphs:
    """Lets the CUDA graphs that are captured from now on share memory.

    Example::

        stalloc.share_graphs()
        for size in (1, 2, 4, 8, 16):
            graphs[size] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[size]):
                outputs[size] = model(inputs[size])

    Replays through `CUDAGraph.replay` are ordered. A library that launches a graph by itself
    (`raw_cuda_graph_exec`) has to order it after other graphs, and others after it.

    Args:
        eager: Lets eager requests of 2 MiB or more have the same memory between replays. Those that
            are not freed before the next replay keep it: the first of a size costs a wait for the
            device, and the graphs get other memory. It ends when a graph's raw handle is asked for.

    Returns:
        An object that ends it: `stop()`, or a `with` block.

    Raises:
        StallocError: This torch has no GPU support, the device no virtual memory, or NCCL is to
            register what graphs send and receive. With `eager`: this stalloc has no native mode for
            this torch, or a graph is being captured.
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
    if eager and ((_state and _state.captures) or torch.cuda.is_current_stream_capturing()):
        raise StallocError(
            "a graph is being captured; call share_graphs(eager=True) before the first capture"
        )
    if eager:
        cuda_module()  # raises if there is none
    device = torch.cuda.current_device()
    _core.graph_memory_of(device)
    if _state is None:
        made = torch.cuda.memory.CUDAPluggableAllocator(
            str(_LIBRARY), "stalloc_graph_malloc", "stalloc_graph_free"
        )
        _state = _State(made, _module())
        _patch(_state)
    _state.shares = True
    if eager:
        _state.lends = True
        _lend(_state, device)
    return SharedGraphs()


def _lending(state: _State) -> CudaModule:
    assert state.module is not None
    return state.module


def _lend(state: _State, device: int) -> None:
    """Lets eager requests on a device have the memory of graphs, if they are to."""
    if not (state.lends and state.may_lend):
        return
    adapter(torch.device("cuda", device)).install()
    with state.lock:
        _lending(state).start_graph_loans(device, device in state.replays)
        state.lent.add(device)


def _module() -> CudaModule | None:
    try:
        return cuda_module()
    except StallocError:
        return None


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
    reset: Any = graph.reset

    def begun(this: Any, pool: Any = None, *args: Any, **kwargs: Any) -> None:
        if this in state.captures:  # torch refuses
            begin(this, pool, *args, **kwargs)
            return
        given = getattr(pool, "id", pool)
        device = torch.cuda.current_device()
        if device not in state.lent:
            _lend(state, device)
        try:
            _pause(state, this, device)
            into = _start(state, this, given)
            begin(this, *(() if into is None else (into,)), *args, **kwargs)
        except BaseException:
            if (held := _left(state, this)) is not None:
                held()
            _resume(state, this)
            raise

    def ended(this: Any, *args: Any, **kwargs: Any) -> None:
        try:
            settled(this, *args, **kwargs)
        finally:
            _resume(state, this)

    def settled(this: Any, *args: Any, **kwargs: Any) -> None:
        if (capture := state.captures.get(this)) is None:
            end(this, *args, **kwargs)
            return
        device, into = capture.device, capture.into
        kept = [] if into is None else state.pools[into].live()
        followed = None
        try:
            end(this, *args, **kwargs)
            if capture.follows:
                followed = _uses(device, capture.before, _requests(device) - capture.requests)
        finally:
            held = _left(state, this)
            if held is not None:
                state.ends[this] = weakref.finalize(this, held)
                state.ends[this].atexit = False
        if into is None:
            return
        state.ordered[this] = device
        if followed and state.module and held is not None:
            state.module.learn_graph_lives(followed.lives)
        try:
            kept += state.pools[into].live()
            _core.settle_graph_pool(
                device,
                into,
                [(block.begin, block.end) for block in kept],
                None if followed is None else followed.uses,
            )
        except OutOfMemory as error:
            this.reset()
            raise torch.OutOfMemoryError(f"CUDA out of memory: {error}") from error
        except StallocError:
            this.reset()
            raise

    def replayed(this: Any, *args: Any, **kwargs: Any) -> None:
        if torch.cuda.is_current_stream_capturing():
            if this in state.ordered:  # it becomes a part of one of these
                state.ordered.update({graph: c.device for graph, c in state.captures.items()})
            replay(this, *args, **kwargs)
        elif (device := state.ordered.get(this)) is not None:
            with state.lock, _alone(state, device):
                replays = _wait_for_others(state, device)
                replay(this, *args, **kwargs)
                if not _stays(replays.stream):
                    replays.event = _cuda.Event()
                    replays.event.record(replays.stream)
        else:
            replay(this, *args, **kwargs)

    def cleared(this: Any, *args: Any, **kwargs: Any) -> None:
        reset(this, *args, **kwargs)
        if (end := state.ends.pop(this, None)) is not None:
            end()

    patches.replace(graph, "capture_begin", begun)
    patches.replace(graph, "capture_end", ended)
    patches.replace(graph, "replay", replayed)
    patches.replace(graph, "reset", cleared)
    for name in ("raw_cuda_graph", "raw_cuda_graph_exec"):
        if hasattr(graph, name):
            patches.replace(graph, name, _handing_out(state, getattr(graph, name)))
    handle: Any = _cuda.graphs.graph_pool_handle

    def handed() -> Any:  # to make_graphed_callables
        return _new_pool(state, torch.cuda.current_device()) if state.shares else handle()

    patches.replace(_cuda.graphs, "graph_pool_handle", handed)


def _new_pool(state: _State, device: int) -> PoolId:
    _core.graph_memory_of(device)
    pool, made = _make(state)
    state.pools[pool] = _Pool([pool], [made])
    return pool


def _make(state: _State) -> tuple[PoolId, Any]:
    made = torch.cuda.MemPool(state.allocator.allocator())
    return tuple(made.id), made  # type: ignore[return-value]


def _start(state: _State, graph: Any, given: PoolId | None) -> PoolId | None:
    """A capture is about to begin, perhaps during others. Returns the pool to be passed to torch.

    Raises:
        StallocError: The given pool shares memory, and another capture goes on.
    """
    device = torch.cuda.current_device()
    with state.lock:
        others = [capture for capture in state.captures.values() if capture.device == device]
        shared = any(capture.into is not None for capture in others)
        # The end of a later capture into a pool waits for the device, which spoils the others.
        if given in state.pools and (shared or (others and state.pools[given].captures)):
            raise StallocError(
                f"another graph is being captured on GPU {device}, so no capture into a pool whose "
                "graphs share memory can begin; capture one graph after another, or leave out the "
                "pool"
            )
        into = _new_pool(state, device) if given is None and state.shares and not shared else given
        capture = _Capture(device, into if into in state.pools else None)
        _core.begin_graph_pool(device, capture.pool)
        state.captures[graph] = capture
        if capture.into is None:
            return into
        pool = state.pools[capture.into]
        if state.routed is None:
            _route(state, capture, pool)
        # The history of a user who has it on may have begun to forget.
        if not torch._C._cuda_isHistoryEnabled():
            capture.before = pool.live() if pool.captures else []
            _follow(True)
            capture.follows, capture.requests = True, _requests(device)
    return into


def _route(state: _State, capture: _Capture, pool: _Pool) -> None:
    """Lets blocks that will live on after the capture into a pool go to the one beside it."""
    if state.module is None:
        return
    if pool.captures == 0 and pool.kept is None:
        kept, made = _make(state)
        pool.ids.append(kept)
        pool.made.append(made)
    if pool.kept is not None:
        state.routed = capture
        state.module.begin_graph_routes(capture.device, capture.pool, pool.kept, pool.captures)


def _left(state: _State, graph: Any) -> Callable[[], None] | None:
    """A capture has ended, or failed. Returns what its graph does when it goes."""
    with state.lock:
        if (capture := state.captures.pop(graph, None)) is None:
            return None
        pool = None if capture.into is None else state.pools[capture.into]
        held = None
        if state.routed is capture and state.module:
            state.routed = None
            if state.module.end_graph_routes() and pool is not None:
                held = _hold(state.module, capture.device, pool)
        if capture.follows:
            _follow(False)
        _core.end_graph_pool(capture.device, capture.pool)
        if pool is not None:
            pool.captures += 1
            pool.made.clear()
        return held


def _hold(module: CudaModule, device: int, pool: _Pool) -> Callable[[], None]:
    """A graph holds the pool for what lives on. Returns what ends that."""
    pool.graphs += 1
    kept = pool.ids[1]

    def end() -> None:
        pool.graphs -= 1
        module.release_graph_pool(device, kept)

    return end


def _follow(on: bool) -> None:
    """Turns torch's history of requests on, without stacks, or off."""
    _cuda.memory._record_memory_history("all" if on else None, context=None, clear_history=True)


def _requests(device: int) -> int:
    """The number of requests that torch has served on a device."""
    count: int = torch.cuda.memory_stats(device)["allocation.all.allocated"]
    return count


@dataclass(frozen=True, slots=True)
class _Followed:
    """A capture as torch's history tells it.

    Attributes:
        uses: The blocks, and when they lived.
        lives: For each request, whether its block has not been freed.
    """

    uses: list[_Use]
    lives: list[bool]


def _uses(device: int, before: list[_Block], requests: int) -> _Followed | None:
    """The blocks of a capture, with those that lived before it.

    None if the history does not have all its requests: the program may have stopped or cleared it.
    """
    trace = _cuda.memory._snapshot()["device_traces"][device]
    if sum(entry["action"] == "alloc" for entry in trace) != requests:
        return None
    begun = {block.begin: (0, block, -1) for block in before}
    uses: list[_Use] = []
    lives: list[bool] = []
    for tick, entry in enumerate(trace, start=1):
        address = entry.get("addr", 0)
        if entry["action"] == "alloc":
            block = _Block(address, address + entry["size"], entry["stream"])
            begun[address] = (tick, block, len(lives))
            lives.append(True)
        elif entry["action"] == "free_completed" and address in begun:
            first, block, number = begun.pop(address)
            uses.append((block.begin, block.end, first, tick, block.stream))
            if number >= 0:
                lives[number] = False
    for first, block, _ in begun.values():
        uses.append((block.begin, block.end, first, _ALWAYS, block.stream))
    return _Followed(uses, lives)


def _live(pool: PoolId) -> list[_Block]:
    return [
        _Block(block["address"], block["address"] + block["size"], segment["stream"])
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


def _pause(state: _State, graph: Any, device: int) -> None:
    """A capture is about to begin: eager tensors are no longer in the memory of graphs."""
    if device in state.lent:
        with _out_of_memory():
            _lending(state).pause_graph_loans(device)
        state.paused[graph] = device


def _resume(state: _State, graph: Any) -> None:
    if (device := state.paused.pop(graph, None)) is not None:
        _lending(state).resume_graph_loans(device)


@contextmanager
def _out_of_memory() -> Iterator[None]:
    """Raises torch's error if the memory has run out."""
    try:
        yield
    except OutOfMemory as error:
        raise torch.OutOfMemoryError(
            f"CUDA out of memory: {error}; free some tensors, or leave out eager=True of "
            "stalloc.share_graphs()"
        ) from error


@contextmanager
def _alone(state: _State, device: int) -> Iterator[None]:
    """For a replay: no eager tensor is in the memory of graphs."""
    if device not in state.lent:
        yield
        return
    stream = torch.cuda.current_stream(device)
    module, stays = _lending(state), _stays(stream)
    try:
        module.begin_graph_replay(device, stream.cuda_stream, stays)
    except OutOfMemory:
        torch.cuda.empty_cache()
        with _out_of_memory():
            module.begin_graph_replay(device, stream.cuda_stream, stays)
    try:
        yield
    finally:
        module.end_graph_replay(device)


def _handing_out(state: _State, method: Any) -> Any:
    @functools.wraps(method)
    def handed(this: Any, *args: Any, **kwargs: Any) -> Any:
        if this in state.ordered:
            state.may_lend = False
            for device in state.lent:
                with _out_of_memory():
                    _lending(state).end_graph_loans(device)
        return method(this, *args, **kwargs)

    return handed


def _stays(stream: Any) -> bool:
    """False for a stream that is not torch's, and may be destroyed: its number is its handle."""
    return stream.cuda_stream == 0 or bool(stream.stream_id != stream.cuda_stream)


def _wait_for_others(state: _State, device: int) -> _Replays:
    """Orders a replay on the device's current stream after those before it."""
    stream = torch.cuda.current_stream(device)
    replays = state.replays.setdefault(device, _Replays())
    if replays.event is not None:
        stream.wait_event(replays.event)
    elif replays.stream is not None and replays.stream != stream:
        stream.wait_stream(replays.stream)
    replays.stream, replays.event = stream, None
    return replays
