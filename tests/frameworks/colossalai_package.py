"""Colossal-AI's real classes where most of what it imports is missing.

Its pipelines, its Booster and its plugins need torch alone; importing them imports all of the
package. What is not installed is stood in for by modules whose every attribute is an empty class:
good for imports and base classes, and for nothing else.
"""

from __future__ import annotations

import importlib
import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any

import torch
from packages import folders


class Missing(types.ModuleType):
    """Stands for a package that is not there."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__spec__ = ModuleSpec(name, None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # The one that is no class: a table of safetensors.
        value: Any = {} if name == "_TYPES" else type(name, (), {})
        setattr(self, name, value)
        return value


def load(*names: str) -> list[types.ModuleType]:
    """The package's modules of these names."""
    sys.path[:0] = folders("stable")
    # Something that the torch it was written for has, and newer ones do not.
    vars(torch.distributed).setdefault("is_hccl_available", lambda: False)
    while True:
        try:
            return [importlib.import_module(f"colossalai.{name}") for name in names]
        except ModuleNotFoundError as e:
            missing = e.name or ""
            if missing.startswith("colossalai") or missing in sys.modules:
                raise
        sys.modules[missing] = Missing(missing)
        for name in [name for name in sys.modules if name.startswith("colossalai")]:
            del sys.modules[name]
