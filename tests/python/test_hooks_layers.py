"""Layers: stays in modules, recomputation, and which module made which autograd node."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from phase_sinks import RecordingSink
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils.checkpoint import checkpoint

from stalloc.hooks import TrainingHooks

X = torch.ones(2, 4)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        x += 1
        return self.act(x) * 2


class Checkpointed(nn.Module):
    """Runs `inner` under a checkpoint."""

    def __init__(self, inner: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.inner = inner
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


def nodes(tensor: Tensor) -> Iterator[Node]:
    """All nodes of the graph of `tensor` that are no parameters."""
    todo, seen = [tensor.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen or "AccumulateGrad" in node.name():
            continue
        seen.add(node)
        todo += [below for below, _ in node.next_functions]
        yield node


def owners(sink: RecordingSink, tensor: Tensor) -> dict[str, set[str | None]]:
    """The layers that made the nodes of `tensor`'s graph, by the kind of node."""
    found: dict[str, set[str | None]] = {}
    for node in nodes(tensor):
        found.setdefault(node.name(), set()).add(sink.layer_of(node._sequence_nr()))
    return found


def test_layers_have_their_qualified_names_and_the_root_that_of_its_class(
    sink: RecordingSink,
) -> None:
    model = nn.Sequential(Block(), Block())
    with TrainingHooks(sink, model, layers=True):
        model(X)
    names = ["Sequential", "0", "0.linear", "0.act", "1", "1.linear", "1.act"]
    assert sink.layers == names
    assert sink.stays == [(name, False) for name in names]


@pytest.mark.parametrize("given", [True, False])
def test_a_discovered_root_reports_its_first_call_too(sink: RecordingSink, given: bool) -> None:
    model = Block()
    with TrainingHooks(sink, model if given else None, layers=True):
        model(X)
        assert sink.stays == [("Block", False), ("linear", False), ("act", False)]
        model(X)
    assert len(sink.stays) == 6


def test_the_phase_of_a_forward_begins_before_the_layer_of_the_root(sink: RecordingSink) -> None:
    model = Block()
    heard = []
    enter = sink.enter_layer
    sink.enter_layer = lambda layer, recompute: (  # type: ignore[method-assign]
        heard.append((sink.words[-1], sink.layers[layer])),
        enter(layer, recompute),
    )[1]
    with TrainingHooks(sink, model, layers=True):
        model(X)
    assert heard[0] == ("forward 0", "Block")


def test_without_layers_no_module_is_reported(sink: RecordingSink) -> None:
    model = Block()
    with TrainingHooks(sink, model):
        model(X)
    assert (sink.layers, sink.stays, sink.tags) == ([], [], [])


def test_a_shared_module_goes_by_its_first_name(sink: RecordingSink) -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    with TrainingHooks(sink, model, layers=True):
        model(X)
    assert [name for name, _ in sink.stays] == ["Sequential", "0", "1", "0"]


def test_nodes_belong_to_the_innermost_module_that_made_them(sink: RecordingSink) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: Tensor) -> Tensor:
            return (self.block(x.sin() * self.block.linear.weight[0]) * 2).cos()

    model = Outer()
    with TrainingHooks(sink, model, layers=True):
        loss = model(X).exp()
    assert owners(sink, loss) == {
        "SelectBackward0": {"Outer"},
        "MulBackward0": {"Outer", "block"},
        "AddmmBackward0": {"block.linear"},
        "TBackward0": {"block.linear"},
        "ReluBackward0": {"block.act"},
        "AddBackward0": {"block"},
        "CosBackward0": {"Outer"},
        "ExpBackward0": {None},
    }


def test_tied_weights_are_attributed_to_the_module_that_uses_them(sink: RecordingSink) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    with TrainingHooks(sink, model, layers=True):
        loss = model(X).sum()
        loss.backward()
    assert owners(sink, loss)["AddmmBackward0"] == {"0", "1"}


def test_in_place_operations_on_module_outputs_still_work(sink: RecordingSink) -> None:
    # Full-backward hooks make outputs views of a custom function's, on which these raise.
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), Block())
    with TrainingHooks(sink, model, layers=True):
        y = model(X)
        assert not y._is_view()
        y += 1
        y.relu_().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_recompute_their_layers_in_the_backward_phase(
    sink: RecordingSink, reentrant: bool
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Checkpointed(Block(), reentrant), nn.Linear(4, 1))
    with TrainingHooks(sink, model, layers=True):
        loss = model(X).sum()
        forward = list(sink.stays)
        assert ("1.inner.linear", False) in forward
        loss.backward()
    again = sink.stays[len(forward) :]
    # The last operation of a checkpoint need not run again: the non-reentrant kind stops there.
    assert again[:2] == [("1.inner", True), ("1.inner.linear", True)]
    assert sink.take() == "other forward 0 backward 0 other other"


# torch's own warning for a reentrant checkpoint in another's forward, which runs without gradients.
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_checkpoints_inside_checkpoints_stay_balanced(
    sink: RecordingSink, outer: bool, inner: bool
) -> None:
    middle = nn.Sequential(Block(), Checkpointed(Block(), inner), Block())
    model = nn.Sequential(nn.Linear(4, 4), Checkpointed(middle, outer))
    with TrainingHooks(sink, model, layers=True):
        for _ in range(2):
            model(X).sum().backward()
            sink.check()
    assert ("1.inner.1.inner.linear", True) in sink.stays
    assert sink.take() == "other forward 0 backward 0 other forward 1 backward 1 other other"


