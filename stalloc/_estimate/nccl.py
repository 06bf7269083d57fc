"""The memory that NCCL takes of a GPU, beside torch's allocator, as its sources tell it.

    of a communicator            bytes, at most                            source
    structures                   3 allocations for each channel            channel.cc, init.cc
    ring                         a neighbour to receive from, one to send  transport/generic.cc
                                 to
    trees, of all-reductions     two more neighbours, both ways            transport/generic.cc
    NVLS, from Hopper on         2 buffers for each channel and GPU        transport/nvls.cc
    send, receive, all-to-all    each peer of the node                     transport/p2p.cc
                                 one buffer for all others                 transport/net.cc

A neighbour costs buffers of three protocols for each channel: the receiver's of 10 MiB, the
sender's of 2 MiB in a node and 10 MiB across nodes. Each allocation is rounded up to 2 MiB, as the
driver maps memory. Connections are made when an algorithm is first used.

The range is wide, since NCCL decides by the machine's links, which nobody knows here. It has up to
64 channels; machines with NVLink have up to 32 in a node (24 on an H100) and 16 across nodes. Its
least are the structures alone: buffers are on the host where GPUs do not reach each other
(transport/shm.cc), or the network not the GPU. The kernels' local memory is there once.

Left out: PAT, for small gathers over nodes of one GPU each; CollNet; user buffers; GIN.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from stalloc._estimate.extras import Extra
from stalloc._estimate.traffic import Communicator

_MIB, _KIB = 1 << 20, 1 << 10
_GRAIN = 2 * _MIB  # of device memory: CUDA_IPC_MIN, and the granularity of cuMemCreate
_STEPS = 8  # NCCL_STEPS
_LL = 8 * 512 * _STEPS * 16  # DEFAULT_LL_BUFFSIZE
_LL128 = 120 * 640 * _STEPS * 8  # DEFAULT_LL128_BUFFSIZE
_CHANNELS = 32
_CHANNELS_OF_NODES = 16
_PEER_CHANNELS_OF_NODES = 8  # ncclTopoGetNchannels: 14 GB/s of the network for each
_SHARED = 16 * 128 * _KIB  # NCCL_SHARED_STEPS of NCCL_P2P_NET_CHUNKSIZE, for each channel
_DEVICE_PEER = 640  # bytes: ncclDevChannelPeer
_LOCAL = 2048 * 1024  # bytes: threads of a multiprocessor, local memory of a thread
_NVLS = {9: (16, 128 * _KIB, 128 * _KIB), 10: (24, 128 * _KIB, 256 * _KIB)}
"""By capability: channels, and the bytes of a chunk in one node and across nodes."""

_SOURCE = (
    "estimated from the sources of NCCL 2.30 for {what}: at least its structures; at most the "
    "buffers of its channels, {channels} in a node, {across} across nodes, for each neighbour "
    "(src/transport/p2p.cc, net.cc, nvls.cc, src/channel.cc), and its kernels' local memory"
)


def extra(
    communicators: Iterable[Communicator],
    rank: int,
    local_size: int,
    capability: tuple[int, int],
    processors: int,
) -> Extra | None:
    """The memory of all communicators of a rank; None without any.

    Args:
        communicators: What they are used for.
        rank: The rank.
        local_size: The GPUs of a node.
        capability: The compute capability of the GPU.
        processors: The multiprocessors of the GPU.
    """
    several = [one for one in communicators if len(one.ranks) > 1]
    if not several:
        return None
    high = processors * _LOCAL + sum(_most(one, rank, local_size, capability) for one in several)
    peers = {peer for one in several for peer in one.sent | one.received}
    number = len(several)
    what = f"{number} communicator{'s' if number > 1 else ''} of up to "
    what += f"{max(len(one.ranks) for one in several)} ranks"
    if peers:
        what += f", {len(peers)} peer{'s' if len(peers) > 1 else ''} to send to or receive from"
    channels, across = _limited(_CHANNELS), _limited(_CHANNELS_OF_NODES)
    source = _SOURCE.format(what=what, channels=channels, across=across)
    return Extra("NCCL", number * _GRAIN, high, source)


def of_shards(gpus: int, capability: tuple[int, int], processors: int) -> Extra | None:
    """The memory for a model that so many GPUs of one node share."""
    sharded = Communicator(tuple(range(gpus)), gathers=True)
    return extra([sharded], 0, gpus, capability, processors)


def _most(one: Communicator, rank: int, local_size: int, capability: tuple[int, int]) -> int:
    ranks = len(one.ranks)
    nodes = len({other // local_size for other in one.ranks})
    local = sum(other // local_size == rank // local_size for other in one.ranks)
    channels = _limited(_CHANNELS if nodes == 1 else _CHANNELS_OF_NODES)
    total = channels * (2 * _GRAIN + _grains(_DEVICE_PEER * ranks)) + 4 * _GRAIN
    pair = _sender(nodes > 1) + _receiver()
    if one.gathers or one.reduces:
        total += channels * pair
    if one.reduces and ranks > 2:  # with two, the ring has both neighbours
        total += 2 * channels * pair
    if one.reduces or (one.gathers and nodes == 1):
        total += _nvls(local, nodes, capability)
    return total + _peers(one, rank, local_size, channels, nodes)


def _peers(one: Communicator, rank: int, local_size: int, channels: int, nodes: int) -> int:
    """Sends and receives: buffers for each peer of the node, and shared ones for all others."""

    def of_node(peers: set[int]) -> set[int]:
        return {peer for peer in peers if peer // local_size == rank // local_size}

    each = channels if nodes == 1 else min(channels, _PEER_CHANNELS_OF_NODES)
    total = each * _sender(False) * len(of_node(one.sent))
    total += each * _receiver() * len(of_node(one.received))
    shared = channels * _SHARED
    total += shared * bool(one.received - of_node(one.received))
    # The GPU of this node that has the rail of the receiver sends for this one (PXN), and this
    # one for others. So there is a buffer for each of them.
    far = one.sent - of_node(one.sent)
    return total + shared * len({peer % local_size for peer in far})


def _nvls(local: int, nodes: int, capability: tuple[int, int]) -> int:
    """Buffers by which NVLink's switches reduce."""
    if local < 2 or capability[0] not in _NVLS or os.environ.get("NCCL_NVLS_ENABLE") == "0":
        return 0
    channels, chunk, chunk_of_nodes = _NVLS[capability[0]]
    return 2 * channels * _STEPS * (chunk if nodes == 1 else chunk_of_nodes) * local


def _sender(across: bool) -> int:
    """Bytes of a channel's sending end; those of `LL` are on the host."""
    return _grains(_simple() + _LL128) if across else _GRAIN


def _receiver() -> int:
    """Bytes of a channel's receiving end."""
    return _grains(_simple() + _LL128 + _LL)


def _simple() -> int:
    return _of_environment("NCCL_BUFFSIZE") or 4 * _MIB


def _limited(channels: int) -> int:
    """The channels, with the limits that the environment sets."""
    most = _of_environment("NCCL_MAX_NCHANNELS")
    least = _of_environment("NCCL_MIN_NCHANNELS")
    return max(least or 0, min(channels, most or channels))


def _of_environment(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if re.fullmatch(r"[0-9]{1,10}", text) and int(text) > 0 else None


def _grains(size: int) -> int:
    return -(-size // _GRAIN) * _GRAIN
