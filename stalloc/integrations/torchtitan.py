"""torchtitan: one call before its `main` profiles, plans and serves its training.

    import stalloc.integrations.torchtitan
    from torchtitan.train import main

    stalloc.integrations.torchtitan.install()
    main()

An iteration is a `train_step`. Without a pipeline the model's own hooks find its microbatches,
FSDP2's gathered parameters among their requests; with one, its stages tell them. Validation and
checkpoints are unplanned. With CUDA graphs, which replay without any request, training goes on
without a plan.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from stalloc._frameworks import installed
from stalloc._frameworks.callback import version
from stalloc._frameworks.installed import Integration
from stalloc._frameworks.patches import Function
from stalloc._frameworks.stages import Stages
from stalloc.driver import Driver
from stalloc.errors import StallocError
from stalloc.options import Options

__all__ = ["install", "uninstall"]

# The Trainer has moved from the second module to the first.
_TRAINERS = ("torchtitan.trainer", "torchtitan.train")
_UNPLANNED = (
    ("torchtitan.components.validate", "Validator", "validate"),
    ("torchtitan.components.checkpoint", "CheckpointManager", "save"),
    ("torchtitan.components.checkpoint", "CheckpointManager", "load"),
)
_SIZES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")
_GRAPHS = (
    "torchtitan's CUDA graphs replay without any request to serve; set "
    "--training.disable_cuda_graphs to train under a plan"
)

uninstall = installed.uninstall


def install(
    mode: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Driver:
    """Follows torchtitan's Trainer; once, if called again.

    Args:
        mode: As for `stalloc.options.Options`.
        folder: As for `stalloc.options.Options`.
        **options: The other fields of `stalloc.options.Options`.

    Raises:
        StallocError: torchtitan can't be imported, or has no Trainer.
        ValueError: As for `stalloc.options.Options`.
    """
    trainer = _find_trainer()
    if (driver := installed.installed(_Titan, trainer)) is not None:
        return driver
    parallelism: dict[str, int] = {}  # filled in when there is a trainer
    driver = Driver(
        Options(mode, folder, **options),
        parallelism=lambda: parallelism,
        framework=f"torchtitan {version('torchtitan')}",
    )
    return installed.install(_Titan(trainer, driver, parallelism))


def _find_trainer() -> Any:
    reasons = []
    for name in _TRAINERS:
        try:
            return importlib.import_module(name).Trainer
        except (ImportError, AttributeError) as e:
            reasons.append(str(e))
    raise StallocError(
        f"torchtitan's Trainer can't be imported: install torchtitan, or run this where it is on "
        f"PYTHONPATH ({'; '.join(reasons)})"
    )


class _Titan(Integration):
    """The Trainer's class, and the one trainer of it."""

    def __init__(self, trainer: Any, driver: Driver, parallelism: dict[str, int]) -> None:
        super().__init__(trainer, driver)
        self._trainer = trainer
        self._parallelism = parallelism
        self._stages = Stages(driver, self.patches)
        self._schedule: Any = None
        self._runs = 0

    def follow(self) -> None:
        self.patches.wrap(self._trainer, "train_step", self._wrap_train_step)
        for module, cls, name in _UNPLANNED:
            try:
                owner = getattr(importlib.import_module(module), cls)
            except (ImportError, AttributeError):
                continue
            self.patches.wrap(owner, name, self.unplanned)

    def _wrap_train_step(self, original: Function) -> Function:
        def train_step(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._parallelism:
                self._meet(trainer)
            self._runs = 0
            with self.driver.iteration(trainer.model_parts):
                return original(trainer, *args, **kwargs)

        return train_step

    def _meet(self, trainer: Any) -> None:
        """The first step of the trainer: its sizes are known now."""
        sizes = {name.replace("_", ""): getattr(trainer.parallel_dims, name, 1) for name in _SIZES}
        self._parallelism.update(sizes, mb=trainer.gradient_accumulation_steps)
        training = trainer.config.training
        if not getattr(training, "disable_cuda_graphs", True):
            self.driver.stand_aside(_GRAPHS)
        schedule = getattr(trainer, "pp_schedule", None)
        if schedule is not None:
            self._stages.follow(schedule)
            self.patches.wrap(schedule, "step", self._wrap_schedule_step)
            self.patches.wrap(schedule, "eval", self.unplanned)
            self._schedule = schedule

    def _wrap_schedule_step(self, original: Function) -> Function:
        def step(*args: Any, **kwargs: Any) -> Any:
            if not self.evaluations:
                self._stages.begin(self._schedule, continues=self._runs > 0)
                self._runs += 1
            return original(*args, **kwargs)

        return step
