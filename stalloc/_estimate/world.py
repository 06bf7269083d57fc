"""A process that pretends to be one of N that train together.

`init_process_group` makes torch's fake group, which communicates with nobody; the tensors that its
collectives give are the business of `stalloc._estimate.collectives`. What a launcher would set is
in the environment. `spawn` calls the function of one rank, in this process.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from stalloc._estimate.values import Unanswerable, script_line
from stalloc._frameworks.patches import Patches
from stalloc._torch_modules import torch_module
from stalloc.errors import StallocError

_GPUS_OF_A_NODE = 8
_NCCL = (2, 27, 3)
_CUDA = "13.0"
"""The versions that the pretended libraries claim to be."""

_distributed: Any = dist


@dataclass(frozen=True, slots=True)
class World:
    """A rank among processes that train together.

    Attributes:
        size: The number of processes.
        rank: The rank of this one.
    """

    size: int
    rank: int = 0

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
            "WORLD_SIZE": self.size,
            "LOCAL_WORLD_SIZE": self.local_size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": 29500,
            "TORCHELASTIC_RUN_ID": "stalloc",
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


def patch(patches: Patches, world: World | None) -> None:
    """Leads `torch.distributed` to the pretended processes, and `spawn`."""
    if not _distributed.is_available():
        return
    _groups(patches, world)
    _data_parallel(patches)
    _sharded_tensors(patches)
    size = 1 if world is None else world.size
    rank = 0 if world is None else world.rank

    def spawned(fn: Any, args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> None:
        fn(rank % max(1, nprocs), *args)

    if size > 1:
        patches.replace(torch.multiprocessing, "spawn", spawned)


def end() -> None:
    """Ends the group of a script that has left it open."""
    if _distributed.is_available() and _distributed.is_initialized():
        _distributed.destroy_process_group()


def _groups(patches: Patches, world: World | None) -> None:
    from torch.distributed import distributed_c10d as c10d

    begin, add = c10d.init_process_group, c10d.new_group
    names: dict[str, str] = {}

    def begun(
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        *_: Any,
        **__: Any,
    ) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if world is not None:
            world_size, rank = world.size, world.rank
        elif world_size < 1 or rank < 0:
            raise Unanswerable(
                f"{script_line()}: the script trains in several processes; tell their number with "
                "--world N, or estimate(world=N)"
            )
        names["default"] = str(backend or "nccl").lower()
        begin("fake", rank=rank, world_size=world_size, store=FakeStore())

    def added(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *_: Any, **kwargs: Any
    ) -> Any:
        kwargs = {name: kwargs[name] for name in ("group_desc",) if name in kwargs}
        return add(ranks, **kwargs)

    functions = {
        "init_process_group": begun,
        "new_group": added,
        "is_nccl_available": lambda: True,
    }
    originals = {name: getattr(c10d, name) for name in functions}
    _objects(patches, c10d)
    for module in list(sys.modules.values()):  # many import them by name
        for name, function in functions.items():
            if vars(module).get(name) is originals[name]:
                patches.replace(module, name, function)
    # Scripts ask for the name; torch itself asks the module it is in.
    patches.replace(dist, "get_backend", lambda *_, **__: names.get("default", "nccl"))
    patches.replace(torch.cuda.nccl, "version", lambda: _NCCL)
    if torch.version.cuda is None:
        patches.replace(torch.version, "cuda", _CUDA)
    # FSDP and device meshes ask torch for the process's accelerator.
    patches.replace(torch._C, "_get_accelerator", lambda *_: torch.device("cuda"))


def _objects(patches: Patches, c10d: Any) -> None:
    """Objects of other ranks are not known: a list keeps what this rank has put into it."""
    broadcast = c10d.broadcast_object_list

    def broadcasted(objects: Any, src: Any = None, group: Any = None, *args: Any, **kw: Any) -> Any:
        if src in (None, _distributed.get_rank()):
            broadcast(objects, src, group, *args, **kw)

    def received(*_: Any, **__: Any) -> Any:
        raise Unanswerable(
            f"{script_line()}: the script reads objects that another rank sends, which there are "
            "none of; choose the sending rank with --rank"
        )

    for module in (c10d, dist):
        patches.replace(module, "broadcast_object_list", broadcasted)
        patches.replace(module, "recv_object_list", received)


def _data_parallel(patches: Patches) -> None:
    """Data parallel modules reduce by a hook: C++ cannot read the result of a pretended group."""
    wrapper: Any = nn.parallel.DistributedDataParallel
    patches.replace(dist, "_verify_params_across_processes", lambda *_, **__: None)
    # The times of its reductions, which C++ takes on a real GPU.
    patches.replace(_distributed.Logger, "set_runtime_stats_and_log", lambda *_: None)
    register, forward = wrapper.register_comm_hook, wrapper.forward

    def registered(module: Any, state: object, hook: Any) -> None:
        module._stalloc_reduces = True
        register(module, state, hook)

    def forwarded(module: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(module, "_stalloc_reduces") and module.require_backward_grad_sync:
            module.register_comm_hook(None, _reduced)
        return forward(module, *args, **kwargs)

    patches.replace(wrapper, "register_comm_hook", registered)
    patches.replace(wrapper, "forward", forwarded)


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
