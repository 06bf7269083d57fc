"""A process that pretends to be one of N that train together.

`init_process_group` makes torch's fake group, which communicates with nobody; the tensors that its
collectives give are the business of `stalloc._estimate.collectives`. What a launcher would set is
in the environment. Functions that the script starts in processes are those of `launching`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from stalloc._estimate import launching, pipelines
from stalloc._estimate.mail import Mail
from stalloc._estimate.stores import Store
from stalloc._estimate.traffic import Traffic
from stalloc._estimate.values import Unanswerable, Values, script_line
from stalloc._frameworks.patches import Patches
from stalloc._hooks import optimizers
from stalloc._torch_modules import torch_module
from stalloc.errors import StallocError

_GPUS_OF_A_NODE = 8
_NCCL = (2, 27, 3)
_CUDA = "13.0"
"""The versions that the pretended libraries claim to be."""

Result = TypeVar("Result")

_distributed: Any = dist


@dataclass(frozen=True, slots=True)
class World:
    """A rank among processes that train together.

    Attributes:
        size: The number of processes.
        rank: The rank of this one.
        shapes: What stages of a pipeline know of each other.
        mail: What ranks that have run have sent.
    """

    size: int
    rank: int = 0
    shapes: pipelines.Shapes = field(default_factory=pipelines.Shapes, compare=False)
    mail: Mail = field(default_factory=Mail, compare=False)

    def other(self, rank: int) -> World:
        """Another rank of the same processes."""
        return replace(self, rank=rank)

    @property
    def local_size(self) -> int:
        """The processes of one node, which has up to eight GPUs."""
        return min(self.size, _GPUS_OF_A_NODE)

    @property
    def local_rank(self) -> int:
        """The rank of this process in its node, which is the number of its GPU."""
        return self.rank % self.local_size

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that `torchrun` sets."""
        values = {
            "RANK": self.rank,
            "LOCAL_RANK": self.local_rank,
            "GROUP_RANK": self.rank // self.local_size,
            "GROUP_WORLD_SIZE": -(-self.size // self.local_size),
            "ROLE_RANK": self.rank,
            "ROLE_WORLD_SIZE": self.size,
            "ROLE_NAME": "default",
            "WORLD_SIZE": self.size,
            "LOCAL_WORLD_SIZE": self.local_size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": 29500,
            "TORCHELASTIC_RUN_ID": "stalloc",
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
        }
        return {name: str(value) for name, value in values.items()}


def world_of(size: int | None, rank: int) -> World | None:
    """The world of so many processes; None for a program of one that is not launched.

    Raises:
        StallocError: There is no such rank.
    """
    if size is None and rank == 0:
        return None
    if size is None or not 0 <= rank < size:
        raise StallocError(f"rank {rank}: there are {size or 1} processes, which --world tells")
    return World(size, rank)


@contextlib.contextmanager
def environment(world: World | None) -> Iterator[None]:
    """Sets what a launcher would, until the end of the block; nothing without a world."""
    variables = {} if world is None else world.variables
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def run_as(world: World | None, run: Callable[[World | None], Result]) -> Result:
    """Calls `run` with the processes; with the first rank before, if a stage asks for its shapes.

    Raises:
        Unanswerable: The first rank sends none.
    """
    try:
        return run(world)
    except pipelines.AsksFirstStage:
        assert world is not None
    optimizers.retire()
    run(world.other(0))
    optimizers.retire()
    return run(world)


def patch(patches: Patches, values: Values, traffic: Traffic, world: World | None) -> None:
    """Leads `torch.distributed` to the pretended processes, and functions that are spawned."""
    if not _distributed.is_available():
        return
    if world is not None:
        traffic.begin(world.mail, world.rank)
    _groups(patches, traffic, world)
    _data_parallel(patches, traffic)
    _sharded_tensors(patches)
    if world is not None and world.size > 1:
        launching.patch(patches, world.rank)
        pipelines.patch(patches, values, world.shapes, world.mail.meet)


def end() -> None:
    """Ends the group of a script that has left it open."""
    if _distributed.is_available() and _distributed.is_initialized():
        _distributed.destroy_process_group()


def _groups(patches: Patches, traffic: Traffic, world: World | None) -> None:
    from torch.distributed import distributed_c10d as c10d

    begin, add = c10d.init_process_group, c10d.new_group
    batch = c10d.batch_isend_irecv
    names: dict[str | None, str] = {}
    store = Store(1 if world is None else world.size)

    def begun(
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        *_: Any,
        device_id: Any = None,
        **__: Any,
    ) -> None:
        # It registers the group that communicates with nobody.
        from torch.testing._internal.distributed import fake_pg  # noqa: F401

        if world is not None:
            world_size, rank = world.size, world.rank
        elif world_size < 1 or rank < 0:
            raise Unanswerable(
                f"{script_line()}: the script trains in several processes; tell their number with "
                "--world N, or estimate(world=N)"
            )
        names[None] = str(backend or "nccl").lower()
        begin("fake", rank=rank, world_size=world_size, store=store)
        if device_id is not None and names[None] != "gloo":
            traffic.made(_distributed.group.WORLD)  # NCCL begins at once

    def added(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *_: Any, **kwargs: Any
    ) -> Any:
        kwargs = {name: kwargs[name] for name in ("group_desc",) if name in kwargs}
        group = add(ranks, **kwargs)
        if backend is not None and (name := getattr(group, "group_name", None)) is not None:
            names[name] = str(backend).lower()
        return group

    def backend_of(group: Any = None, *_: Any, **__: Any) -> str:
        return names.get(getattr(group, "group_name", None)) or names.get(None, "nccl")

    def batched(operations: Any) -> Any:
        with traffic.batch():
            return batch(operations)

    functions = {
        "init_process_group": begun,
        "new_group": added,
        "is_nccl_available": lambda: True,
        "monitored_barrier": lambda *_, **__: None,
        "_set_pg_timeout": lambda *_, **__: None,
        "recv": _receiving(c10d.recv),
        "batch_isend_irecv": batched,
    }
    originals = {name: getattr(c10d, name) for name in functions}
    for module in (c10d, dist):
        if not hasattr(module, "ProcessGroupNCCL"):
            patches.replace(module, "ProcessGroupNCCL", _Nccl)
    for name in ("TCPStore", "FileStore"):
        patches.replace(dist, name, lambda *_, **__: store)
    _objects(patches, c10d, traffic)
    for module in list(sys.modules.values()):  # many import them by name
        for name, function in functions.items():
            if vars(module).get(name) is originals[name]:
                patches.replace(module, name, function)
    # Scripts ask for the name; torch itself asks the module it is in.
    patches.replace(dist, "get_backend", backend_of)
    patches.replace(torch.cuda.nccl, "version", lambda: _NCCL)
    if torch.version.cuda is None:
        patches.replace(torch.version, "cuda", _CUDA)
    # FSDP and device meshes ask torch for the process's accelerator.
    patches.replace(torch._C, "_get_accelerator", lambda *_: torch.device("cuda"))


class _Nccl:
    """The class of NCCL's groups, for builds without NCCL. No group is one; scripts set options."""

    class Options(SimpleNamespace):
        """Options that nobody reads."""

        def __init__(self, *_: object, **options: object) -> None:
            super().__init__(config=SimpleNamespace(), **options)


def _receiving(receive: Any) -> Any:
    """Receives from any rank, too: it is the one before."""

    def received(
        tensor: Any, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None
    ) -> int:
        if src is None and group_src is None:
            src = (_distributed.get_rank() - 1) % _distributed.get_world_size()
            return int(src)
        source: int = receive(tensor, src, group, tag, group_src)
        return source

    return received


def _objects(patches: Patches, c10d: Any, traffic: Traffic) -> None:
    """Objects of other ranks are known if these have run. A broadcast keeps the rank's own."""
    broadcast, send = c10d.broadcast_object_list, c10d.send_object_list

    def broadcasted(objects: Any, src: Any = None, group: Any = None, *args: Any, **kw: Any) -> Any:
        if src in (None, _distributed.get_rank()):
            broadcast(objects, src, group, *args, **kw)

    def sent(
        objects: Any,
        dst: Any = None,
        group: Any = None,
        *args: Any,
        group_dst: Any = None,
        **kw: Any,
    ) -> None:
        with traffic.objects(list(objects), dst, group, group_dst):
            send(objects, dst, group, *args, group_dst=group_dst, **kw)

    def received(
        objects: Any,
        src: Any = None,
        group: Any = None,
        *_: Any,
        group_src: Any = None,
        **__: Any,
    ) -> int:
        source, known = traffic.received_objects(src, group, group_src)
        if known is None or len(known) != len(objects):
            raise Unanswerable(
                f"{script_line()}: the script reads objects that another rank sends, which has not "
                "run; choose the sending rank with --rank, or run all with --rank stages"
            )
        objects[:] = known
        return source

    for module in (c10d, dist):
        patches.replace(module, "send_object_list", sent)
        patches.replace(module, "broadcast_object_list", broadcasted)
        patches.replace(module, "recv_object_list", received)


def _data_parallel(patches: Patches, traffic: Traffic) -> None:
    """Data parallel modules reduce by a hook: C++ cannot read the result of a pretended group."""
    wrapper: Any = nn.parallel.DistributedDataParallel
    patches.replace(dist, "_verify_params_across_processes", lambda *_, **__: None)
    _times(patches)
    register, forward = wrapper.register_comm_hook, wrapper.forward

    def registered(module: Any, state: object, hook: Any) -> None:
        module._stalloc_reduces = True
        register(module, state, hook)

    def forwarded(module: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(module, "_stalloc_reduces") and module.require_backward_grad_sync:
            module.register_comm_hook(None, _reduced)
            traffic.note_reduction(module.process_group)
        return forward(module, *args, **kwargs)

    patches.replace(wrapper, "register_comm_hook", registered)
    patches.replace(wrapper, "forward", forwarded)


def _times(patches: Patches) -> None:
    """Takes no times of reductions, for which a CUDA build would ask the GPU.

    They are taken in the first iterations that the reducer counts. Nothing else needs its count but
    a static graph.
    """
    reducer: Any = _distributed.Reducer
    prepare, make_static = reducer.prepare_for_forward, reducer._set_static_graph
    static: set[Any] = set()

    def made_static(one: Any) -> None:
        static.add(one)
        make_static(one)

    def prepared(one: Any) -> None:
        if one in static:
            prepare(one)

    patches.replace(reducer, "_set_static_graph", made_static)
    patches.replace(reducer, "prepare_for_forward", prepared)
    patches.replace(_distributed.Logger, "set_runtime_stats_and_log", lambda *_: None)


def _sharded_tensors(patches: Patches) -> None:
    from torch.distributed.tensor import DTensor

    make: Any = DTensor.__new__

    def made(cls: Any, *args: Any, **kwargs: Any) -> Any:
        tensor = make(cls, *args, **kwargs)
        if tensor.device.type == "cuda":
            torch_module().ask_for_device(tensor._cdata)
        return tensor

    patches.replace(DTensor, "__new__", staticmethod(made))


def _done(result: object) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(result)
    return future


# torch checks the annotations of a hook, which would be strings here.
_reduced: Any = lambda state, bucket: _done(bucket.buffer())  # noqa: E731
