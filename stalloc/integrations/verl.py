"""verl: the trainer's worker and the engine take turns on one GPU.

    import stalloc.integrations.verl

    stalloc.integrations.verl.share(worker)  # in the worker's process
    stalloc.auto()

The engine works from `update_weights()`, which wakes it, to the next method that trains or computes
log-probabilities. With verl 0.6 it works from `rollout_mode()` to `trainer_mode()`.
"""

from __future__ import annotations

import functools
from typing import Any

from stalloc.integrations._turns import take_turns

__all__ = ["share"]


def share(worker: Any) -> None:
    """Makes the engine's turns phases "rollout". Called again, it does nothing.

    Args:
        worker: verl's ActorRolloutRefWorker.

    Raises:
        StallocError: The worker lacks these methods.
    """
    kind = "worker of verl that samples"
    if hasattr(worker, "trainer_mode"):
        begins, ends = ("rollout_mode",), ("trainer_mode",)
        take_turns(worker, begins=begins, ends=ends, wakes=True, kind=kind)
        return
    take_turns(
        worker,
        begins=("update_weights",),
        ends=("compute_log_prob", "compute_ref_log_prob", "update_actor"),
        wakes=True,
        kind=kind,
        trains=True,
        shares_device=functools.partial(_shares_device, worker),
    )


def _shares_device(
    worker: Any, global_steps: int | None = None, mode: str = "auto", **_: Any
) -> bool:
    """False if `update_weights()` sends the weights to an engine on other devices."""
    rollout = worker.config.rollout
    return bool((rollout.checkpoint_engine.backend if mode == "auto" else mode) == "naive")
