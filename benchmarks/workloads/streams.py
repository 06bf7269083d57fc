"""Work beside the stream of the kernels: transfers between stages, and activations on the host.

Needs a CUDA build of torch, on a GPU or a pretended one. Nothing is sent or copied: a rank has no
peers, and the values do not exist. The buffers, the stream on which each is made, its other users
(`record_stream`) and the order of the streams are those of the programs named below.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

_LEAST = 1 << 20
"""Bytes of an activation that goes to the host."""
_IN_FLIGHT = 5
"""Activations on their way to the host before the kernels' stream waits for the oldest."""


class Transfers:
    """Sends and receives of pipeline stages on a stream of their own.

    As `torch.distributed.batch_isend_irecv` in `ProcessGroupNCCL::pointToPoint`: NCCL's stream
    waits for the current one, and `recordStream` tells the allocator of it. Megatron-LM waits for
    what it receives (megatron/core/pipeline_parallel/p2p_communication.py).
    """

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()

    def send(self, tensor: Tensor) -> None:
        """Begins to send; the caller may drop the tensor at once."""
        self._stream.wait_stream(torch.cuda.current_stream())
        tensor.record_stream(self._stream)

    def receive(self, tensor: Tensor) -> None:
        """Receives into a new tensor."""
        self.send(tensor)
        torch.cuda.current_stream().wait_stream(self._stream)


class HostActivations(saved_tensors_hooks):
    """Saved activations go to the host on a stream of their own, and come back on it.

    As `OffloadActivations` of torchtune (torchtune/training/_activation_offloading.py), which TRL
    has, too: an activation stays on the GPU until it is copied, at most `_IN_FLIGHT` at a time. In
    the backward pass, the side stream makes the tensor, the kernels' stream waits for it, and
    `record_stream` keeps it until they are done.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(self._pack, self._unpack)
        self._stream = torch.cuda.Stream()
        self._weights = {p.untyped_storage().data_ptr() for p in module.parameters()}
        self._leaving: OrderedDict[int, tuple[Tensor, torch.cuda.Event]] = OrderedDict()
        self._number = 0

    def _pack(self, tensor: Tensor) -> Tensor | tuple[int, Tensor]:
        storage = tensor.untyped_storage()
        if storage.nbytes() < _LEAST or storage.data_ptr() in self._weights:
            return tensor
        while len(self._leaving) >= _IN_FLIGHT:
            self._let_go()
        self._stream.wait_stream(torch.cuda.current_stream())
        self._number += 1
        self._leaving[self._number] = (tensor, self._stream.record_event())
        return self._number, torch.empty_like(tensor, device="meta")

    def _unpack(self, packed: Tensor | tuple[int, Tensor]) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        number, shape = packed
        if number in self._leaving:
            return self._leaving[number][0]
        while self._leaving:
            self._let_go()
        current = torch.cuda.current_stream()
        with torch.cuda.stream(self._stream):
            tensor = torch.empty_like(shape, device="cuda")
        current.wait_stream(self._stream)
        tensor.record_stream(current)
        return tensor

    def _let_go(self) -> None:
        _, (_, copied) = self._leaving.popitem(last=False)
        torch.cuda.current_stream().wait_event(copied)


def complete_work() -> None:
    """The pretended GPU completes all work that it was given so far."""
    ctypes.CDLL(None).standin_drain_all()
