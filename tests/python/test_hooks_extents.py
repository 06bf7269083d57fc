"""The extents of a microbatch: what the hooks read of a model's inputs, and what a trace keeps."""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict, UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from phase_sinks import RecordingSink
from test_trace import SCHEMAS
from torch import Tensor, nn

import stalloc
from stalloc import hooks
from stalloc._hooks.extents import ExtentReader
from stalloc.hooks import TrainingHooks
from stalloc.trace import Trace


@dataclasses.dataclass
class Packed:
    lengths: Tensor
    longest: int


class Batch:
    """Behaves like a mapping and does not derive from one."""

    def keys(self) -> list[str]:
        return ["x", "edges"]

    def __getitem__(self, key: str) -> Tensor:
        return torch.ones(7, 3) if key == "x" else torch.ones(2, 11)

    def __repr__(self) -> str:  # the test's name, the same in every process that runs it
        return "Batch()"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Any = None) -> Tensor:
        total: Tensor = self.inner(x).sum()
        return total


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def read(*args: Any, module: nn.Module | None = None, **kwargs: Any) -> dict[str, int]:
    names, values = ExtentReader().read(Net() if module is None else module, args, kwargs)
    return dict(zip(names, values, strict=True))


X = torch.ones(2, 4)
OF_X = {"x.0": 2, "x.1": 4}


@pytest.mark.parametrize(
    ("value", "extents"),
    [
        (torch.ones(3), {"mask.0": 3}),
        (torch.ones(()), {}),
        (5, {"mask": 5}),
        (True, {}),
        (-1, {}),
        (2.5, {}),
        ("text", {}),
        (Net(), {}),
        ([torch.ones(3), (torch.ones(2), 6)], {"mask.0.0": 3, "mask.1.0.0": 2, "mask.1.1": 6}),
        ([torch.ones(3)] * 9, {"mask.len": 9}),
        ({"a": torch.ones(3)}, {"mask.a.0": 3}),
        (OrderedDict(a=torch.ones(3)), {"mask.a.0": 3}),
        (UserDict(a=torch.ones(3)), {"mask.a.0": 3}),
        (Batch(), {"mask.x.0": 7, "mask.x.1": 3, "mask.edges.0": 2, "mask.edges.1": 11}),
        (Packed(torch.ones(3), 2), {"mask.lengths.0": 3, "mask.longest": 2}),
        (nn.parameter.UninitializedParameter(), {}),
    ],
    ids=str,
)  # fmt: skip
def test_inputs_of_every_kind_are_named_by_path(value: Any, extents: dict[str, int]) -> None:
    assert read(X, value) == OF_X | extents
    assert read(X, mask=value) == OF_X | extents


