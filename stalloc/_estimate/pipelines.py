"""Stages of `torch.distributed.pipelining` that ask each other for the shapes they send.

A stage without example arguments gets the shapes of its inputs from the stage before, and those of
the gradients of its outputs from the one behind. The latter are the shapes of its outputs. The
former are known if the stage before has run already. Otherwise they are taken to be those that the
first stage sends, as in a model of equal blocks. If that stage is another rank's, the program runs
as that rank first, until it sends.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import torch

from stalloc._estimate.values import Unanswerable, Values, script_line
from stalloc._frameworks.patches import Patches
from stalloc._script import Enough


class AsksFirstStage(Unanswerable):
    """The shapes that the first stage sends are not known yet."""


@dataclass(slots=True)
class Shapes:
    """The shapes that stages of a pipeline send.

    Attributes:
        sent: The messages, by the number of the stage.
        awaited: A rank has asked for it: the program of the first one ends when it is sent.
    """

    sent: dict[int, Any] = field(default_factory=dict)
    awaited: bool = False


def patch(patches: Patches, values: Values, shapes: Shapes) -> None:
    """Answers what stages ask other ranks for."""
    try:
        stages: Any = importlib.import_module("torch.distributed.pipelining.stage")
    except ImportError:
        return
    kind: Any = getattr(stages, "PipelineStage", None)
    if not all(hasattr(kind, name) for name in ("_recv_meta", "_warmup_forward_vote")):
        return  # another version of torch

    def vote(stage: Any, has_backward: bool, received_acc: Any = None) -> Any:
        """The vote of a stage for all of them: whether each knows its shapes. On the host."""
        asks = stages.InferenceMode.needs_dynamic(stage._user_meta, has_backward)
        mine = torch.tensor([0 if asks else 1], dtype=torch.int32)
        stage._stalloc_vote = mine if received_acc is None else mine * received_acc
        return stage._stalloc_vote

    def voted(stage: Any, received_result: Any = None) -> Any:
        return stage._stalloc_vote if received_result is None else received_result

    def received(stage: Any, source: int) -> Any:
        if source > stage.stage_index:
            metas = stages._derive_grad_metas(stage._stage_meta.outputs)
            return stages._StageBackwardMeta(backward_metas=metas)
        if source in shapes.sent:
            return shapes.sent[source]
        if 0 not in shapes.sent:
            shapes.awaited = True
            raise AsksFirstStage(
                f"{script_line()}: stage {stage.stage_index} of a pipeline gets the shapes of its "
                "inputs from another rank; give its PipelineStage input_args and output_args"
            )
        values.note("the shapes that a stage gets", "those that the first one sends")
        return shapes.sent[0]

    def sent(stage: Any, meta: Any, target: int) -> None:
        if target > stage.stage_index:
            shapes.sent[stage.stage_index] = meta
        if stage.is_first and shapes.awaited:
            shapes.awaited = False
            raise Enough

    patches.replace(kind, "_warmup_forward_vote", vote)
    patches.replace(kind, "_warmup_backward_result", voted)
    patches.replace(kind, "_recv_meta", received)
    patches.replace(kind, "_send_meta", sent)
