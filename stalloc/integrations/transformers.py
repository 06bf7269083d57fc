"""Hugging Face's Trainer: a callback profiles, plans and serves its training.

    from stalloc.integrations.transformers import StallocCallback

    trainer = Trainer(..., callbacks=[StallocCallback()])

An iteration is one step of the optimizer: it begins where the last one ended, so that the batches
that it fetches are part of it, and ends with `on_step_end`. The model's own hooks find
microbatches, forward and backward. Evaluation and checkpoints are unplanned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from stalloc._frameworks.callback import Callback, derive


class _Events(Callback):
    __doc__ = Callback.__doc__

    _package = "transformers"
    _pauses_after_log = False

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: nn.Module | None = None, **_: object
    ) -> None:
        """Training begins."""
        self._start(state, _parallelism(args), model)
        if getattr(args, "eval_on_start", False):
            self._pause()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: object) -> None:
        """The batches of an optimizer's step are there."""
        self._scopes.close()

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: nn.Module | None = None, **_: object
    ) -> None:
        """The optimizer has stepped; `control` has the Trainer's next actions by now."""
        self._next_iteration(model)
        self._pause_if_it_evaluates(control)

    def on_log(self, args: Any, state: Any, control: Any, **_: object) -> None:
        """The step's figures have been logged; an evaluation comes next."""
        if self._pauses_after_log:
            self._pauses_after_log = False
            self._pause()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: object) -> None:
        """An epoch is over."""
        self._pause_if_it_evaluates(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: object) -> None:
        """An evaluation is over. The strategy "best" decides only now whether it saves."""
        if not control.should_save and args.save_strategy != "best":
            self._scopes.close()

    def on_save(self, args: Any, state: Any, control: Any, **_: object) -> None:
        """A checkpoint has been written."""
        self._scopes.close()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: object) -> None:
        """Training is over."""
        self.finish()

    def _pause_if_it_evaluates(self, control: Any) -> None:
        """Logging recurs, so it is not part of the pause."""
        pauses = control.should_evaluate or control.should_save
        self._pauses_after_log = pauses and control.should_log
        if pauses and not control.should_log:
            self._pause()


def _parallelism(args: Any) -> dict[str, int]:
    return {
        "dp": args.world_size,
        "mbs": args.per_device_train_batch_size,
        "mb": args.gradient_accumulation_steps,
    }


if TYPE_CHECKING:

    class StallocCallback(_Events):
        """See the module."""


def __getattr__(name: str) -> Any:
    if name != "StallocCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transformers import TrainerCallback

    return derive(_Events, TrainerCallback)
