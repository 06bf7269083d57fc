"""Names a model and its inputs, so that a plan made for others can be refused."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

_MAX_DEPTH = 8  # of nested inputs; they may contain themselves


def input_signature(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Describes the shapes and dtypes of all tensors in a call's arguments.

    Looks into tuples, lists, mappings and dataclasses; other arguments show as `_`.
    Keyword arguments and mappings are sorted by key. Example: `(int64[8,128], mask=bool[8,128])`.
    """
    parts = [_describe(value, 0) for value in args]
    parts += [f"{key}={_describe(kwargs[key], 0)}" for key in sorted(kwargs)]
    return f"({', '.join(parts)})"


def model_signature(module: nn.Module) -> str:
    """Describes a model: its class, its size, and a hash of its tensors.

    The hash is over the names, shapes and dtypes of all parameters and buffers, and which of the
    parameters are trained. Example: `GPT, 12.6M parameters in 148 tensors, 2 buffers, 5d41402abc`.

    FSDP2 exchanges parameters: an evaluation leaves those of the root gathered, in the type of its
    mixed precision. So their types do not count.
    """
    is_sharded = _is_sharded(module)
    digest = hashlib.sha256()
    elements = 0
    parameters = list(module.named_parameters())
    buffers = list(module.named_buffers())
    for name, tensor in (*parameters, *buffers):
        described = _describe(tensor, 0)
        if is_sharded:
            described = described.partition("[")[2]
        digest.update(f"{name} {described} {tensor.requires_grad}\n".encode())
    for _, parameter in parameters:
        elements += 0 if nn.parameter.is_lazy(parameter) else parameter.numel()
    return (
        f"{type(module).__name__}, {_count(elements)} parameters in {len(parameters)} tensors, "
        f"{len(buffers)} buffers, {digest.hexdigest()[:10]}"
    )


def _is_sharded(module: nn.Module) -> bool:
    """True if FSDP2 has any of the parameters. It is not imported for that."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    return kind is not None and any(isinstance(each, kind) for each in module.modules())


def _describe(value: Any, depth: int) -> str:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        # These two raise when asked for their shape.
        if value.is_nested or nn.parameter.is_lazy(value):
            return f"{dtype}[?]"
        return f"{dtype}[{','.join(map(str, value.shape))}]"
    if depth == _MAX_DEPTH:
        return "_"
    if isinstance(value, Mapping):
        items = sorted((str(key), item) for key, item in value.items())
        return _braces({key: _describe(item, depth + 1) for key, item in items})
    if isinstance(value, (tuple, list)):
        return f"({', '.join(_describe(item, depth + 1) for item in value)})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return _braces({f.name: _describe(getattr(value, f.name), depth + 1) for f in fields})
    return "_"


def _braces(items: Mapping[str, str]) -> str:
    return f"{{{', '.join(f'{key}: {item}' for key, item in items.items())}}}"


def _count(n: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= size:
            return f"{n / size:.1f}{unit}"
    return str(n)
