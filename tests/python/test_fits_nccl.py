"""`stalloc fits --world`: the memory that NCCL takes, by the groups that a program used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from isolation import isolated
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.fsdp import fully_shard

import stalloc
from stalloc._estimate import nccl
from stalloc._estimate.extras import Extra
from stalloc._estimate.recording import made
from stalloc._estimate.traffic import Communicator, Traffic
from stalloc._estimate.world import World

_distributed: Any = dist
_functional: Any = functional
MIB = 1 << 20
A100, H100 = ((8, 0), 108), ((9, 0), 132)
NODE = tuple(range(8))


def taken(*communicators: Communicator, card: Any = A100, rank: int = 0) -> Extra:
    extra = nccl.extra(communicators, rank, 8, *card)
    assert extra is not None
    return extra


def ring(ranks: tuple[int, ...]) -> Communicator:
    return Communicator(ranks, gathers=True)


def tree(ranks: tuple[int, ...]) -> Communicator:
    return Communicator(ranks, gathers=True, reduces=True)


def among(ranks: tuple[int, ...], rank: int = 0) -> Communicator:
    others = set(ranks) - {rank}
    return Communicator(ranks, sent=others, received=others)


def test_a_range_has_what_others_have_measured() -> None:
    # NVIDIA/nccl#1685: the first all-to-all among the eight H100s of a node.
    exchange = taken(among(NODE), card=H100)
    assert exchange.low < 3.28e9 < exchange.high < 1.1 * 3.28e9
    # NVIDIA/nccl#964: an all-reduction of two and of four A100s.
    for ranks, measured in (((0, 1), 544), ((0, 1, 2, 3), 688)):
        reduction = taken(tree(ranks))
        assert reduction.low < measured * MIB < reduction.high < 3 * measured * MIB


def test_each_communicator_and_each_peer_takes_memory() -> None:
    one = taken(ring(NODE))
    two = taken(ring(NODE), ring((0, 8, 16)))
    assert two.low == 2 * one.low
    assert two.high > one.high
    assert "2 communicators" in two.source
    assert taken(tree(NODE)).high > one.high
    # 32 channels to each peer: 10 MiB to receive, 2 MiB to send.
    receives, sends = (
        Communicator(NODE, received={1, 2}),
        Communicator(NODE, sent={1, 2}),
    )
    idle = taken(Communicator(NODE)).high
    assert taken(receives).high - idle == 2 * 32 * 10 * MIB
    assert taken(sends).high - idle == 2 * 32 * 2 * MIB


def test_peers_of_other_nodes_share_a_buffer() -> None:
    ranks = tuple(range(0, 64, 8))
    idle = taken(Communicator(ranks)).high
    one, many = (taken(Communicator(ranks, received=got)).high for got in ({8}, {8, 16, 24}))
    assert one == many
    assert one - idle == 16 * 16 * 128 * 1024


def test_more_ranks_of_one_node_take_no_more_than_their_switches_do() -> None:
    assert taken(ring(NODE)).high == taken(ring((0, 1))).high
    pair, node = (taken(ring(ranks), card=H100).high for ranks in ((0, 1), NODE))
    assert node - pair == 6 * 2 * 16 * MIB  # NVLS: 2 x 16 buffers of 1 MiB for each GPU


def test_a_group_of_one_rank_takes_none() -> None:
    assert nccl.extra([Communicator((3,), reduces=True)], 3, 8, *A100) is None
    assert nccl.extra([], 0, 8, *A100) is None


def test_the_environment_limits_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = taken(tree(NODE), card=H100)
    monkeypatch.setenv("NCCL_MAX_NCHANNELS", "4")
    limited = taken(tree(NODE), card=H100)
    assert limited.high < usual.high / 2
    assert "4 in a node" in limited.source
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    assert limited.high - taken(tree(NODE), card=H100).high == 8 * 2 * 16 * MIB
    monkeypatch.setenv("NCCL_BUFFSIZE", str(16 * MIB))
    # Rings and trees have three neighbours, whose buffers grow from 10 to 22 MiB.
    monkeypatch.setenv("NCCL_MAX_NCHANNELS", "1")
    large = taken(tree(NODE)).high
    monkeypatch.delenv("NCCL_BUFFSIZE")
    assert large - taken(tree(NODE)).high == 3 * 12 * MIB


def used(begin: Callable[[], Any], size: int = 8, rank: int = 0) -> list[Communicator]:
    def build() -> Any:
        step = begin()
        layer = nn.Linear(8, 8, device="cuda")

        def whole() -> None:
            if step is not None:
                step()
            layer(torch.zeros(8, 8, device="cuda")).sum().backward()

        return whole

    return made(build, None, 2, World(size, rank)).gpu.traffic.communicators


@isolated
def test_groups_that_are_never_used_have_no_communicator() -> None:
    def begin() -> None:
        _distributed.init_process_group("nccl")
        _distributed.new_group([0, 1])

    assert used(begin) == []


@isolated
def test_a_group_that_is_bound_to_a_device_begins_at_once() -> None:
    def begin() -> None:
        _distributed.init_process_group("nccl", device_id=torch.device("cuda", 0))

    assert used(begin) == [Communicator(NODE)]


@isolated
def test_each_group_has_a_communicator_for_what_it_did() -> None:
    def begin() -> Any:
        _distributed.init_process_group("nccl")
        pairs = [_distributed.new_group([0, n]) for n in (1, 2, 3)]
        hosts = _distributed.new_group(backend="gloo")

        def step() -> None:
            x, parts = torch.zeros(8, device="cuda"), torch.zeros(16, device="cuda")
            _distributed.all_reduce(x, group=pairs[0])
            _distributed.all_gather_into_tensor(parts, x, group=pairs[1])
            _distributed.all_to_all_single(x, x.clone(), group=pairs[2])
            _distributed.all_reduce(torch.zeros(2), group=hosts)
            _distributed.barrier(group=hosts)
            _functional.reduce_scatter_tensor(parts, "sum", 0, pairs[0])

        return step

    assert used(begin) == [
        Communicator((0, 1), gathers=True, reduces=True),
        Communicator((0, 2), gathers=True),
        Communicator((0, 3), sent={3}, received={3}),
    ]


def test_a_group_that_torch_does_not_know_has_ranks_from_zero_on() -> None:
    class Group:
        group_name = "own"

        def size(self) -> int:
            return 3

    assert Traffic().made(Group()) == Communicator((0, 1, 2))


@isolated
def test_a_barrier_is_an_all_reduction() -> None:
    def begin() -> None:
        _distributed.init_process_group("nccl")
        _distributed.barrier()

    assert used(begin) == [Communicator(NODE, reduces=True)]


@isolated
def test_single_sends_have_a_communicator_of_two_ranks() -> None:
    def begin() -> Any:
        _distributed.init_process_group("nccl")

        def step() -> None:
            x = torch.zeros(8, device="cuda")
            _distributed.send(x, 5)
            _distributed.recv(x, 5)
            make, send, receive = (
                _distributed.P2POp,
                _distributed.isend,
                _distributed.irecv,
            )
            _distributed.batch_isend_irecv([make(send, x, 4), make(receive, x, 2)])

        return step

    assert used(begin, rank=3) == [
        Communicator((3, 5), sent={5}, received={5}),
        Communicator(NODE, sent={4}, received={2}),
    ]


@isolated
def test_wrappers_use_the_groups_that_they_are_given() -> None:
    def replicated() -> Any:
        _distributed.init_process_group("nccl")
        model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8, device="cuda"))
        return lambda: model(torch.zeros(8, 8, device="cuda")).sum().backward()

    def sharded() -> Any:
        _distributed.init_process_group("nccl")
        model = fully_shard(nn.Linear(8, 8, device="cuda"))
        return lambda: model(torch.zeros(8, 8, device="cuda")).sum().backward()

    assert [one.reduces for one in used(replicated)] == [True]
    assert [(one.gathers, one.reduces) for one in used(sharded)] == [(True, False)]


@isolated
def test_the_answer_has_the_range_of_the_groups_that_were_used() -> None:
    def build(reduces: bool) -> Callable[[], Any]:
        def begin() -> Any:
            _distributed.init_process_group("nccl")
            layer = nn.Linear(8, 8, device="cuda")

            def step() -> None:
                y = layer(torch.zeros(8, 8, device="cuda")).sum()
                y.backward()
                if reduces:
                    _distributed.all_reduce(y)

            return step

        return begin

    silent, loud = (
        {extra.name: extra for extra in estimate.extras}
        for estimate in (
            stalloc.estimate(build(reduces), world=16, plan=False) for reduces in (False, True)
        )
    )
    assert "NCCL" not in silent
    assert loud["NCCL"] == taken(Communicator(tuple(range(16)), reduces=True))
