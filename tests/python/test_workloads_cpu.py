"""The layers of the evaluation's workloads request on the meta device what real kernels do."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from isolation import isolated
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "workloads"))

import legacy
from configs import Config, Parallelism
from models import LLAMA2_7B, QWEN15_MOE, Experts, Implementation, Model
from stage import Stage

import stalloc

SCALAR = 64
"""Bytes: the CPU's operators put numbers into tensors, which a GPU's read from the host."""

_SIZES = {"layers": 2, "hidden": 128, "heads": 4, "kv_heads": 4, "ffn": 352, "sequence": 64}
MODELS = {
    "dense": replace(LLAMA2_7B, vocabulary=1000, **_SIZES),
    "experts": replace(QWEN15_MOE, vocabulary=1000, experts=Experts(8, 2, 64, 128), **_SIZES),
}
MODELS["legacy"] = replace(MODELS["dense"], implementation=Implementation.LEGACY)
MODELS["engine"] = replace(MODELS["experts"], implementation=Implementation.ENGINE)


def requests(config: Config, device: str) -> tuple[list[int], list[int]]:
    """Sizes of what a forward and its backward request, in 32-bit: the CPU repacks 16-bit ones."""
    model, parallelism = config.model, config.parallelism
    stage = Stage(config).to_empty(device=device).float()
    angles = torch.zeros(stage.shared.angles.shape, device=device)
    for chunk in stage.chunks:
        for layer in chunk.layers:
            layer.angles = angles
    shape = (parallelism.microbatch, model.sequence)
    tokens = torch.zeros(shape, dtype=torch.int64, device=device)
    rows = model.sequence // parallelism.tensor
    received = torch.zeros(rows, parallelism.microbatch, model.hidden, device=device)
    x = received.requires_grad_() if config.last else tokens
    with stalloc.profile(device=device, layers=False) as prof:
        y = stage(0, x, tokens if config.last else None)
    forward = prof.trace.requests.size.tolist()
    grad = torch.ones_like(y)
    with stalloc.profile(device=device, layers=False) as prof:
        torch.autograd.backward(y, grad)
    backward = prof.trace.requests.size.tolist()
    return [n for n in forward if n > SCALAR], [n for n in backward if n > SCALAR]


def initialised(like: Tensor, *shape: int | tuple[int, ...], **options: torch.dtype) -> Tensor:
    return like.new_zeros(*shape, **options)


@pytest.mark.parametrize(("last", "optimizations"), [(False, "n"), (True, "r")])
@pytest.mark.parametrize("model", MODELS)
@isolated
def test_layers_request_on_meta_what_they_do_on_the_cpu(
    model: str, last: bool, optimizations: str
) -> None:
    chosen: Model = MODELS[model]
    parallelism = Parallelism(2, 2, 1, 2, 2, expert=2)
    config = Config(chosen, parallelism, optimizations, last)
    # Indices that nothing computes must be in range.
    with pytest.MonkeyPatch.context() as patch:
        # Dropout is a GPU's on the meta device, which test_meta.py tests.
        patch.setattr(legacy, "DROPOUT", 0.0)
        meta = requests(config, "meta")
        patch.setattr(Tensor, "new_empty", initialised)
        cpu = requests(config, "cpu")
    tokens = chosen.sequence // parallelism.tensor * parallelism.microbatch
    activation = 4 * tokens * chosen.hidden
    probabilities = converted = 0
    if chosen.experts:
        probabilities = 4 * tokens * chosen.experts.count
        # The CPU's sum converts the routing map from bool first, a GPU's does it on the way.
        converted = 8 * tokens * chosen.experts.count
    forward, backward = ([n for n in part if n != converted] for part in cpu)
    assert [n for n in meta[0] if n != converted] == forward
    assert not Counter(backward) - Counter(meta[1])
    # Autograd adds two gradients in place, but not on the meta device.
    sums = Counter(meta[1]) - Counter(backward)
    assert set(sums) <= {activation, 2 * activation, probabilities, converted}
