"""Reads the extents of a microbatch: the sizes of the dimensions of the model's inputs.

An extent is named after its input and dimension: `ids.0` and `ids.1` of a parameter `ids`. Inputs
inside tuples, lists, mappings and dataclasses add their index, key or field: `batch.ids.1`. A plain
integer has the name of its input. Tensors are only read: none is kept alive or changed.
"""

from __future__ import annotations

import dataclasses
import inspect
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

_MAX_EXTENTS = 32  # of one call
_MAX_DEPTH = 8  # of nested inputs; they may contain themselves
_MAX_ITEMS = 8  # of a sequence; of a longer one only the length is read
_MAX_VISITS = 256  # of values, in one call


class ExtentReader:
    """Reads calls of one module after another; a new module costs its signature's inspection."""

    def __init__(self) -> None:
        self._module: weakref.ref[nn.Module] | None = None
        self._parameters: tuple[str, ...] = ()
        self._names: dict[tuple[str, int], tuple[str, ...]] = {}

    def read(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[list[str], list[int]]:
        """Returns the names of the extents of a call, and their values.

        An input that raises on inspection has no extents.
        """
        if self._module is None or self._module() is not module:
            self._module = weakref.ref(module)
            self._parameters = _parameters_of(module)
            self._names.clear()
        call = _Call(self._names)
        known = len(self._parameters)
        for i, value in enumerate(args):
            call.visit(self._parameters[i] if i < known else str(i), value, 0)
        for key, value in kwargs.items():
            call.visit(key, value, 0)
        return call.names, call.values

    def read_named(self, inputs: Mapping[str, Any]) -> tuple[list[str], list[int]]:
        """The same for inputs that go to no module."""
        call = _Call(self._names)
        for key, value in inputs.items():
            call.visit(key, value, 0)
        return call.names, call.values


class _Call:
    """The extents of one call as far as they have been read."""

    def __init__(self, known: dict[tuple[str, int], tuple[str, ...]]) -> None:
        self.names: list[str] = []
        self.values: list[int] = []
        self._known = known  # names of the dimensions by input and their number
        self._visits = 0

    def visit(self, name: str, value: Any, depth: int) -> None:
        self._visits += 1
        if self._visits > _MAX_VISITS or value is None:
            return
        if isinstance(value, torch.Tensor):
            self._add_tensor(name, value)
        elif type(value) is int:
            self._add(name, value)
        elif depth < _MAX_DEPTH and not isinstance(value, (str, bytes, float, type, nn.Module)):
            try:
                self._visit_items(name, value, depth + 1)
            except Exception:  # of a container of the user's
                return

    def _visit_items(self, name: str, value: Any, depth: int) -> None:
        if isinstance(value, (tuple, list)):
            if len(value) > _MAX_ITEMS:
                self._add(f"{name}.len", len(value))
                return
            for i, item in enumerate(value):
                self.visit(f"{name}.{i}", item, depth)
        elif _is_mapping(value):
            for key in value.keys():  # noqa: SIM118  # not every mapping iterates over its keys
                self.visit(f"{name}.{key}", value[key], depth)
        elif dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                self.visit(f"{name}.{field.name}", getattr(value, field.name), depth)

    def _add_tensor(self, name: str, tensor: torch.Tensor) -> None:
        try:
            shape = tuple(tensor.shape)
        except Exception:  # a nested tensor, or a parameter that has no shape yet
            return
        names = self._known.get((name, len(shape)))
        if names is None:
            names = tuple(f"{name}.{i}" for i in range(len(shape)))
            self._known[name, len(shape)] = names
        for extent, size in zip(names, shape, strict=True):
            if type(size) is int:  # a symbolic size has no value
                self._add(extent, size)

    def _add(self, name: str, value: int) -> None:
        if len(self.names) < _MAX_EXTENTS and 0 <= value < 2**62:
            self.names.append(name)
            self.values.append(value)


def _is_mapping(value: Any) -> bool:
    # Batches of several libraries behave like mappings and do not derive from Mapping.
    kind = type(value)
    return isinstance(value, Mapping) or (hasattr(kind, "keys") and hasattr(kind, "__getitem__"))


def _parameters_of(module: nn.Module) -> tuple[str, ...]:
    """Returns the names of the positional parameters of the module's forward.

    A wrapper that takes anything (DistributedDataParallel, torch.compile) has those of the module
    inside.
    """
    inner: Any = module
    for _ in range(_MAX_DEPTH):
        try:
            parameters = inspect.signature(inner.forward).parameters.values()
        except (TypeError, ValueError, AttributeError):
            return ()
        names = tuple(
            p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        )
        wrapped = getattr(inner, "module", None)
        if wrapped is None:  # never by its truth: a compiled module is asked for its length
            wrapped = getattr(inner, "_orig_mod", None)
        if names or not isinstance(wrapped, nn.Module):
            return names
        inner = wrapped
    return ()
