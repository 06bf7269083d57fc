"""Keeps states that optimizers make out of torch's segments and a plan's pool.

In a GPU's segments of torch, states would lie in cached segments of activations, which then stay
for good. What is idle in them cannot be given back, and is missing for a plan's pool. So states get
a memory pool of torch's of their own, where they lie side by side:

    without     | state | idle | state | state | idle |   segments of activations
    with        | state | state | state |                 segments of states

In usual segments, torch's cache is given back first, so that torch does not keep a second time what
the states take. Expandable segments stay: to fill them anew often takes more memory than they have
for the states. The temporaries of the step are torch's as ever. The states of a small program are
left alone, since their segments would not be full.

Under a plan, which may be one of an earlier run, states are not the plan's requests: the step goes
on as profiled. Their sizes are those of temporaries, often several in a row, so the runtime is told
that states are made. So it is in a later step that makes the states of parameters that had no
gradient before, such as those of a layer that was frozen at first.

Optimizers of `torch.optim` make their states in `_init_group`. SGD makes them elsewhere, and others
do so anywhere in a step. While requests are recorded, these are left alone. Under a plan, all of
their first step is taken for states: it comes once, and any state that took a planned address would
keep it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from stalloc._adapters import Adapter
from stalloc._auto.segments import Segments

_INIT = "_init_group"
_PAGE = 2 << 20  # bytes of the device
_MANY = 128 << 20  # bytes of states
_SOME = 64 << 20  # bytes of states that fill pages of their own
_MOST = 8
"""First steps; if there are more, each parameter may have an optimizer that steps in the backward
pass."""


class FirstSteps:
    """Follows all optimizers of the process.

    Args:
        adapter: That of the device.
        segments: Expandable segments of a GPU, which the states are made in if possible. None: the
            device has none.
        records: Returns True while requests are recorded.
        serves: Returns True while a plan serves them.
    """

    def __init__(
        self,
        adapter: Adapter,
        segments: Segments | None,
        records: Callable[[], bool],
        serves: Callable[[], bool],
    ) -> None:
        self._adapter = adapter
        self._segments = segments
        self._records = records
        self._serves = serves
        self._left = _MOST
        self._stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._hooks = (
            register_optimizer_step_pre_hook(self._begins),
            register_optimizer_step_post_hook(self._ends),
        )

    def stop(self) -> None:
        """Follows no more. May be repeated."""
        self._left = 0
        for hook in self._hooks:
            hook.remove()

    def _begins(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if torch.compiler.is_compiling():
            return  # Dynamo cannot follow what comes here
        self._ends(optimizer)  # a step that has failed
        is_first = optimizer not in self._stepped
        self._stepped.add(optimizer)
        if optimizer.state:
            if self._serves() and _makes_states(optimizer) and _lacks_states(optimizer):
                vars(optimizer)[_INIT] = self._told(getattr(optimizer, _INIT))
            return
        if not (self._records() or self._serves()):
            return
        if self._segments is not None and self._left > 0:
            if self._records():
                self._segments.consider()
            if _makes_states(optimizer) and (self._segments.are_on or _are_large(optimizer)):
                self._left -= 1
                vars(optimizer)[_INIT] = self._apart(getattr(optimizer, _INIT), self._segments)
                return
        if self._serves() and _makes_states(optimizer):
            vars(optimizer)[_INIT] = self._told(getattr(optimizer, _INIT))
        elif self._serves() and is_first:
            self._adapter.runtime.make_states(True)

    def _ends(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if torch.compiler.is_compiling():
            return
        vars(optimizer).pop(_INIT, None)
        self._adapter.runtime.make_states(False)

    def _apart(self, make: Callable[..., Any], segments: Segments) -> Callable[..., Any]:
        """The function that makes states, which then come from a pool of their own."""
        # The pool's memory belongs to the states once this function has gone.
        pools: list[torch.cuda.MemPool] = []

        def init_group(*args: Any, **kwargs: Any) -> Any:
            follows = self._records() or self._serves()
            if not follows or torch.cuda.is_current_stream_capturing():
                return make(*args, **kwargs)
            if not pools:
                if not segments.are_on:
                    self._adapter.give_back()
                pools.append(torch.cuda.MemPool())
            with segments.used(), torch.cuda.use_mem_pool(pools[0], self._adapter.name):
                return make(*args, **kwargs)

        return init_group

    def _told(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """The function that makes states, of which the runtime is told."""

        def init_group(*args: Any, **kwargs: Any) -> Any:
            runtime = self._adapter.runtime
            runtime.make_states(True)
            try:
                return make(*args, **kwargs)
            finally:
                runtime.make_states(False)

        return init_group


def _makes_states(optimizer: torch.optim.Optimizer) -> bool:
    return hasattr(optimizer, _INIT) and not isinstance(optimizer, torch.optim.SGD)


def _lacks_states(optimizer: torch.optim.Optimizer) -> bool:
    """True if the next step makes states of parameters that have a gradient for the first time."""
    state = optimizer.state
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return any(p.grad is not None and p not in state for p in parameters)


def _are_large(optimizer: torch.optim.Optimizer) -> bool:
    """True if the states, which are like the parameters, fill their segments.

    They do if there are many, or some of which most bytes are in states that fill pages of their
    own.
    """
    sizes = [_size(p) for group in optimizer.param_groups for p in group["params"]]
    fill_pages = [size for size in sizes if -size % _PAGE <= size // 16]
    return sum(sizes) >= (_SOME if 2 * sum(fill_pages) > sum(sizes) else _MANY)


def _size(parameter: torch.Tensor) -> int:
    local: torch.Tensor = getattr(parameter, "_local_tensor", parameter)  # of a DTensor
    return local.numel() * local.element_size()
