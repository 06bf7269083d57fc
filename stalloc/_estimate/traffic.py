"""The transfers of a run between its rank and others, by communicator.

NCCL makes a communicator for each process group whose tensors on the GPU are sent, and one for each
pair of ranks that send to each other outside a batch (`ProcessGroupNCCL::pointToPoint`). Its memory
follows from the operations (`stalloc._estimate.nccl`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from stalloc._estimate.mail import Mail
from stalloc._estimate.values import MOST_KNOWN, keep_values, known_values

_distributed: Any = dist


@dataclass(slots=True)
class Communicator:
    """The transfers of one communicator of NCCL.

    Attributes:
        ranks: The ranks that it connects.
        gathers: There are collectives along a ring.
        reduces: There are all-reductions, which may go along trees, too.
        sent: Ranks that this one sends to.
        received: Ranks that this one receives from.
    """

    ranks: tuple[int, ...]
    gathers: bool = False
    reduces: bool = False
    sent: set[int] = field(default_factory=set)
    received: set[int] = field(default_factory=set)


class Traffic:
    """Notes the transfers of one run."""

    def __init__(self) -> None:
        self._mail = Mail()
        self._sends_objects = False
        self.peers: set[int] = set()
        """Ranks that this one sends tensors of the GPU to, or receives them from, one to one."""
        self._known: dict[str, Communicator] = {}
        self._batches = False

    @property
    def communicators(self) -> list[Communicator]:
        """The communicators, in the order of their first use."""
        return list(self._known.values())

    def begin(self, mail: Mail, rank: int) -> None:
        """Begins the run of a rank among others that may have run before."""
        self._mail = mail
        mail.begin(rank)

    @contextlib.contextmanager
    def objects(self, objects: list[Any], dst: Any, group: Any, group_dst: Any) -> Iterator[None]:
        """Objects are sent within the block, as tensors that say nothing about stages."""
        ranks, number = _peer(dst, group, group_dst)
        own = _distributed.get_rank()
        self._mail.send((ranks, own, ranks[number]), objects)
        self._sends_objects = True
        try:
            yield
        finally:
            self._sends_objects = False

    def received_objects(self, src: Any, group: Any, group_src: Any) -> tuple[int, Any]:
        """The rank that sends objects, and the objects; None if they are not known."""
        own = _distributed.get_rank()
        if src is None and group_src is None:
            src = (own - 1) % _distributed.get_world_size()
        ranks, number = _peer(src, group, group_src)
        return ranks[number], self._mail.receive((ranks, ranks[number], own))

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Sends and receives within the block are those of one batch, over the group's own."""
        self._batches = True
        try:
            yield
        finally:
            self._batches = False

    def note(self, func: Any, args: tuple[Any, ...]) -> None:
        """Notes an operator of `c10d` or a functional collective."""
        name = func._schema.name.partition("::")[2]
        group = _group(args)
        if group is None:
            return
        single = name in ("send", "recv_")
        uses_nccl = _uses_nccl(name, group, args)
        if single and uses_nccl:  # first of all: the other rank may begin, and send
            self._note_single(group, args[2], sends=name == "send")
        if single and not self._sends_objects:
            self._carry(group, args[0], args[2], sends=name == "send")
        if single or not uses_nccl:
            return
        if name.startswith(("alltoall", "all_to_all", "gather", "scatter")):
            one = self.made(group)
            others = set(one.ranks) - {_distributed.get_rank()}
            one.sent |= others
            one.received |= others
        elif name.startswith(("allreduce", "all_reduce", "barrier")):
            self.made(group).reduces = True
        else:
            self.made(group).gathers = True

    def note_reduction(self, group: Any) -> None:
        """Notes an all-reduction that no operator of the run makes."""
        self.made(group).reduces = True

    def made(self, group: Any) -> Communicator:
        """The communicator of a group, which begins if it is new."""
        return self._made(str(group.group_name), _ranks(group))

    def _made(self, name: str, ranks: tuple[int, ...]) -> Communicator:
        return self._known.setdefault(name, Communicator(ranks))

    def _carry(self, group: Any, tensors: Any, number: int, *, sends: bool) -> None:
        ranks, own = _ranks(group), _distributed.get_rank()
        for tensor in tensors:
            if sends:
                self._mail.send((ranks, own, ranks[number]), _values(tensor))
                continue
            route, waits = (ranks, ranks[number], own), _may_be_known(tensor)
            if (values := self._mail.receive(route, waits=waits)) is not None:
                _fill(tensor, values)

    def _note_single(self, group: Any, number: int, *, sends: bool) -> None:
        ranks, own = _ranks(group), _distributed.get_rank()
        peer = ranks[number]
        if peer == own:
            return
        if not self._sends_objects:
            self.peers.add(peer)
            self._mail.meet(peer)
        if self._batches:
            one = self.made(group)
        else:
            first, last = sorted((own, peer))
            one = self._made(f"{group.group_name} {first}:{last}", (first, last))
        (one.sent if sends else one.received).add(peer)


def _values(tensor: Tensor) -> Tensor | None:
    """The values of a tensor that is sent; None if they are not known, or too many to keep."""
    if isinstance(tensor, FakeTensor):
        return known_values(tensor)
    return tensor.detach().clone() if tensor.numel() <= MOST_KNOWN else None


def _may_be_known(tensor: Tensor) -> bool:
    """True for tensors like those that `_values` keeps."""
    floats = isinstance(tensor, FakeTensor) and tensor.is_floating_point()
    return tensor.numel() <= MOST_KNOWN and not floats


def _fill(tensor: Tensor, values: Any) -> None:
    if not isinstance(values, Tensor) or values.shape != tensor.shape:
        return
    if isinstance(tensor, FakeTensor):
        keep_values(tensor, values)
    else:
        tensor.detach().copy_(values)


def _peer(rank: Any, group: Any, number: Any) -> tuple[tuple[int, ...], int]:
    """The ranks of a group, and the number in it of the one that is named in either way."""
    ranks = _ranks(_distributed.group.WORLD if group is None else group)
    return ranks, ranks.index(rank) if number is None else int(number)


def _group(args: tuple[Any, ...]) -> Any:
    """The group of an operator's arguments: itself, or by its name."""
    for arg in args:
        if isinstance(arg, torch.ScriptObject):
            return _distributed.ProcessGroup.unbox(arg)
    names = [arg for arg in args if isinstance(arg, str)]
    with contextlib.suppress(RuntimeError, ValueError):
        if names:
            return _distributed.distributed_c10d._resolve_process_group(names[-1])
    return None


def _uses_nccl(name: str, group: Any, args: tuple[Any, ...]) -> bool:
    if name == "barrier":  # its tensor is the group's own
        return bool(_distributed.get_backend(group) != "gloo")
    leaves = pytree.tree_leaves(args[:2])
    return any(isinstance(x, FakeTensor) and x.fake_device.type == "cuda" for x in leaves)


def _ranks(group: Any) -> tuple[int, ...]:
    try:
        return tuple(_distributed.get_process_group_ranks(group))
    except KeyError:  # a group that the program made beside torch's functions
        return tuple(range(group.size()))
