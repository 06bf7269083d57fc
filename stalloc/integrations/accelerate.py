"""Accelerate: one call profiles, plans and serves a loop of one's own.

    import stalloc.integrations.accelerate

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    stalloc.integrations.accelerate.install(accelerator)

The loop stays as it is. An iteration ends when the gradients are zeroed after the optimizer has
really stepped, that is, after the last microbatch that it accumulates, even if a gradient scaler
skips that step. If the gradients are never zeroed, it ends with the step. With several optimizers,
the last one of the first cycle or a slower one ends it. The model's own hooks find microbatches,
forward and backward. Evaluation runs with gradients off. Saved and loaded states are unplanned.
"""

from __future__ import annotations

import os
from typing import Any

from stalloc._frameworks import installed
from stalloc._frameworks.callback import version
from stalloc._frameworks.installed import Integration
from stalloc._frameworks.patches import Function
from stalloc._hooks.iterations import IterationCounter
from stalloc.driver import Driver, Model
from stalloc.errors import StallocError
from stalloc.options import Options

__all__ = ["install", "uninstall"]

_UNPLANNED = ("save_state", "load_state", "save_model")

uninstall = installed.uninstall


def install(
    accelerator: Any,
    mode: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    *,
    model: Model | None = None,
    **options: Any,
) -> Driver:
    """Follows the optimizers that the accelerator has prepared; once, if called again.

    Args:
        accelerator: Its `prepare` has been called.
        mode: As for `stalloc.options.Options`.
        folder: As for `stalloc.options.Options`.
        model: The model; None takes the prepared model if there is only one.
        **options: The other fields of `stalloc.options.Options`.

    Raises:
        StallocError: No optimizer has been prepared.
        ValueError: As for `stalloc.options.Options`.
    """
    if (driver := installed.installed(_Loop, accelerator)) is not None:
        return driver
    if not accelerator._optimizers:
        raise StallocError(
            "the accelerator has prepared no optimizer: call install(accelerator) after "
            "accelerator.prepare(model, optimizer, ...)"
        )
    models = accelerator._models
    parallelism = {"dp": accelerator.num_processes, "mb": accelerator.gradient_accumulation_steps}
    driver = Driver(
        Options(mode, folder, **options),
        parallelism=parallelism,
        framework=f"accelerate {version('accelerate')}",
    )
    if model is None and len(models) == 1:
        model = models[0]
    return installed.install(_Loop(accelerator, driver, model))


class _Loop(Integration):
    """A loop that steps prepared optimizers."""

    def __init__(self, accelerator: Any, driver: Driver, model: Model | None) -> None:
        super().__init__(accelerator, driver)
        self._accelerator = accelerator
        self._model = model
        self._counter = IterationCounter()
        self._is_over = False
        self._zeroes = True

    def follow(self) -> None:
        for optimizer in self._accelerator._optimizers:
            self._follow_optimizer(optimizer)
        for name in _UNPLANNED:
            self.patches.wrap(self._accelerator, name, self.unplanned)
        self.driver.begin_iteration(self._model)

    def _follow_optimizer(self, optimizer: Any) -> None:
        def wrap_step(original: Function) -> Function:
            def step(*args: Any, **kwargs: Any) -> Any:
                if self._is_over:  # since the last step: nobody has zeroed any gradients
                    self._zeroes = False
                result = original(*args, **kwargs)
                if optimizer.gradient_state.sync_gradients and self._counter.ends_with(optimizer):
                    self._is_over = True
                    if not self._zeroes:
                        self._end()
                return result

            return step

        self.patches.wrap(optimizer, "step", wrap_step)
        self.patches.wrap(optimizer, "zero_grad", self._wrap_zero_grad)

    def _wrap_zero_grad(self, original: Function) -> Function:
        def zero_grad(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self._is_over:
                self._zeroes = True
                self._end()
            return result

        return zero_grad

    def _end(self) -> None:
        self._is_over = False
        self.next_iteration(self._model)
