"""verl: the trainer's worker and the engine take turns on one GPU.

    import stalloc.integrations.verl

    stalloc.integrations.verl.share(worker)  # in the worker's process
    stalloc.auto()

The engine works from `rollout_mode()`, which wakes it, to `trainer_mode()`.
"""

from __future__ import annotations

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
    take_turns(
        worker,
        begins=("rollout_mode",),
        ends=("trainer_mode",),
        wakes=True,
        kind="worker of verl that samples",
    )
