"""Lightning's Trainer: a callback profiles, plans and serves its training.

    from stalloc.integrations.lightning import StallocCallback

    trainer = Trainer(..., callbacks=[StallocCallback()])

A batch is a microbatch. Its forward lasts from `on_train_batch_start` to the backward, whether
`training_step` calls the module itself or others in it, and its extents are those of the batch. The
iteration ends with the batch in which the optimizer has stepped, and the next one begins there,
before its batches are fetched. With manual optimization it is the same. Validation and checkpoints
are unplanned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from stalloc._frameworks.callback import Callback, derive
from stalloc._frameworks.patches import Patches


class _Events(Callback):
    __doc__ = Callback.__doc__

    _package = "lightning"
    _microbatch = 0
    _steps = 0

    @functools.cached_property
    def _patches(self) -> Patches:
        return Patches()

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Training begins."""
        self._microbatch = 0
        self._steps = trainer.global_step
        if self._start(trainer, _parallelism(trainer), pl_module):
            self._patches.wrap(trainer, "save_checkpoint", self._unplanned)

    def on_train_batch_start(
        self, trainer: Any, pl_module: nn.Module, batch: Any, batch_idx: int
    ) -> None:
        """A microbatch is there."""
        self._scopes.close()
        self._scopes.enter_context(self._driver.forward(self._microbatch))
        self._driver.tell_inputs(batch=batch)

    def on_before_backward(self, trainer: Any, pl_module: nn.Module, loss: Any) -> None:
        """Its loss is there."""
        self._scopes.close()
        self._scopes.enter_context(self._driver.backward(self._microbatch))

    def on_after_backward(self, trainer: Any, pl_module: nn.Module) -> None:
        """Its gradients are there."""
        self._scopes.close()

    def on_train_batch_end(
        self, trainer: Any, pl_module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """It is over, and the iteration with it if the optimizer has stepped."""
        self._scopes.close()
        self._microbatch += 1
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            self._microbatch = 0
            self._next_iteration(pl_module)

    def on_validation_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Validation begins."""
        self._pause()

    def on_validation_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Validation is over."""
        self._scopes.close()

    def on_train_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Training is over."""
        self.finish()

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:
        """Training has failed, or was interrupted."""
        self.finish()

    def finish(self) -> None:
        """Ends the profile or plan now; the run goes on. The end of a run does the same."""
        self._patches.undo()
        super().finish()

    def _unplanned(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def save_checkpoint(*args: Any, **kwargs: Any) -> Any:
            with self._driver.evaluation():
                return original(*args, **kwargs)

        return save_checkpoint


def _parallelism(trainer: Any) -> dict[str, int]:
    parallelism = {"dp": trainer.world_size, "mb": trainer.accumulate_grad_batches}
    size = getattr(trainer.train_dataloader, "batch_size", None)
    return {**parallelism, "mbs": size} if isinstance(size, int) else parallelism


if TYPE_CHECKING:

    class StallocCallback(_Events):
        """See the module."""


def __getattr__(name: str) -> Any:
    if name != "StallocCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from lightning.pytorch import Callback as Base
    except ImportError:
        # The same code is also distributed under its former name.
        from pytorch_lightning import Callback as Base

    return derive(_Events, Base)
