"""Finds the optimizers of the process. A search looks at all objects: some tenths of a second."""

from __future__ import annotations

import gc
from collections.abc import Container
from weakref import WeakValueDictionary

import torch

# By identity, since some cannot be hashed.
_retired: WeakValueDictionary[int, torch.optim.Optimizer] = WeakValueDictionary()


def retire() -> None:
    """Counts no optimizer that exists now: the program that made it has ended.

    Torch may keep it alive: FSDP2 keeps the classes of modules, and their functions all globals.
    """
    _retired.update((id(optimizer), optimizer) for optimizer in _optimizers())


def any_exists() -> bool:
    """True if there is an optimizer, of whatever parameters."""
    return bool(_optimizers())


def awaits_first_step(stepped: Container[object]) -> bool:
    """True if an optimizer has not stepped whose parameters no other one has stepped for.

    One with state has stepped before anybody looked.
    """
    optimizers = [o for o in _optimizers() if "param_groups" in vars(o)]
    known = {id(p) for o in optimizers if o in stepped for p in _parameters(o)}
    waiting = [o for o in optimizers if o not in stepped and not o.state]
    return any(id(p) not in known for o in waiting for p in _parameters(o))


def _optimizers() -> list[torch.optim.Optimizer]:
    # type() does not ask a proxy object, which may import its target.
    found = [o for o in gc.get_objects() if issubclass(type(o), torch.optim.Optimizer)]
    return [o for o in found if _retired.get(id(o)) is not o]


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
