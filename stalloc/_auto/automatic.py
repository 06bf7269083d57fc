"""The result of `stalloc.auto`: it follows the training loop, and begins and ends the stages.

An iteration ends at the first training forward after the optimizer's step, or after
`stalloc.step()`. Without any optimizer it ends at the first forward after a backward pass. Hooks of
its own report this.

An error ends it with a warning, and training goes on under torch. Ctrl-C in the middle of a change
ends it, too. In a forked child it does nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from stalloc import _adapters, _automatic
from stalloc._auto.cache import PlanCache, cache_folder
from stalloc._auto.cycle import Cycle
from stalloc._auto.ends import IterationEnds
from stalloc._auto.forward import Forward
from stalloc._auto.journal import Journal
from stalloc._auto.settings import SWITCH, AutoOptions
from stalloc._auto.status import AutoStatus, Stage
from stalloc._auto.together import Together
from stalloc._hooks import optimizers
from stalloc.errors import StallocWarning
from stalloc.hooks import TrainingHooks


class Auto:
    """The result of `stalloc.auto`, and a context manager that ends it."""

    def __init__(
        self,
        model: torch.nn.Module | None,
        device: torch.device,
        options: AutoOptions,
        on: bool = True,
    ) -> None:
        cache = cache_folder()
        self._journal = Journal("" if on else f"switched off by {SWITCH}=0", Together(cache))
        self._process = os.getpid()
        self._worker: int | None = None  # the thread that makes a call
        self._ends = IterationEnds(self._on_phase)
        self._begun = False  # a training forward was seen
        self._awaits_step: bool | None = None  # there is an optimizer; None: unknown
        self._cycle: Cycle | None = None
        self._hooks = TrainingHooks(
            self._ends,
            model,
            on_forward=self._on_forward,
            guesses_ends=True,
        )
        self._hooks.follow_any_thread()
        if on:
            self._begin(model, device, options, PlanCache(cache) if cache is not None else None)

    def __enter__(self) -> Auto:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def enabled(self) -> bool:
        """True until it has ended. In a forked child it has."""
        return self._cycle is not None and self._process == os.getpid()

    def status(self) -> AutoStatus:
        """Its state."""
        if self._cycle is None or not self.enabled:
            return self._journal.copy(Stage.OFF)
        return self._journal.copy(self._cycle.stage)

    def stop(self, *, silently: bool = False) -> None:
        """Ends it, and a plan that it has put in force. May be repeated.

        Args:
            silently: Leave out the line about the run.
        """
        if self._cycle is None or not self.enabled:
            return
        self._journal.ends(self._cycle.stage, has_begun=self._begun)
        with self._working():
            self._end()
        if not silently:
            self._journal.tell_end()

    # For the explicit calls

    @property
    def at_work(self) -> bool:
        """True inside of a call that this object makes; not for users."""
        return self._worker == threading.get_ident()

    def stepped(self) -> None:
        """The user called `stalloc.step()`; not for users."""
        if self._cycle is None or not self.enabled:
            return
        self._hooks.end_iteration()
        with self._guarded(), self._working():
            self._cycle.iteration_ends()

    def give_way(self, reason: str) -> None:
        """An explicit call takes over; not for users."""
        # The reason why it rests tells more.
        if self._cycle is not None and self._cycle.stage is not Stage.RESTING:
            self._journal.status["reason"] = reason
        self.stop()

    # Parts

    def _begin(
        self,
        model: torch.nn.Module | None,
        device: torch.device,
        options: AutoOptions,
        cache: PlanCache | None,
    ) -> None:
        self._journal.begins()
        adapter = _adapters.adapter(device)
        self._hooks.attach()
        _automatic.current = self
        try:
            with self._working():
                self._cycle = Cycle(model, device, adapter, options, self._journal, cache)
        except BaseException:
            with self._working():
                self._end()
            raise
        atexit.register(self.stop)

    def _on_forward(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        ended = self._ended()
        begins, self._begun = ended > 0 or not self._begun, True
        if not begins or self._cycle is None or not self.enabled:
            return
        self._journal.count(ended, served=self._cycle.serves)
        with self._guarded(), self._working():
            self._cycle.iteration_begins(Forward(module, args, kwargs))

    def _on_phase(self) -> None:
        if self._cycle is None or not self.enabled:
            return
        with self._guarded(), self._working():
            self._cycle.phase_begins()

    def _ended(self) -> int:
        """The number of iterations that have ended since the last forward."""
        ended = self._ends.take()
        if ended == 0 or not self._hooks.guesses_ends:
            return ended
        # With an optimizer, these are microbatches before its first step.
        if self._awaits_step is None:
            self._awaits_step = optimizers.any_exists()
        return 0 if self._awaits_step else ended

    def _end(self) -> None:
        atexit.unregister(self.stop)
        self._hooks.detach()
        if self._cycle is not None:
            self._cycle.end()
        self._cycle = None
        if _automatic.current is self:
            _automatic.current = None

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        before, self._worker = self._worker, threading.get_ident()
        try:
            yield
        finally:
            self._worker = before

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            with self._working():
                self._end()
            if not isinstance(error, Exception):  # Ctrl-C in the middle of a change
                raise
            reason = self._journal.status["reason"] = " ".join(str(error).split())
            warnings.warn(
                f"stalloc.auto ends, and training goes on under torch: {reason}",
                StallocWarning,
                stacklevel=2,
            )
