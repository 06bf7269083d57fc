"""TRL's GRPO: the trainer and the engine that samples take turns on one GPU.

    import stalloc
    import stalloc.integrations.trl

    trainer = GRPOTrainer(...)
    stalloc.integrations.trl.share(trainer)
    stalloc.auto()
    trainer.train()

TRL puts vLLM to sleep by itself (`vllm_enable_sleep_mode=True`). Without vLLM, or with a server of
it, the pool stays: the model generates in this process, where the plan serves it, or elsewhere.
"""

from __future__ import annotations

import functools
from typing import Any

from stalloc.errors import StallocError
from stalloc.phases import phase

__all__ = ["share"]


def share(trainer: Any, engine: Any = None) -> None:
    """Makes each generation of samples a phase "rollout". Called again, it does nothing.

    The pool goes for it if vLLM has memory of its own on this device, or an engine is given.

    Args:
        trainer: TRL's GRPOTrainer.
        engine: An engine that TRL does not put to sleep itself, as for `stalloc.phase`.

    Raises:
        StallocError: The trainer generates no samples.
        TypeError: The engine is of no known kind.
    """
    generate = getattr(trainer, "_generate", None)
    if not callable(generate):
        raise StallocError(
            f"{type(trainer).__name__} generates no samples as TRL's GRPOTrainer does; use "
            "stalloc.phase('rollout') around the call that does"
        )
    if hasattr(generate, "__stalloc__"):
        return
    is_alone = engine is None and not _has_vllm_beside(trainer)
    rollout = phase("rollout", engine=engine, lends=is_alone)

    @functools.wraps(generate)
    def generate_in_phase(*args: Any, **kwargs: Any) -> Any:
        with rollout:
            return generate(*args, **kwargs)

    generate_in_phase.__stalloc__ = True  # type: ignore[attr-defined]
    trainer._generate = generate_in_phase


def _has_vllm_beside(trainer: Any) -> bool:
    return bool(getattr(trainer, "use_vllm", False)) and trainer.vllm_mode == "colocate"
