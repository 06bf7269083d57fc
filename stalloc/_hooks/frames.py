"""Finds the running functions in the interpreter's stack.

torch does not guarantee that hooks are called when a KeyboardInterrupt leaves a module, or any
exception leaves an optimizer's step. So a call that the hooks believe to be open is checked here
before they act on it. In a plain loop no call seems to be open, and nothing is checked. The walk
costs about 50 ns a frame and keeps no frame alive.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

import torch

_MODULE_CALL: CodeType = torch.nn.Module._call_impl.__code__
# None since torch 2.14, which applies a custom function without a Python frame.
_FUNCTION_APPLY: CodeType | None = getattr(torch.autograd.Function.apply, "__code__", None)
_OPTIMIZER_FILE: str = torch.optim.Optimizer.profile_hook_step.__code__.co_filename


def module_calls() -> int:
    """Counts the module calls the calling thread is inside of."""
    return _count(_MODULE_CALL.co_filename, _MODULE_CALL.co_name)


def optimizer_steps() -> int:
    """Counts the optimizer steps the calling thread is inside of."""
    return _count(_OPTIMIZER_FILE, "wrapper")


def stepping_optimizers() -> list[object]:
    """The optimizers whose steps the calling thread is inside of, outermost first."""
    optimizers: list[object] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if (frame.f_code.co_filename, frame.f_code.co_name) == (_OPTIMIZER_FILE, "wrapper"):
            optimizers += frame.f_locals.get("args", ())[:1]
        frame = frame.f_back
    return optimizers[::-1]


def in_autograd_function() -> bool:
    """True while the forward of a custom `torch.autograd.Function` runs.

    Such a forward runs with gradients off though it is part of training; reentrant checkpointing
    is one.
    """
    if _FUNCTION_APPLY is not None:
        return _count(_FUNCTION_APPLY.co_filename, _FUNCTION_APPLY.co_name) > 0
    forwards = _forwards(torch.autograd.Function)
    frame = sys._getframe(1)
    while (frame.f_code.co_filename, frame.f_code.co_name) not in forwards:
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return True


def kwargs_of_module_call() -> dict[str, Any]:
    """Returns the keyword arguments of the innermost module call, which global hooks don't get."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename != _MODULE_CALL.co_filename:
        if frame.f_back is None:
            return {}
        frame = frame.f_back
    kwargs = frame.f_locals.get("kwargs")
    return kwargs if isinstance(kwargs, dict) else {}


def _forwards(function: type) -> set[tuple[str, str]]:
    """File and name of the function that runs the forwards of all custom functions."""
    result = set()
    subclasses: list[type] = function.__subclasses__()
    for subclass in subclasses:
        code = getattr(getattr(subclass, "forward", None), "__code__", None)
        if isinstance(code, CodeType):
            result.add((code.co_filename, code.co_name))
        result |= _forwards(subclass)
    default = torch.autograd.Function.forward.__code__
    return result - {(default.co_filename, default.co_name)}


def _count(filename: str, function: str) -> int:
    # By name, not by code object: torch.compile runs copies of it.
    count = 0
    frame = sys._getframe(2)
    while True:
        code = frame.f_code
        if code.co_name == function and code.co_filename == filename:
            count += 1
        if frame.f_back is None:
            return count
        frame = frame.f_back
