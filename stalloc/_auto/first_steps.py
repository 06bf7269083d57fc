"""Keeps the states that an optimizer makes in its first step out of torch's segments.

Torch would put them into cached segments of activations, which then stay for good. What is idle in
them cannot be given back, and is missing for a plan's pool:

    without     | state | idle | state | state | idle |   segments of activations
    with        | state | | state | | state |             pieces of the device of their own

Torch's cache is given back first, so that torch does not keep a second time what the states take.
The temporaries of the step are torch's as ever, and so are states that would waste a part of their
piece's last page.

Under a plan, which may be one of an earlier run, they are not the plan's requests: the step goes on
as profiled.

Optimizers of `torch.optim` make their states in `_init_group`. Others are left alone, as is SGD,
which makes them elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

_INIT = "_init_group"
_PAGE = 2 << 20  # bytes of the device
_MOST = 8
"""First steps; if there are more, each parameter may have an optimizer that steps in the backward
pass."""


class FirstSteps:
    """Follows all optimizers of the process.

    Args:
        give_back: Lets torch give back its cache.
        keep_apart: See `stalloc._adapters.Adapter`.
        follows: Returns True while requests are recorded, or a plan serves them.
    """

    def __init__(
        self,
        give_back: Callable[[], object],
        keep_apart: Callable[[bool], None],
        follows: Callable[[], bool],
    ) -> None:
        self._give_back = give_back
        self._keep_apart = keep_apart
        self._follows = follows
        self._left = _MOST
        self._hooks = (
            register_optimizer_step_pre_hook(self._begins),
            register_optimizer_step_post_hook(_ends),
        )

    def stop(self) -> None:
        """Follows no more. May be repeated."""
        self._left = 0
        for hook in self._hooks:
            hook.remove()

    def _begins(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if torch.compiler.is_compiling():
            return  # Dynamo cannot follow what comes here
        _ends(optimizer)  # a step that has failed
        if self._left == 0 or not self._follows() or not _makes_large_states(optimizer):
            return
        self._left -= 1
        make, first = getattr(optimizer, _INIT), [True]

        def init_group(*args: Any, **kwargs: Any) -> Any:
            if not self._follows():
                return make(*args, **kwargs)
            if first:
                first.clear()
                self._give_back()
            self._keep_apart(True)
            try:
                return make(*args, **kwargs)
            finally:
                self._keep_apart(False)

        vars(optimizer)[_INIT] = init_group


def _ends(optimizer: torch.optim.Optimizer, *_: object) -> None:
    if not torch.compiler.is_compiling():
        vars(optimizer).pop(_INIT, None)


def _makes_large_states(optimizer: torch.optim.Optimizer) -> bool:
    """True if most bytes of the states, which are like the parameters, have pieces of their own."""
    is_known = hasattr(optimizer, _INIT) and not isinstance(optimizer, torch.optim.SGD)
    if optimizer.state or not is_known:
        return False
    sizes = [_size(p) for group in optimizer.param_groups for p in group["params"]]
    large = [size for size in sizes if -size % _PAGE <= size // 16]
    return 2 * sum(large) > sum(sizes)


def _size(parameter: torch.Tensor) -> int:
    local: torch.Tensor = getattr(parameter, "_local_tensor", parameter)  # of a DTensor
    return local.numel() * local.element_size()
