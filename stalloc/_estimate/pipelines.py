"""Stages of `torch.distributed.pipelining` that ask each other for the shapes they send.

A stage without example arguments gets the shapes of its inputs from the stage before, and those of
the gradients of its outputs from the one behind. The latter are the shapes of its outputs. The
former are known if the stage before has run already. Otherwise they are taken to be those that the
first stage sends, as in a model of equal blocks. If that stage is another rank's, the program runs
as that rank first, until it sends.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from stalloc._estimate.values import Unanswerable, Values, script_line
from stalloc._frameworks.patches import Patches
from stalloc._script import Enough


class AsksFirstStage(Unanswerable):
    """The shapes that the first stage sends are not known yet."""


@dataclass
class Shapes:
    """The shapes that stages of a pipeline send.

    Attributes:
        sent: The messages, by the number of the stage.
        awaited: A rank has asked for it: the program of the first one ends when it is sent.
    """

    sent: dict[int, Any] = field(default_factory=dict)
    awaited: bool = False
    complete: ClassVar[bool] = False
    """True if all that will ever be sent is known once it has been asked for."""

    def of(self, stage: int) -> Any:
        """The shapes that a stage sends; None if they are not known."""
        return self.sent.get(stage)

    def tell(self, stage: int, shapes: Any) -> None:
        """A stage sends its shapes."""
        self.sent[stage] = shapes


def patch(patches: Patches, values: Values, shapes: Shapes, met: Callable[[int], None]) -> None:
    """Answers what stages ask other ranks for; `met` is called with the rank of a neighbour."""
    try:
        stages: Any = importlib.import_module("torch.distributed.pipelining.stage")
    except ImportError:
        return
    kind: Any = getattr(stages, "PipelineStage", None)
    asked = ("_recv_meta", "_warmup_forward_vote", "_resolve_peer_global_rank")
    if not all(hasattr(kind, name) for name in asked):
        return  # another version of torch

    def vote(stage: Any, has_backward: bool, received_acc: Any = None) -> Any:
        """The vote of a stage for all of them: whether each knows its shapes. On the host."""
        asks = stages.InferenceMode.needs_dynamic(stage._user_meta, has_backward)
        mine = torch.tensor([0 if asks else 1], dtype=torch.int32)
        stage._stalloc_vote = mine if received_acc is None else mine * received_acc
        return stage._stalloc_vote

    def voted(stage: Any, received_result: Any = None) -> Any:
        return stage._stalloc_vote if received_result is None else received_result

    def meet(stage: Any, other: int) -> None:
        met(stage._resolve_peer_global_rank(other))

    def received(stage: Any, source: int) -> Any:
        if source > stage.stage_index:
            metas = stages._derive_grad_metas(stage._stage_meta.outputs)
            return stages._StageBackwardMeta(backward_metas=metas)
        meet(stage, source)
        known = shapes.of(source)
        if known is not None:
            return known
        if 0 not in shapes.sent and shapes.of(0) is None:
            shapes.awaited = True
            raise (Unanswerable if shapes.complete else AsksFirstStage)(
                f"{script_line()}: stage {stage.stage_index} of a pipeline gets the shapes of its "
                "inputs from another rank; give its PipelineStage input_args and output_args"
            )
        values.note("the shapes that a stage gets", "those that the first one sends")
        return shapes.sent[0]

    def sent(stage: Any, meta: Any, target: int) -> None:
        if target > stage.stage_index:
            meet(stage, target)
            shapes.tell(stage.stage_index, meta)
        if stage.is_first and shapes.awaited:
            shapes.awaited = False
            raise Enough

    patches.replace(kind, "_warmup_forward_vote", vote)
    patches.replace(kind, "_warmup_backward_result", voted)
    patches.replace(kind, "_recv_meta", received)
    patches.replace(kind, "_send_meta", sent)
