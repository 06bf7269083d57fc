"""Plans the address of every tensor of a training iteration ahead of time.

Example:
    with stalloc.profile(model) as prof:
        for _ in range(3):
            train_step(next(batches))
            prof.step()
    plan = prof.plan()
    stalloc.enable(plan)
    for batch in batches:
        train_step(batch)
        stalloc.step()
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

# Public names are imported on first use. Importing torch takes longer than planning does, and a
# Ctrl-C during the import of NumPy and the core would end in a traceback: `__main__` is there by
# then.
_MODULE_OF = {
    alias.name: statement.module or __name__
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8")).body
    if isinstance(statement, ast.ImportFrom)
    for alias in statement.names
}

__all__ = [name for name, module in _MODULE_OF.items() if module != __name__ or name == "hooks"]


def __getattr__(name: str) -> Any:
    if name == "_core":
        return _compiled_part()
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _MODULE_OF[name] == __name__:
        return importlib.import_module(f"{__name__}.{name}")
    value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return value


def _compiled_part() -> Any:
    """The result of `from stalloc import _core`, wherever that comes first."""
    name = f"{__name__}._core"
    # The extension imports NumPy when it is initialised; a Ctrl-C there becomes an ImportError.
    importlib.import_module("numpy")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
    here = Path(__file__).parents[1]
    raise ImportError(
        f"stalloc was found as source code in {here}, and its C++ extension is not built there. "
        "If it is installed already, start Python in another folder. Otherwise build and install "
        "it with `pip install --no-build-isolation .` in that one",
        name=name,
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
