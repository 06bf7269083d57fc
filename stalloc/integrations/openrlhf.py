"""OpenRLHF: the trainer's worker and the engine take turns on one GPU.

    import stalloc.integrations.openrlhf

    stalloc.integrations.openrlhf.share(worker)  # in the worker's process
    stalloc.auto()

The engine works from `offload_states()` to `reload_states()`, with which `--deepspeed_enable_sleep`
makes room for it.
"""

from __future__ import annotations

from typing import Any

from stalloc.integrations._turns import take_turns

__all__ = ["share"]


def share(worker: Any) -> None:
    """Makes the engine's turns phases "rollout". Called again, it does nothing.

    Args:
        worker: OpenRLHF's PolicyModelActor, or a critic's.

    Raises:
        StallocError: The worker lacks these methods.
    """
    take_turns(
        worker,
        begins=("offload_states",),
        ends=("reload_states",),
        wakes=False,
        kind="worker of OpenRLHF that sleeps",
    )
