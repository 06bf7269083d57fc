"""NeMo-RL: the trainer's worker and the engine take turns on one GPU.

    import stalloc.integrations.nemo_rl

    stalloc.integrations.nemo_rl.share(worker)  # in the worker's process
    stalloc.auto()

The engine works from `offload_before_refit()` or `offload_after_refit()` to
`prepare_for_training()` or `prepare_for_lp_inference()`.
"""

from __future__ import annotations

from typing import Any

from stalloc.integrations._turns import take_turns

__all__ = ["share"]


def share(worker: Any) -> None:
    """Makes the engine's turns phases "rollout". Called again, it does nothing.

    Args:
        worker: NeMo-RL's policy worker.

    Raises:
        StallocError: The worker lacks these methods.
    """
    take_turns(
        worker,
        begins=(
            "offload_before_refit",
            "offload_after_refit",
        ),
        ends=(
            "prepare_for_training",
            "prepare_for_lp_inference",
        ),
        wakes=False,
        kind="policy worker of NeMo-RL",
    )
