"""megatron-core on tensors of the CPU: what it takes for the real package to train without a GPU.

Megatron asks for "cuda" by name. Inside `on_cpu()` that means the CPU, and its random number
tracker, which keeps states of CUDA generators, forks nothing. Everything else is the package's own:
the models, the schedules, the dispatchers, the communication between stages (over gloo).
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from gloo import settled

_FACTORIES = ("arange", "empty", "empty_like", "eye", "full", "ones", "rand", "tensor", "zeros")


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, for which a CUDA device is the CPU."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None:
            kwargs["device"] = _cpu(kwargs["device"])
        return function(*(_cpu(a) if isinstance(a, torch.device) else a for a in args), **kwargs)

    return wrapper


def _cpu(device: Any) -> Any:
    return torch.device("cpu") if "cuda" in str(device) or isinstance(device, int) else device


def _type(tensor: torch.Tensor, *args: Any) -> Any:
    """A tensor's type as it would be on CUDA, which Megatron's optimizers insist on."""
    if args:
        return tensor.to(*args)
    return f"torch.cuda.{_TYPES[tensor.dtype]}"


_TYPES = {
    torch.float32: "FloatTensor",
    torch.float16: "HalfTensor",
    torch.bfloat16: "BFloat16Tensor",
}


class NoTracker:
    """Stands for the tracker of CUDA random states: on the CPU there is one generator."""

    def is_initialized(self) -> bool:
        return True

    def reset(self) -> None:
        pass

    def get_states(self) -> dict[str, Any]:
        return {}

    def set_states(self, states: dict[str, Any]) -> None:
        pass

    def add(self, name: str, seed: int) -> None:
        pass

    def fork(self, name: str = "") -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


@contextlib.contextmanager
def on_cpu(folders: list[str]) -> Iterator[None]:
    """Makes the package importable from `folders` and lets it run here."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    sys.path[:0] = folders
    from megatron.core.tensor_parallel import random

    nothing = lambda *args, **kwargs: None  # noqa: E731
    with contextlib.ExitStack() as stack:
        for name, value in {
            "current_device": lambda: torch.device("cpu"),
            "synchronize": nothing,
            "current_stream": mock.MagicMock(name="stream"),
            "Stream": mock.MagicMock(name="Stream"),
            "Event": mock.MagicMock(name="Event"),
            "stream": lambda stream: contextlib.nullcontext(),
            "set_device": nothing,
            "nvtx.range_push": nothing,
            "nvtx.range_pop": nothing,
        }.items():
            stack.enter_context(mock.patch(f"torch.cuda.{name}", value))
        for name, value in {  # not all of which every version has
            "_CUDA_RNG_STATE_TRACKER": NoTracker(),
            "_CUDA_RNG_STATE_TRACKER_INITIALIZED": True,
            "_get_cuda_rng_state": lambda *args, **kwargs: torch.get_rng_state(),
            "_set_cuda_rng_state": nothing,
        }.items():
            stack.enter_context(mock.patch.object(random, name, value, create=True))
        stack.enter_context(settled())
        # Without Transformer Engine the package forgets to define this.
        from megatron.core.transformer.moe import moe_utils

        if not hasattr(moe_utils, "te_general_gemm"):
            stack.enter_context(mock.patch.object(moe_utils, "te_general_gemm", None, create=True))
        for name in _FACTORIES:
            stack.enter_context(mock.patch.object(torch, name, _on_cpu(getattr(torch, name))))
        for name, value in {
            "cuda": lambda tensor, *args, **kwargs: tensor,
            "to": _on_cpu(torch.Tensor.to),
            "type": _type,
        }.items():
            stack.enter_context(mock.patch.object(torch.Tensor, name, value))
        yield
