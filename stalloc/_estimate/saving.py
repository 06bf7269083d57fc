"""Saving is left out: nothing is written, and no checkpoint of the user's is replaced or deleted.

Functions of torch and of frameworks that save are replaced, those of a framework as soon as the
program imports it. They do not gather what they would save either.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from stalloc._estimate.values import Values
from stalloc._frameworks.patches import Patches

_torch: Any = torch

_SAVING = {
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save", "save_state_dict"),
    "safetensors.torch": ("save_file", "save_model"),
    "accelerate.accelerator": (
        "Accelerator.save",
        "Accelerator.save_model",
        "Accelerator.save_state",
    ),
    "deepspeed.runtime.engine": (
        "DeepSpeedEngine.save_16bit_model",
        "DeepSpeedEngine.save_checkpoint",
    ),
    "lightning.fabric.fabric": ("Fabric.save",),
    "lightning.pytorch.trainer.trainer": ("Trainer.save_checkpoint",),
    "lightning_fabric.fabric": ("Fabric.save",),
    "megatron.core.dist_checkpointing.serialization": ("save",),
    "megatron.training.checkpointing": ("save_checkpoint",),
    "peft.peft_model": ("PeftModel.save_pretrained",),
    "pytorch_lightning.trainer.trainer": ("Trainer.save_checkpoint",),
    "torchtitan.components.checkpoint": ("CheckpointManager.save",),
    "transformers.modeling_utils": ("PreTrainedModel.save_pretrained",),
    "transformers.trainer": (
        "Trainer._save_checkpoint",
        "Trainer.save_model",
        "Trainer.save_state",
    ),
}
"""Functions and methods that save, by the module that defines them."""


@contextlib.contextmanager
def left_out(patches: Patches, values: Values) -> Iterator[None]:
    """Replaces what saves; modules that are imported until the end of the block, too."""
    patches.replace(torch, "save", _unsaved(values, "torch.save"))
    if _torch.distributed.is_available():
        importlib.import_module("torch.distributed.checkpoint.state_dict_saver")
        _fully_sharded(patches, values)

    def replace(module: ModuleType) -> None:
        for path in _SAVING[module.__name__]:
            _replace(patches, values, module, path)

    for name in _SAVING:
        if name in sys.modules:
            replace(sys.modules[name])
    finder = _Finder(replace)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _replace(patches: Patches, values: Values, module: ModuleType, path: str) -> None:
    *owners, name = path.split(".")
    owner: Any = module
    for part in owners:
        owner = getattr(owner, part, None)
    original = getattr(owner, name, None)
    if original is None:
        return  # another version of the framework
    unsaved = _unsaved(values, f"{module.__name__.partition('.')[0]}'s {path}")
    patches.replace(owner, name, unsaved)
    if not owners:
        for other in list(sys.modules.values()):  # some import it by name
            if vars(other).get(name) is original:
                patches.replace(other, name, unsaved)


def _unsaved(values: Values, name: str) -> Callable[..., Any]:
    def unsaved(*_: Any, **__: Any) -> Any:
        values.note(name, "nothing is written")
        if not name.endswith("async_save"):
            return None
        done: Future[None] = Future()
        done.set_result(None)
        return done

    return unsaved


def _fully_sharded(patches: Patches, values: Values) -> None:
    """The states of the first version of FSDP: other ranks would say which parameters they have."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    def states(model: Any, optim: Any, optim_state_dict: Any = None, *_: Any, **__: Any) -> Any:
        values.note("FSDP's states for a checkpoint", "those of the rank, not gathered")
        return optim.state_dict() if optim_state_dict is None else optim_state_dict

    patches.replace(FullyShardedDataParallel, "optim_state_dict", staticmethod(states))


class _Finder(MetaPathFinder):
    """Calls a function with each module of the table that is imported."""

    def __init__(self, imported: Callable[[ModuleType], None]) -> None:
        self._imported = imported

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The module's spec, whose loader calls the function; None for other modules."""
        if name not in _SAVING:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, self._imported)
                return spec
        return None


class _Loader(Loader):
    """Loads a module as its own loader does, and calls a function with it then."""

    def __init__(self, loader: Loader, imported: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._imported = imported

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module that its own loader makes."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module, which keeps its own loader."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._imported(module)
