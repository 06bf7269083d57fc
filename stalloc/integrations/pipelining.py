"""torch.distributed.pipelining: one call profiles, plans and serves a pipeline.

    import stalloc.integrations.pipelining

    schedule = ScheduleInterleaved1F1B(stages, n_microbatches, loss_fn)
    stalloc.integrations.pipelining.install(schedule)

Any schedule, of one stage a rank or several. An iteration begins with the first `schedule.step`
after the optimizer has stepped; further ones before the next step accumulate gradients.
`schedule.eval` is unplanned.
"""

from __future__ import annotations

import os
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from stalloc._frameworks import installed
from stalloc._frameworks.callback import version
from stalloc._frameworks.installed import Integration
from stalloc._frameworks.patches import Function
from stalloc._frameworks.stages import Stages, chunks_of
from stalloc.driver import Driver
from stalloc.options import Options
from stalloc.ranks import world_size

__all__ = ["install", "uninstall"]

uninstall = installed.uninstall


def install(
    schedule: Any,
    mode: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Driver:
    """Follows a schedule; once, if called again.

    Args:
        schedule: A schedule of torch.distributed.pipelining.
        mode: As for `stalloc.options.Options`.
        folder: As for `stalloc.options.Options`.
        **options: The other fields of `stalloc.options.Options`.

    Raises:
        ValueError: As for `stalloc.options.Options`.
    """
    if (driver := installed.installed(_Pipeline, schedule)) is not None:
        return driver
    chunks = len(chunks_of(schedule))
    parallelism = {"world": world_size(), "vp": chunks, "mb": int(schedule._n_microbatches)}
    driver = Driver(
        Options(mode, folder, **options),
        parallelism=parallelism,
        framework=f"torch {version('torch')}",
    )
    return installed.install(_Pipeline(schedule, driver))


class _Pipeline(Integration):
    """A loop that steps a schedule."""

    def __init__(self, schedule: Any, driver: Driver) -> None:
        super().__init__(schedule, driver)
        self._schedule = schedule
        self._stages = Stages(driver, self.patches)
        self._stepped = False
        self._handle: RemovableHandle | None = None

    def follow(self) -> None:
        self._stages.follow(self._schedule)
        self.patches.wrap(self._schedule, "eval", self.unplanned)
        self.patches.wrap(self._schedule, "step", self._wrap_step)
        self._handle = register_optimizer_step_post_hook(self._optimizer_stepped)

    def uninstall(self) -> None:
        if self._handle is not None:
            self._handle.remove()
        super().uninstall()

    def _wrap_step(self, original: Function) -> Function:
        def step(*args: Any, **kwargs: Any) -> Any:
            if not self.evaluations:
                continues = self.driver.in_iteration and not self._stepped
                self._stages.begin(self._schedule, continues)
                if not continues:
                    self._stepped = False
                    self.next_iteration(chunks_of(self._schedule))
            return original(*args, **kwargs)

        return step

    def _optimizer_stepped(self, *_: object) -> None:
        self._stepped = True
