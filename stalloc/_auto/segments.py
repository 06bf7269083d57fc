"""Expandable segments of torch's allocator, for the iterations that torch serves.

The first iterations are torch's: their peak is a part of the run's, and what stays reserved after
them is missing for a plan's pool. Expandable segments reserve less in most programs. Of theirs,
whole pages that are idle can be given back, whatever lies between them:

    segments               | weights | idle | state | idle |    a block that stays keeps all of it
    expandable segments    | weights |        state |           idle pages go back

While they are on, idle pages go before torch reserves more than ever: see csrc/torch/cuda/thrift.h.

They take memory in pages of 2 MiB, and of 12 or more, so a small program may reserve more with
them. It is left alone. So is a program that has chosen settings of its own, and one of several
processes with an inference engine, which shares torch's tensors by CUDA IPC.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from stalloc._adapters import Adapter, registers_memory
from stalloc._expandable import (
    Switch,
    are_unset,
    has_virtual_memory,
    is_forbidden,
)
from stalloc._hooks.modules import before_every_forward
from stalloc._hooks.registry import Handle
from stalloc.replaying import LEAST_RESERVED

_LEAST_WEIGHTS = 128 << 20
"""Bytes; with gradients and optimizer states up to four times as many."""


class Segments:
    """Turns expandable segments on where they are of use, and off at the end.

    Args:
        adapter: That of a GPU in native mode.

    Attributes:
        are_on: They are.
        has_virtual_memory: The device has it, and nothing forbids it for pools.
    """

    def __init__(self, adapter: Adapter) -> None:
        self.are_on = False
        self._adapter = adapter
        self._process = os.getpid()
        self._weights = 0  # bytes of the parameters that were made
        self._switch = Switch(adapter)
        self.has_virtual_memory = not registers_memory() and has_virtual_memory(adapter)
        self._may = are_unset() and self.has_virtual_memory
        self._hook = register_module_parameter_registration_hook(self._parameter_is_made)
        self._watch: Handle | None = None
        if self._may:
            self._watch = before_every_forward(self.phase_begins)

    def consider(self, module: torch.nn.Module | None = None) -> None:
        """Turns them on if the program is large enough, and off once they are forbidden.

        Args:
            module: The program's root, if it is known.
        """
        if self._may and (self.are_on or _is_large(module) or self._reserves_much()):
            self._decide()

    def phase_begins(self, *_: object) -> None:
        """Turns them on within the first iteration: its forward may reserve most of the memory."""
        if self._watch is None or self._process != os.getpid():
            return
        if not torch.cuda.is_current_stream_capturing():
            self.consider()

    def iteration_ends(self) -> None:
        """Looks at the memory between modules no more: the first iteration has shown it."""
        if self._watch is not None:
            self._watch.remove()
        self._watch = None

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Within it, new segments are expandable if the program leaves that open."""
        if self.are_on or not self._may or is_forbidden():
            yield
            return
        self._switch.set(True)
        try:
            yield
        finally:
            self._switch.set(False)

    def restore(self) -> None:
        """Turns them off again, for good. May be repeated."""
        self._hook.remove()
        self.iteration_ends()
        if self.are_on:
            self.are_on = False
            self._switch.set(False)
            # torch no longer uses what it has cached in them.
            self._adapter.give_back()

    def _parameter_is_made(
        self, module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None
    ) -> None:
        """Counts the weights, wherever they are made: the GPU may get them next."""
        if torch.compiler.is_compiling() or self._process != os.getpid():
            return
        if self.are_on or not self._may or parameter is None or is_lazy(parameter):
            return
        self._weights += _size(parameter)
        if self._weights >= _LEAST_WEIGHTS and not torch.cuda.is_current_stream_capturing():
            self._weights = 0  # not at each one from now on, if they may not be used
            self._decide()

    def _decide(self) -> None:
        if is_forbidden():
            self.restore()
        elif not self.are_on:
            # Torch would use its cache in other segments beside them.
            self._adapter.give_back()
            self._switch.set(True)
            self.are_on = True
            self.iteration_ends()

    def _reserves_much(self) -> bool:
        return torch.cuda.max_memory_reserved(self._adapter.name) >= LEAST_RESERVED


def _is_large(module: torch.nn.Module | None) -> bool:
    parameters = module.parameters() if module is not None else ()
    return sum(_size(p) for p in parameters if not is_lazy(p)) >= _LEAST_WEIGHTS


def _size(parameter: torch.Tensor) -> int:
    return parameter.numel() * parameter.element_size()
