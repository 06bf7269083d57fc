"""Colossal-AI's real classes where some of what it imports is missing, and no GPU is there.

Its pipelines, its Booster and its plugins need torch alone; importing them imports all of the
package. `missing` replaces modules that are not installed. LowLevelZero and Gemini refuse to work
on the CPU, so `on_cpu()` tells them that it is a GPU, whose streams are nothing and whose
optimizers' kernels are torch's own.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from missing import stand_in_for
from packages import folders

_MISSING = ("bitsandbytes", "einops", "galore_torch", "peft", "psutil", "safetensors")


def load(*names: str) -> list[types.ModuleType]:
    """The package's modules of these names."""
    if "colossalai" not in sys.modules:
        sys.path[:0] = folders("stable")
        stand_in_for(*_MISSING)
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
