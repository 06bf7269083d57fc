"""Parts of integrations: patches, positions in a schedule, dynamic spans."""

from __future__ import annotations

import inspect
import types
from typing import Any

import pytest
import torch
from phase_sinks import RecordingSink
from torch import nn

from stalloc import hooks
from stalloc._frameworks.patches import Argument, Patches
from stalloc._frameworks.positions import Position, Positions
from stalloc.hooks import TrainingHooks


def module_with(**functions: Any) -> types.ModuleType:
    module = types.ModuleType("patched")
    vars(module).update(functions)
    return module


def double(x: int) -> int:
    return 2 * x


def add_one(original: Any) -> Any:
    return lambda *args, **kwargs: original(*args, **kwargs) + 1


def test_patches_are_undone_last_first() -> None:
    module = module_with(double=double)
    patches = Patches()
    assert patches.wrap(module, "double", add_one)
    assert not patches.wrap(module, "double", add_one), "twice is once"
    assert not patches.wrap(module, "halve", add_one)
    patches.replace(module, "double", add_one(module.double))
    assert module.double(3) == 8
    patches.undo()
    assert module.double is double
    patches.undo()


def test_a_patched_function_keeps_its_name_and_signature() -> None:
    module = module_with(double=double)
    Patches().wrap(module, "double", add_one)
    assert module.double.__name__ == "double"
    assert inspect.signature(module.double) == inspect.signature(double)


def test_a_method_of_one_object_is_patched_for_that_one() -> None:
    class Optimizer:
        def step(self) -> int:
            return 1

    first, second = Optimizer(), Optimizer()
    own = vars(second)["step"] = lambda: 10  # as schedulers of learning rates leave behind
    patches = Patches()
    assert patches.wrap(first, "step", add_one)
    assert patches.wrap(second, "step", add_one)
    assert (first.step(), second.step(), Optimizer().step()) == (2, 11, 1)
    patches.undo()
    assert "step" not in vars(first)
    assert second.step is own


def test_keeps_patches_made_on_top() -> None:
    module = module_with(double=double)
    patches = Patches()
    patches.wrap(module, "double", add_one)
    theirs = add_one(module.double)
    module.double = theirs
    patches.undo()
    assert module.double is theirs
    assert module.double(3) == 8


def test_every_class_that_defines_a_method_is_patched_once() -> None:
    class Base:
        def step(self) -> int:
            return 1

    class Left(Base):
        pass

    class Right(Base):
        def step(self) -> int:
            return 10

    class Both(Left, Right):
        def step(self) -> int:
            return 100

    patches = Patches()
    patches.wrap_in_subclasses(Base, "step", add_one)
    assert [cls().step() for cls in (Base, Left, Right, Both)] == [2, 11 - 9, 11, 101]
    patches.undo()
    assert [cls().step() for cls in (Base, Left, Right, Both)] == [1, 1, 10, 100]


def test_an_argument_is_found_however_it_was_passed() -> None:
    def function(a: int, b: int, *, c: int = 0) -> None: ...

    b, c, d = (Argument(function, name) for name in "bcd")
    assert b.of((1, 2), {}) == b.of((1,), {"b": 2}) == 2
    assert b.of((1,), {}) is None
    assert c.of((1, 2), {"c": 3}) == 3
    assert d.of((1, 2), {}) is None


@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: [t], lambda t: ({"x": [None, t]}, 3)])
def test_backward_knows_its_place_by_the_output(wrap: Any) -> None:
    positions = Positions()
    outputs = []
    for chunk, microbatch in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        output = wrap(torch.ones(1))
        positions.forwarded(positions.forward(chunk, microbatch), output)
        outputs.append(output)
    back = [positions.backward(outputs[i]) for i in (3, 0, 2, 1)]
    assert back == [Position(1, 1), Position(0, 0), Position(0, 1), Position(1, 0)]


def test_the_tag_outlives_the_data() -> None:
    positions = Positions()
    output = torch.ones(1000)
    positions.forwarded(positions.forward(2, 5), output)
    output.data = torch.empty(1)
    assert positions.backward([output]) == Position(5, 2)


def test_without_numbers_and_tags_they_count() -> None:
    positions = Positions()
    for turn in range(2):
        positions.restart()
        seen = [positions.forward(chunk, None) for chunk in (0, 0, 1)]
        assert seen == [Position(0, 0), Position(1, 0), Position(0, 1)], turn
        for position in seen:
            positions.forwarded(position, None)
        assert [positions.backward(None) for _ in range(4)] == [*seen, Position(0)]


def test_dynamic_span_covers_its_code_and_its_backward(sink: RecordingSink) -> None:
    model = nn.Linear(2, 2)
    with TrainingHooks(sink, model) as attached:
        hooks.leave_dynamic("experts")
        y = model(torch.ones(2))
        hooks.enter_dynamic("experts")
        z = y * 2
        hooks.leave_dynamic("experts")
        z.sum().backward()
        hooks.enter_dynamic("experts")  # torn by an exception
        attached.end_iteration()
    assert sink.stays == [("experts", False)] * 2
    assert sink.dynamic == ["experts"]
    assert y.grad_fn is not None
    assert z.grad_fn is not None
    assert sink.layer_of(z.grad_fn._sequence_nr()) == "experts"
    assert sink.layer_of(y.grad_fn._sequence_nr()) is None
    hooks.enter_dynamic("experts")  # nobody listens
