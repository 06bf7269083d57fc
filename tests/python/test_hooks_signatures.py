"""Signatures of models and inputs: what they tell apart, and what they don't."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any

import pytest
import torch
import torch.distributed as dist
from isolation import isolated
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from stalloc.hooks import input_signature, model_signature

_distributed: Any = dist


@dataclasses.dataclass
class Batch:
    tokens: torch.Tensor
    length: int


def loop() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((), {}, "()"),
        ((torch.ones(2, 3),), {}, "(float32[2,3])"),
        ((torch.tensor(1), 3, "text", None), {}, "(int64[], _, _, _)"),
        ((), {"b": torch.ones(1), "a": 1}, "(a=_, b=float32[1])"),
        (([torch.ones(1), (torch.ones(2),)],), {}, "((float32[1], (float32[2])))"),
        ((OrderedDict(y=torch.ones(1), x=0),), {}, "({x: _, y: float32[1]})"),
        ((Batch(torch.ones(4, dtype=torch.int32), 4),), {}, "({tokens: int32[4], length: _})"),
        ((Batch,), {}, "(_)"),
        ((nn.UninitializedParameter(),), {}, "(float32[?])"),
        ((loop(),), {}, "(((((((((_)))))))))"),
    ],
)
def test_describes_inputs(args: tuple[Any, ...], kwargs: dict[str, Any], expected: str) -> None:
    assert input_signature(args, kwargs) == expected


def test_nested_tensors_have_no_shape_to_tell() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert input_signature((nested,), {}) == "(float32[?])"


def test_a_model_is_named_by_class_and_size() -> None:
    model = nn.Sequential(nn.Linear(1000, 1000), nn.BatchNorm1d(7))
    text = model_signature(model)
    assert text.startswith("Sequential, 1.0M parameters in 4 tensors, 3 buffers, ")
    assert model_signature(nn.Linear(10, 10)).startswith("Linear, 110 parameters in 2 tensors, 0")


def test_a_model_of_the_same_make_has_the_same_signature() -> None:
    assert model_signature(nn.Linear(3, 4)) == model_signature(nn.Linear(3, 4))


def hash_of(model: nn.Module) -> str:
    return model_signature(model).rpartition(" ")[2]


def test_a_model_of_another_make_has_another() -> None:
    frozen = nn.Linear(3, 4)
    frozen.weight.requires_grad_(False)
    renamed = nn.Sequential(nn.Linear(3, 4))
    models = [
        nn.Linear(3, 4),
        nn.Linear(4, 3),
        nn.Linear(3, 4).half(),
        nn.Linear(3, 4, bias=False),
        frozen,
        renamed,
    ]
    assert len({hash_of(model) for model in models}) == len(models)


def test_a_lazy_model_has_a_signature_before_it_has_shapes() -> None:
    model = nn.LazyLinear(3)
    assert model_signature(model).startswith("LazyLinear, 0 parameters in 2 tensors")


@isolated
def test_a_model_of_fsdp2_is_the_same_while_its_root_is_gathered() -> None:
    _distributed.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    sharded = fully_shard(model, mesh=init_device_mesh("cpu", (1,)), mp_policy=policy)
    signature = model_signature(sharded)
    with torch.no_grad():
        sharded(torch.ones(1, 8))
    assert next(sharded.parameters()).dtype == torch.bfloat16
    assert model_signature(sharded) == signature
    sharded[0].requires_grad_(False)
    assert model_signature(sharded) != signature
    _distributed.destroy_process_group()
