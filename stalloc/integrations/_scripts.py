"""Puts stalloc into scripts that know nothing of it, before they run.

megatron, torchtitan   install() as in a script
deepspeed              install(engine) when deepspeed.initialize has made one
accelerate             install(accelerator) when it has prepared an optimizer
colossalai             install(booster, model, optimizer) when the booster has boosted them
transformers           a callback in every Trainer that is made
lightning              likewise

Nothing is undone: the process is the script's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from stalloc._frameworks.patches import Function, Patches

_patches = Patches()


def _after(owner: object, name: str, done: Callable[..., None]) -> None:
    """Has `done(result, *args)` called after each call of a function."""

    def wrap(original: Function) -> Function:
        def function(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            done(result, *args)
            return result

        return function

    _patches.wrap(owner, name, wrap)


def _megatron() -> None:
    import stalloc.megatron

    stalloc.megatron.install()


def _torchtitan() -> None:
    from stalloc.integrations import torchtitan

    torchtitan.install()


def _deepspeed() -> None:
    from stalloc.integrations import deepspeed

    def initialized(result: tuple[Any, ...], *_: Any) -> None:
        deepspeed.install(result[0])

    _after(importlib.import_module("deepspeed"), "initialize", initialized)


def _accelerate() -> None:
    from stalloc.integrations import accelerate

    def prepared(_: Any, accelerator: Any, *__: Any) -> None:
        if accelerator._optimizers:
            accelerate.install(accelerator)

    _after(importlib.import_module("accelerate").Accelerator, "prepare", prepared)


def _colossalai() -> None:
    import stalloc.colossalai

    def boosted(result: tuple[Any, ...], booster: Any, *_: Any) -> None:
        model, optimizer = result[:2]
        if optimizer is not None:
            stalloc.colossalai.install(booster, model, optimizer)

    _after(importlib.import_module("colossalai.booster").Booster, "boost", boosted)


def _transformers() -> None:
    from stalloc.integrations.transformers import StallocCallback

    def made(_: None, trainer: Any, *__: Any) -> None:
        trainer.add_callback(StallocCallback())

    _after(importlib.import_module("transformers").Trainer, "__init__", made)


def _lightning() -> None:
    from stalloc.integrations.lightning import StallocCallback

    try:
        module = importlib.import_module("lightning.pytorch")
    except ImportError:
        module = importlib.import_module("pytorch_lightning")

    def made(_: None, trainer: Any, *__: Any) -> None:
        trainer.callbacks.insert(0, StallocCallback())

    _after(module.Trainer, "__init__", made)


FRAMEWORKS: dict[str, Callable[[], None]] = {
    "accelerate": _accelerate,
    "colossalai": _colossalai,
    "deepspeed": _deepspeed,
    "lightning": _lightning,
    "megatron": _megatron,
    "torchtitan": _torchtitan,
    "transformers": _transformers,
}
"""Name -> function that installs stalloc; raises ImportError or StallocError without it."""