class Experts(nn.ModuleList):
    """A module that is false, since it has no modules."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_a_wrapper_has_the_inputs_of_what_it_wraps() -> None:
    for module in (Wrapper(Net()), Wrapper(torch.compile(Net())), torch.compile(Wrapper(Net()))):
        assert read(X, module=module) == OF_X
    assert read(X, module=Wrapper(Experts())) == OF_X


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_has_no_extents() -> None:
    assert read(X, torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])) == OF_X


def test_a_wrapped_module_names_its_inputs_as_without_the_wrapper() -> None:
    assert read(X, module=Wrapper(Wrapper(Net()))) == OF_X
    assert read(X, module=Wrapper(nn.Identity())) == {"input.0": 2, "input.1": 4}


def test_inputs_without_a_name_go_by_their_position() -> None:
    class Any_(nn.Module):
        def forward(self, *args: Any) -> Any:
            return args

    assert read(X, 3, module=Any_()) == {"0.0": 2, "0.1": 4, "1": 3}


def test_a_container_that_raises_or_contains_itself_ends_the_reading_of_it_alone() -> None:
    class Broken(UserDict[str, Tensor]):
        def __getitem__(self, key: str) -> Tensor:
            raise KeyError(key)

    endless: list[Any] = []
    endless += [endless, endless]
    assert read(Broken(a=X), X) == {"mask.0": 2, "mask.1": 4}
    assert read(X, endless) == OF_X


def test_the_number_of_extents_is_bounded() -> None:
    many = {str(i): torch.ones(2, 3) for i in range(100)}
    assert len(read(many)) == 32


def heard(sink: RecordingSink, loop: Callable[[nn.Module], None]) -> list[dict[str, int]]:
    model = Net()
    with TrainingHooks(sink, model):
        loop(model)
    return sink.extents


def batch(rows: int) -> Tensor:
    return torch.ones(rows, 4)


def of(rows: int) -> dict[str, int]:
    return {"x.0": rows, "x.1": 4}


def test_every_training_forward_tells_its_extents_and_no_other(sink: RecordingSink) -> None:
    def loop(model: nn.Module) -> None:
        model(batch(1)).backward()
        with torch.no_grad():
            model(batch(9))
        with hooks.unplanned():
            model(batch(8))
        model(batch(2)).backward()
        model(batch(3))

    assert heard(sink, loop) == [of(1), of(2), of(3)]


def test_the_first_forward_in_an_explicit_phase_tells_its_extents(sink: RecordingSink) -> None:
    def loop(model: nn.Module) -> None:
        for microbatch in range(2):
            with hooks.phase("forward", microbatch):
                model(batch(1 + microbatch))
                model(batch(9))
        with hooks.phase("other"):
            model(batch(8))

    assert heard(sink, loop) == [of(1), of(2)]


def test_a_root_that_is_found_tells_the_extents_of_its_first_call(sink: RecordingSink) -> None:
    with TrainingHooks(sink):
        Net()(batch(3)).backward()
    assert sink.extents == [of(3)]


def recorded() -> Trace:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters())
    with stalloc.profile(model) as profile:
        for i in range(3):
            for rows in (i + 1, 2 * i + 1):
                model(batch(rows), **({"mask": batch(5)} if i == 1 else {})).backward()
            optimizer.step()
            optimizer.zero_grad()
            profile.step()
    return profile.trace


def test_a_trace_has_a_row_for_each_forward() -> None:
    trace = recorded()
    assert trace.extent_names == ["x.0", "x.1", "mask.0", "mask.1"]
    names = [trace.phases.name(row) for row in trace.extents.phase]
    assert names == ["forward 0", "forward 1"] * 3
    assert trace.extents.values.tolist() == [
        [1, 4, -1, -1],
        [1, 4, -1, -1],
        [2, 4, 5, 4],
        [3, 4, 5, 4],
        [3, 4, -1, -1],
        [5, 4, -1, -1],
    ]


def test_a_saved_trace_keeps_its_extents(tmp_path: Path) -> None:
    trace = recorded()
    trace.save(tmp_path / "trace.json")
    again = Trace.load(tmp_path / "trace.json")
    assert again.extent_names == trace.extent_names
    assert again.extents.values.tolist() == trace.extents.values.tolist()
    assert again.extents.phase.tolist() == trace.extents.phase.tolist()
    assert again.fingerprint == trace.fingerprint
    schema = json.loads((SCHEMAS / "trace.schema.json").read_text())
    document = json.loads((tmp_path / "trace.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(document)


def test_inputs_that_are_told_are_the_extents_of_the_open_forward() -> None:
    model, sink = Net(), RecordingSink()
    with TrainingHooks(sink, model):
        hooks.tell_inputs(batch=X)  # no forward is open
        for _ in range(2):
            with hooks.phase("forward", 0):
                hooks.tell_inputs(batch={"x": X})
                hooks.tell_inputs(batch=X)  # the first one counts
                model(X)
            with hooks.phase("backward", 0):
                hooks.tell_inputs(batch=X)
    sink.check()
    assert sink.extents == [{"batch.x.0": 2, "batch.x.1": 4}] * 2


def test_inputs_of_a_phase_come_beside_the_arguments_of_the_model() -> None:
    model, sink = Net(), RecordingSink()
    with TrainingHooks(sink, model):
        with hooks.phase("forward", 0, inputs={"received": [torch.ones(3, 5)]}):
            model(X)
        with hooks.phase("forward", 1, inputs={"received": None}):
            model(X)
    sink.check()
    assert sink.extents == [
        {"x.0": 2, "x.1": 4, "received.0.0": 3, "received.0.1": 5},
        {"x.0": 2, "x.1": 4},
    ]


def test_of_several_chunks_the_first_tells_the_extents() -> None:
    """The root of chunks is a list, which is never called."""
    chunks, sink = nn.ModuleList([Net(), Net()]), RecordingSink()
    with TrainingHooks(sink, chunks):
        for chunk, module in enumerate(chunks):
            with hooks.phase("forward", 0, chunk, {"received": torch.ones(3)}):
                module(X)
        chunks[0](X)  # in no phase
    sink.check()
    assert sink.extents == [{"x.0": 2, "x.1": 4, "received.0": 3}]