def test_reentrant_recomputation_tags_the_nodes_it_makes(sink: RecordingSink) -> None:
    seen: list[str | None] = []

    class Spy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: Tensor) -> Tensor:
            node = torch._C._current_autograd_node()
            seen.append(sink.layer_of(node._sequence_nr()))
            return grad

    class Spied(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Spy.apply(x)

    model = nn.Sequential(nn.Linear(4, 4), Checkpointed(Spied(), True), Spied())
    with TrainingHooks(sink, model, layers=True):
        model(X).sum().backward()
    assert seen == ["2", "1.inner"]


class Fails(nn.Module):
    def __init__(self, when: Callable[[], bool]) -> None:
        super().__init__()
        self.when = when

    def forward(self, x: Tensor) -> Tensor:
        if self.when():
            raise RuntimeError("module fails")
        return x * 2


def test_an_exception_deep_inside_leaves_every_module(sink: RecordingSink) -> None:
    fails = iter([True, False])
    model = nn.Sequential(Block(), nn.Sequential(Fails(lambda: next(fails))))
    with TrainingHooks(sink, model, layers=True):
        with pytest.raises(RuntimeError, match="module fails"):
            model(X)
        sink.check()
        model(X).sum().backward()


@pytest.mark.parametrize("reentrant", [True, False])
def test_an_exception_in_recomputation_leaves_every_module(
    sink: RecordingSink, reentrant: bool
) -> None:
    fails = iter([False, True, False, False])
    inner = nn.Sequential(Fails(lambda: next(fails)), Block())
    model = nn.Sequential(nn.Linear(4, 4), Checkpointed(inner, reentrant))
    with TrainingHooks(sink, model, layers=True):
        with pytest.raises(RuntimeError, match="module fails"):
            model(X).sum().backward()
        sink.check()
        model(X).sum().backward()
    assert sink.take() == "other forward 0 backward 0 other forward 1 backward 1 other other"


def test_a_hook_of_the_user_that_raises_leaves_every_module(sink: RecordingSink) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("hook fails")

    model = nn.Sequential(Block(), nn.Linear(4, 4))
    with TrainingHooks(sink, model, layers=True):
        for prepend in (True, False):
            handle = model[1].register_forward_pre_hook(refuse, prepend=prepend)
            with pytest.raises(RuntimeError, match="hook fails"):
                model(X)
            handle.remove()
            sink.check()


def test_the_hooks_of_the_user_run_inside_the_layer(sink: RecordingSink) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    inside: list[int] = []

    def look(*_: object) -> None:
        inside.append(sum(map(len, sink.open_layers.values())))

    model[0].register_forward_pre_hook(look)
    with TrainingHooks(sink, model, layers=True):
        model(X)
    assert inside == [2]


def test_a_keyboard_interrupt_leaves_no_layer_open_round_the_next_forward(
    sink: RecordingSink,
) -> None:
    def interrupt() -> bool:
        if next(interrupts):
            raise KeyboardInterrupt
        return False

    interrupts = iter([True, False])
    model = nn.Sequential(Block(), Fails(interrupt))
    depths: list[int] = []
    model[0].register_forward_pre_hook(
        lambda *_: depths.append(sum(map(len, sink.open_layers.values())))
    )
    with TrainingHooks(sink, model, layers=True):
        with pytest.raises(KeyboardInterrupt):
            model(X)
        model(X)
    assert depths == [2, 2]


def test_a_keyboard_interrupt_in_recomputation_is_mended_when_backward_ends(
    sink: RecordingSink,
) -> None:
    class Interrupts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if torch._C._current_graph_task_id() != -1:
                raise KeyboardInterrupt
            return x.exp()

    model = nn.Sequential(nn.Linear(4, 4), Checkpointed(nn.Sequential(Interrupts()), False))
    with TrainingHooks(sink, model, layers=True):
        with pytest.raises(KeyboardInterrupt):
            model(X).sum().backward()
        sink.check()


def test_detaching_inside_a_module_leaves_it(sink: RecordingSink) -> None:
    training = TrainingHooks(sink, layers=True)
    model = nn.Sequential(Block(), Fails(lambda: bool(training.detach())))
    with training:
        model(X)
        sink.check()


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (("Block",), ["1", "2"]),
        (("?",), ["0", "1", "2"]),
        (("2",), ["2"]),
        ((Block,), ["1", "2"]),
        (("Sequential",), ["Sequential"]),
        (("*.linear", "0"), ["0", "1.linear", "2.linear"]),
        (("block",), []),
    ],
)
def test_without_layers_only_the_modules_that_patterns_name_are_reported(
    sink: RecordingSink, patterns: tuple[str | type[nn.Module], ...], expected: list[str]
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Block(), Block())
    with TrainingHooks(sink, model, dynamic=patterns):
        model(X)
    assert sink.layers == sink.dynamic == expected


def test_a_pattern_matches_base_classes_and_all_inside_is_dynamic(sink: RecordingSink) -> None:
    class Derived(Block):
        pass

    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Derived()))
    with TrainingHooks(sink, model, layers=True, dynamic=["Block"]):
        model(X)
    assert sink.layers == ["Sequential", "0", "1", "1.0", "1.0.linear", "1.0.act"]
    assert sink.dynamic == ["1.0", "1.0.linear", "1.0.act"]
