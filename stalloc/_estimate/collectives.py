"""Collectives of a process that pretends to be one of many.

The group communicates with nobody. Each rank is taken to hold what this one holds:

    broadcast, reduce, all-reduce   the tensor stays, as the mean of equal ones does
    gather, all-gather              each part is this rank's
    scatter, reduce-scatter         this rank's part
    all-to-all                      each part is the one that this rank keeps

Tensors of the GPU have no values, so only those on the host are filled. None of these requests
memory: their results are given. Functional collectives do, and torch has kernels of them for the
meta device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from stalloc._estimate import choices

_torch: Any = torch
_distributed: Any = dist


def answer(func: Any, args: tuple[Any, ...]) -> Any:
    """The result of a collective operator of `c10d`; NotImplemented for any other."""
    fill = _FILLS.get(func)
    if fill is None:
        return NotImplemented
    group = next(arg for arg in args if isinstance(arg, torch.ScriptObject))
    if not any(isinstance(leaf, FakeTensor) for leaf in pytree.tree_leaves(args[:2])):
        fill(args[0], args[1], _distributed.ProcessGroup.unbox(group).rank())
    elif func is _c10d.alltoall_base_.default and (count := choices.each(args[1])) is not None:
        choices.count(args[0], count)
    if len(func._schema.returns) == 0:
        return None
    done: Any = torch.futures.Future()
    done.set_result(args[0])
    work = _torch._C._distributed_c10d._create_work_from_future(done).boxed()
    return work if len(func._schema.returns) == 1 else (args[0], work)


Fill = Callable[[Any, Any, int], None]
"""Fills the results of a rank: its first two arguments are those of the operator."""


def _stays(tensors: Any, other: Any, rank: int) -> None:
    pass


def _gathered(outputs: Any, inputs: Any, rank: int) -> None:
    for parts, source in zip(outputs, inputs, strict=True):
        for part in parts:
            _copy(part, source)


def _scattered(outputs: Any, inputs: Any, rank: int) -> None:
    for target, parts in zip(outputs, inputs, strict=False):
        _copy(target, parts[rank])


def _exchanged(outputs: Any, inputs: Any, rank: int) -> None:
    for target in outputs:
        _copy(target, inputs[rank])


def _gathered_into(output: Any, source: Any, rank: int) -> None:
    for part in _parts_like(output, source):
        _copy(part, source)


def _scattered_into(output: Any, source: Any, rank: int) -> None:
    _copy(output, _parts_like(source, output)[rank])


def _exchanged_into(output: Any, source: Any, rank: int) -> None:
    parts = source.shape[0] if source.dim() else 1
    if output.shape == source.shape and parts > rank:
        _copy(output, source[rank : rank + 1].expand_as(output))


def _each(fill: Fill) -> Fill:
    def all_of_them(outputs: Any, inputs: Any, rank: int) -> None:
        for output, source in zip(outputs, inputs, strict=True):
            fill(output, source, rank)

    return all_of_them


def _parts_like(whole: Tensor, part: Tensor) -> Sequence[Tensor]:
    """The whole in parts of the size of `part`."""
    return torch.split(whole.reshape(-1), max(1, part.numel()))


def _copy(target: Tensor, source: Tensor) -> None:
    if target.numel() == source.numel():
        target.detach().copy_(source.detach().view_as(target))


_c10d: Any = torch.ops.c10d
_FILLS: dict[Any, Fill] = {
    **dict.fromkeys(
        (
            _c10d.allreduce_.default,
            _c10d.allreduce_coalesced_.default,
            _c10d.barrier.default,
            _c10d.broadcast_.default,
            _c10d.monitored_barrier_.default,
            _c10d.recv_.default,
            _c10d.recv_any_source_.default,
            _c10d.reduce_.default,
            _c10d.send.default,
        ),
        _stays,
    ),
    _c10d.allgather_.default: _gathered,
    _c10d.allgather_coalesced_.default: _gathered,
    _c10d.gather_.default: _gathered,
    _c10d.reduce_scatter_.default: _scattered,
    _c10d.scatter_.default: _scattered,
    _c10d.alltoall_.default: _exchanged,
    _c10d._allgather_base_.default: _gathered_into,
    _c10d.allgather_into_tensor_coalesced_.default: _each(_gathered_into),
    _c10d._reduce_scatter_base_.default: _scattered_into,
    _c10d.reduce_scatter_tensor_coalesced_.default: _each(_scattered_into),
    _c10d.alltoall_base_.default: _exchanged_into,
}
