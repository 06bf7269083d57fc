"""The call of the model that begins an iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from stalloc.hooks import TrainingHooks, input_signature


@dataclass(frozen=True, slots=True)
class Forward:
    """A training forward whose hooks are running.

    Attributes:
        module: The root.
        args: Its arguments.
        kwargs: Its keyword arguments.
    """

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def inputs(self) -> str:
        """Shapes and types of the arguments."""
        return input_signature(self.args, self.kwargs)

    def tell(self, hooks: TrainingHooks) -> None:
        """Lets hooks take part that were attached after the call began."""
        hooks.join_forward(self.module, self.args, self.kwargs)
