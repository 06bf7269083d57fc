"""Means that save activations, tried on the pretended GPU: the program runs with them.

A model's blocks are what it repeats: modules of one class in a list, as the layers of a
transformer. They are found when the model is first called for training.

    recomputed     their activations are freed after the forward, and made again in the backward
    on the host    their activations are copied away, and back for the backward
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stalloc._hooks.modules import before_every_forward

Forward = Callable[..., Any]

_LEAST_MOVED = 1 << 20
"""Bytes of an activation that is worth a copy to the host."""


@dataclass
class Activations:
    """A treatment of the activations of a run's blocks.

    Attributes:
        recomputed: Recompute every n-th block; 0 recomputes none.
        moved: Copy the others to the host.
        blocks: The blocks that were found.
        largest: Bytes of the parameters of the largest one.
        outside: Bytes of the parameters outside of blocks.
        transferred: Bytes that went to the host so far.
    """

    recomputed: int = 0
    moved: bool = False
    blocks: int = 0
    largest: int = 0
    outside: int = 0
    transferred: int = 0

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Changes each model that is called for training, until the end of the block."""
        known: WeakSet[nn.Module] = WeakSet()
        changed: list[tuple[Any, str, object]] = []

        def called(module: nn.Module, *_: object) -> None:
            if module in known or not module.training or not torch.is_grad_enabled():
                return
            known.update(module.modules())
            self._change(module, changed)

        hook = before_every_forward(called)
        try:
            yield
        finally:
            hook.remove()
            for owner, name, value in reversed(changed):
                if value is _INHERITED:
                    delattr(owner, name)
                else:
                    setattr(owner, name, value)

    def _change(self, model: nn.Module, changed: list[tuple[Any, str, object]]) -> None:
        found = blocks_of(model)
        sizes = [_bytes_of(block) for block in found]
        self.largest = max([self.largest, *sizes])
        self.outside += _bytes_of(model) - sum(sizes)
        changes = found and (self.recomputed or self.moved)
        for module in model.modules() if changes else ():
            config = getattr(module, "config", None)
            if getattr(config, "use_cache", False):  # of keys and values, which a replay would fill
                changed.append((config, "use_cache", True))
                config.use_cache = False  # type: ignore[union-attr]
        weights = {p.untyped_storage()._cdata for p in model.parameters()}
        for number, block in enumerate(found, start=self.blocks):
            replayed = self.recomputed and number % self.recomputed == 0
            wrap = _recomputed if replayed else self._on_host(weights) if self.moved else None
            if wrap is not None:
                changed.append((block, "forward", vars(block).get("forward", _INHERITED)))
                block.forward = wrap(block.forward)
        self.blocks += len(found)

    def _on_host(self, weights: set[int]) -> Callable[[Forward], Forward]:
        def wrap(forward: Forward) -> Forward:
            @functools.wraps(forward)
            def moved(*args: Any, **kwargs: Any) -> Any:
                with torch.autograd.graph.saved_tensors_hooks(leave, _come):
                    return forward(*args, **kwargs)

            return moved

        def leave(tensor: Tensor) -> Any:
            size = tensor.numel() * tensor.element_size()
            if (
                size < _LEAST_MOVED
                or tensor.device.type != "cuda"
                or tensor.untyped_storage()._cdata in weights
            ):
                return tensor
            self.transferred += size
            return _Away(tensor.shape, tensor.stride(), tensor.dtype)

        return wrap


_INHERITED = object()


@dataclass(frozen=True, slots=True)
class _Away:
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


def _come(saved: Any) -> Tensor:
    if not isinstance(saved, _Away):
        return saved  # type: ignore[no-any-return]
    return torch.empty_strided(saved.shape, saved.stride, dtype=saved.dtype, device="cuda")


def _recomputed(forward: Forward) -> Forward:
    @functools.wraps(forward)
    def replayed(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return replayed


def _bytes_of(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The modules that a model repeats, in their order: at least two of one class in a list.

    They have modules of their own. Blocks inside of blocks do not count.
    """
    children = [_unwrapped(child) for child in model.children()]
    counts = Counter(type(child) for child in children if any(True for _ in child.children()))
    listed = isinstance(model, nn.ModuleList | nn.Sequential)
    found: list[nn.Module] = []
    for child in children:
        repeats = listed and counts[type(child)] > 1
        found += [child] if repeats and next(child.parameters(), None) is not None else []
        found += [] if repeats else blocks_of(child)
    return found


def _unwrapped(module: nn.Module) -> nn.Module:
    """The module that FSDP's first version wraps: a replay of its forward would gather again."""
    inner = getattr(module, "_fsdp_wrapped_module", module)
    return inner if isinstance(inner, nn.Module) else module
