"""SkyRL: the trainer's worker and the engine take turns on one GPU.

    import stalloc.integrations.skyrl

    stalloc.integrations.skyrl.share(worker)  # in the worker's process
    stalloc.auto()

The engine works from `offload_to_cpu()` to `backload_to_gpu()`, with which colocated workers make
room for it.
"""

from __future__ import annotations

from typing import Any

from stalloc.integrations._turns import take_turns

__all__ = ["share"]


def share(worker: Any) -> None:
    """Makes the engine's turns phases "rollout". Called again, it does nothing.

    Args:
        worker: SkyRL's policy worker, or another one of its workers.

    Raises:
        StallocError: The worker lacks these methods.
    """
    take_turns(
        worker,
        begins=("offload_to_cpu",),
        ends=("backload_to_gpu",),
        wakes=False,
        kind="worker of SkyRL",
    )
