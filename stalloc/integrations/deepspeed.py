"""DeepSpeed: one call profiles, plans and serves an engine's training.

    import stalloc.integrations.deepspeed

    engine, *_ = deepspeed.initialize(...)
    stalloc.integrations.deepspeed.install(engine)

An iteration ends with the `engine.step` in which the engine's count of steps rises, which is the
last of those that accumulate. The model's own hooks find microbatches, forward and backward. A
`PipelineEngine` trains with `train_batch`, which is an iteration, and runs the instructions of its
schedule from a map: its forwards are counted, and a backward is known by the buffer it works on.
Evaluation and checkpoints are unplanned.
"""

from __future__ import annotations

import os
from typing import Any

from stalloc._frameworks import installed
from stalloc._frameworks.callback import version
from stalloc._frameworks.installed import Integration
from stalloc._frameworks.patches import Function
from stalloc.driver import Driver
from stalloc.options import Options

__all__ = ["install", "uninstall"]

_UNPLANNED = ("save_checkpoint", "load_checkpoint", "save_16bit_model", "eval_batch")

uninstall = installed.uninstall


def install(
    engine: Any,
    mode: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Driver:
    """Follows an engine; once, if called again.

    Args:
        engine: The engine from `deepspeed.initialize`.
        mode: As for `stalloc.options.Options`.
        folder: As for `stalloc.options.Options`.
        **options: The other fields of `stalloc.options.Options`.

    Raises:
        ValueError: As for `stalloc.options.Options`.
    """
    if (driver := installed.installed(_Engine, engine)) is not None:
        return driver
    driver = Driver(
        Options(mode, folder, **options),
        parallelism=_parallelism(engine),
        framework=f"deepspeed {version('deepspeed')}",
    )
    return installed.install(_Engine(engine, driver))


class _Engine(Integration):
    """An engine, with or without a pipeline."""

    def __init__(self, engine: Any, driver: Driver) -> None:
        super().__init__(engine, driver)
        self._engine = engine
        self._forwards = 0
        self._in_buffer: dict[int, int] = {}  # number of the microbatch

    def follow(self) -> None:
        engine = self._engine
        for name in _UNPLANNED:
            self.patches.wrap(engine, name, self.unplanned)
        if hasattr(engine, "_INSTRUCTION_MAP"):
            self.patches.wrap(engine, "train_batch", self._wrap_train_batch)
            wrapped = {key: self._wrap(key, f) for key, f in engine._INSTRUCTION_MAP.items()}
            self.patches.replace(engine, "_INSTRUCTION_MAP", wrapped)
        else:
            self.patches.wrap(engine, "step", self._wrap_step)
            self.driver.begin_iteration(engine.module)

    def _wrap_step(self, original: Function) -> Function:
        def step(*args: Any, **kwargs: Any) -> Any:
            before = self._engine.global_steps
            with self.driver.optimizer():
                result = original(*args, **kwargs)
            if self._engine.global_steps != before:
                self.next_iteration(self._engine.module)
            return result

        return step

    def _wrap_train_batch(self, original: Function) -> Function:
        def train_batch(*args: Any, **kwargs: Any) -> Any:
            self._forwards = 0
            self._in_buffer.clear()
            with self.driver.iteration(self._engine.module):
                return original(*args, **kwargs)

        return train_batch

    def _wrap(self, instruction: type, original: Function) -> Function:
        """Wraps the function of a pipeline instruction; its first argument is the engine."""

        def forward(engine: Any, buffer_id: int) -> Any:
            number = self._in_buffer[buffer_id] = self._forwards
            self._forwards += 1
            with self.driver.forward(number):
                return original(engine, buffer_id)

        def backward(engine: Any, buffer_id: int) -> Any:
            with self.driver.backward(self._in_buffer.get(buffer_id, 0)):
                return original(engine, buffer_id)

        def step(*args: Any, **kwargs: Any) -> Any:
            with self.driver.optimizer():
                return original(*args, **kwargs)

        wrappers = {"ForwardPass": forward, "BackwardPass": backward, "OptimizerStep": step}
        return wrappers.get(instruction.__name__, original)


def _parallelism(engine: Any) -> dict[str, int]:
    return {
        "pp": int(getattr(engine, "num_stages", 1)),
        "dp": int(engine.dp_world_size),
        "zero": int(engine.zero_optimization_stage()),
        "mbs": int(engine.train_micro_batch_size_per_gpu()),
        "mb": int(engine.gradient_accumulation_steps()),
    }
