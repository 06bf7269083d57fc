"""Does a plan fit this run? Each check returns the reason why not, or None.

A plan's `info` holds the device, torch, model and inputs that were profiled. A plan without such an
entry fits.
"""

from __future__ import annotations

import json
import re
from typing import Any

import torch

from stalloc.errors import PlanError, StallocError
from stalloc.hooks import input_signature, model_signature
from stalloc.plans import Plan

# In a signature: the sizes of a tensor's dimensions.
_SHAPE = re.compile(r"\[((?:[0-9]{1,18}(?:,[0-9]{1,18})*)?)\]")


def environment_mismatch(plan: Plan) -> str | None:
    """Compares the version of torch.

    Any device may serve a plan that was made on meta, under any build of the same release.
    """
    profiled, running = plan.info.get("torch", ""), str(torch.__version__)
    if plan.info.get("device") == "meta":
        profiled, running = (version.partition("+")[0] for version in (profiled, running))
    if profiled and profiled != running:
        return (
            f"it was profiled under torch {profiled} and this is {torch.__version__}, whose "
            "requests may differ; profile again"
        )
    return None


def model_mismatch(plan: Plan, model: torch.nn.Module) -> str | None:
    """Compares the signatures of the models."""
    profiled, running = plan.info.get("model", ""), model_signature(model)
    if profiled and profiled != running:
        return f"it was profiled with the model {profiled} and this is {running}; profile again"
    return None


def input_mismatch(profiled: list[str], args: Any, kwargs: Any) -> str | None:
    """Compares a forward's inputs with those that were profiled, as `input_signature` tells them.

    A dimension that changed while the program was profiled may have any size: the plan knows the
    laws of the sizes that follow it. One that never changed may be smaller.
    """
    if not profiled:
        return None
    running = input_signature(args, kwargs)
    seen = _seen(profiled, running)
    if seen is not None and all(len(s) > 1 or n <= max(s) for n, s in seen):
        return None
    hint = (
        "profile again with this batch size and length"
        if seen is not None
        else "the inputs differ in number, type or rank; profile again"
    )
    return (
        f"it was profiled with inputs {' or '.join(profiled)} and the first forward got "
        f"{running}; {hint}"
    )


def same_inputs(profiled: list[str], running: str) -> bool:
    """True if inputs are those that were profiled, but for dimensions that changed meanwhile."""
    seen = _seen(profiled, running)
    return seen is not None and all(len(s) > 1 or n in s for n, s in seen)


def _seen(profiled: list[str], running: str) -> list[tuple[int, set[int]]] | None:
    """The size of each dimension, and the profiled ones; None if number, types or ranks differ."""
    alike = [_dimensions(shape) for shape in profiled if _ranks(shape) == _ranks(running)]
    if not alike:
        return None
    return list(zip(_dimensions(running), map(set, zip(*alike, strict=True)), strict=True))


def _dimensions(signature: str) -> list[int]:
    """The sizes of all dimensions, in order."""
    return [int(n) for shape in _SHAPE.findall(signature) for n in shape.split(",") if n]


def _ranks(signature: str) -> str:
    """The signature without the sizes of the dimensions."""
    return _SHAPE.sub(lambda shape: f"[{len(shape[1].split(',')) if shape[1] else 0}]", signature)


def may_be_part(signature: str, plan: Plan) -> bool:
    """True if a module of this signature has fewer tensors than the plan's model."""
    profiled = plan.info.get("model", "")
    tensors = [re.search(r" in (\d+) tensors", text) for text in (signature, profiled)]
    part, whole = (int(match[1]) if match else 0 for match in tensors)
    return part < whole


def device_to_serve(plan: Plan, model: torch.nn.Module | None) -> torch.device:
    """The profiled device; its index is that of the model's parameters if they agree.

    A plan that was made on the meta device serves the device of the model's parameters. If they are
    not known, on the meta device or on several ones, it serves its target; else the GPU, or the CPU
    without one.

    Raises:
        StallocError: torch does not know the device.
    """
    name = plan.info.get("device", "cpu")
    if name == "pinned":
        raise StallocError(
            "this is a plan of pinned memory, which is enabled beside that of a GPU: "
            "enable(plan, pinned=...)"
        )
    try:
        profiled = torch.device(name)
    except RuntimeError as e:
        raise StallocError(f"the plan is for device '{name}', which torch does not know") from e
    found = {p.device for p in model.parameters()} if model is not None else set()
    if profiled.type == "meta":
        real = {device for device in found if device.type != "meta"}
        if len(real) == 1:
            return real.pop()
        is_for_cpu = plan.info.get("target") == "cpu" or not torch.cuda.is_available()
        return torch.device("cpu" if is_for_cpu else "cuda")
    if profiled.index is not None:
        return profiled
    devices = {device for device in found if device.type == profiled.type}
    return devices.pop() if len(devices) == 1 else profiled


def count(plan: Plan, key: str) -> int:
    """A number in the plan's info; 0 if it is missing.

    Raises:
        PlanError: The entry is not a number.
    """
    text = plan.info.get(key, "0")
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise PlanError(f"the plan's info, key {key}: {text!r} is no count; plan again")
    return int(text)


def names(plan: Plan, key: str) -> list[str]:
    """A JSON array of strings in the plan's info; empty if it is missing.

    Raises:
        PlanError: The entry is something else.
    """
    text = plan.info.get(key, "[]")
    try:
        result = json.loads(text)
    except ValueError:
        result = None
    if not isinstance(result, list) or not all(isinstance(name, str) for name in result):
        raise PlanError(
            f"the plan's info, key {key}: {text!r} is no JSON array of strings; plan again"
        )
    return result
