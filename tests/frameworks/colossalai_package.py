"""Colossal-AI's real classes where some of what it imports is missing, and no GPU is there.

Its pipelines, its Booster and its plugins need torch alone; importing them imports all of the
package. What is not installed is stood in for by modules whose every attribute is an empty class:
good for imports and base classes, and for nothing else. LowLevelZero and Gemini refuse to work on
the CPU, so `on_cpu()` tells them that it is a GPU, whose streams are nothing and whose optimizers'
kernels are torch's own.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from typing import Any
from unittest import mock

import torch
from packages import folders

_MISSING = {"bitsandbytes", "einops", "galore_torch", "peft", "psutil", "safetensors"}


class Missing(types.ModuleType):
    """Stands for a package that is not there."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # The one that is no class: a table of safetensors.
        value: Any = {} if name == "_TYPES" else type(name, (), {})
        setattr(self, name, value)
        return value


class _Finder:
    """Finds, when nobody else does, what is missing."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        known = name.partition(".")[0] in _MISSING
        return ModuleSpec(name, _Finder, is_package=True) if known else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> types.ModuleType:
        return Missing(spec.name)

    @staticmethod
    def exec_module(module: types.ModuleType) -> None:
        pass


def load(*names: str) -> list[types.ModuleType]:
    """The package's modules of these names."""
    if _Finder not in sys.meta_path:
        sys.path[:0] = folders("stable")
        sys.meta_path.append(_Finder)
    # Something that the torch it was written for has, and newer ones do not.
    vars(torch.distributed).setdefault("is_hccl_available", lambda: False)
    return [importlib.import_module(f"colossalai.{name}") for name in names]


class Adam(torch.optim.AdamW):
    """Stands for HybridAdam, whose kernels are not built: it scales gradients, too."""

    def step(self, closure: Any = None, div_scale: float = -1.0) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if (gradient := parameter.grad) is not None:
                    parameter.grad = None
                    scale = div_scale if div_scale > 0 else 1.0
                    parameter.grad = gradient.to(parameter.dtype) / scale
        return super().step(closure)


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """The accelerator is the CPU, and calls itself a GPU."""
    api, cpu, gemini = load(
        "accelerator.api", "accelerator.cpu_accelerator", "zero.gemini.gemini_optimizer"
    )
    accelerator = cpu.CpuAccelerator()
    nothing = lambda *args, **kwargs: None  # noqa: E731
    with contextlib.ExitStack() as stack:
        for name, value in {
            "name": property(lambda self: "cuda"),
            "synchronize": nothing,
            "Stream": mock.MagicMock(name="Stream"),
            "current_stream": mock.MagicMock(name="stream"),
            "stream": lambda *args: contextlib.nullcontext(),
        }.items():
            stack.enter_context(mock.patch.object(cpu.CpuAccelerator, name, value))
        stack.enter_context(mock.patch.object(api, "_ACCELERATOR", accelerator))
        stack.enter_context(mock.patch.object(torch.Tensor, "record_stream", nothing))
        stack.enter_context(
            mock.patch.object(gemini, "_AVAIL_OPTIM_LIST", {Adam, *gemini._AVAIL_OPTIM_LIST})
        )
        yield
