"""Stands in for packages that others import and do not need here.

They are modules whose every attribute is an empty class: good for imports and base classes, and for
nothing else.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from typing import Any

_packages: set[str] = set()


class Missing(types.ModuleType):
    """Stands for a package, or a module of one, that is not there."""

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
        known = name.partition(".")[0] in _packages
        return ModuleSpec(name, _Finder, is_package=True) if known else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> types.ModuleType:
        return Missing(spec.name)

    @staticmethod
    def exec_module(module: types.ModuleType) -> None:
        pass


def stand_in_for(*packages: str) -> None:
    """From now on, in this process, for those of these packages that are not there."""
    _packages.update(packages)
    if _Finder not in sys.meta_path:
        sys.meta_path.append(_Finder)
