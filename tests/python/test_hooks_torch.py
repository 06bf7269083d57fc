"""The hooks leave nothing behind in torch and change neither results nor memory."""

from __future__ import annotations

import copy
import copyreg
import gc
import io
import pickle
import pickletools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from phase_sinks import RecordingSink
from torch import Tensor, nn
from torch.autograd.variable import Variable
from torch.nn.modules import module as module_globals
from torch.optim import optimizer as optimizer_globals
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from stalloc.hooks import TrainingHooks

# torch's own warning for a reentrant checkpoint where gradients are off.
pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")

X = torch.ones(2, 8)


class Net(nn.Module):
    """Tied weights, an in-place activation, dropout, both kinds of checkpoints, one in another."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Dropout(0.1))
        self.third = nn.Linear(8, 8)
        self.third.weight = self.first.weight

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        x = self.first(x)
        x += scale
        x = checkpoint(self.second, x, use_reentrant=True)
        x = checkpoint(lambda y: self.third(self.again(y)), x, use_reentrant=False)
        return x.relu_()

    def again(self, x: Tensor) -> Tensor:
        return checkpoint(self.second, x, use_reentrant=False)


def train(model: nn.Module, steps: int = 3) -> list[Tensor]:
    """Losses and final weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        for scale in (1.0, 2.0):
            loss = model(X, scale=scale).square().mean()
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        with torch.no_grad():
            losses.append(model(X).sum())
    optimizer.zero_grad()
    return [*losses, *model.parameters()]


def state_of_torch() -> list[object]:
    """Everything that hooks might leave something in."""
    return [
        Variable._execution_engine,
        torch.autograd.backward,
        torch.autograd.grad,
        torch.Tensor.backward,
        torch.autograd.graph._engine_run_backward,
        *(
            (name, dict(value))
            for name, value in {**vars(module_globals), **vars(optimizer_globals)}.items()
            if name.startswith("_global") and isinstance(value, dict)
        ),
    ]


def hooks_of(model: nn.Module) -> list[int]:
    return [
        len(value)
        for module in model.modules()
        for name, value in vars(module).items()
        if "hooks" in name and isinstance(value, dict)
    ]


@pytest.mark.parametrize("layers", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_detaching_leaves_torch_and_the_model_as_they_were(
    sink: RecordingSink, layers: bool, given: bool
) -> None:
    model = Net()
    before = state_of_torch(), hooks_of(model)
    training = TrainingHooks(sink, model if given else None, layers=layers)
    training.attach()
    assert training.attach() is training
    train(model)
    assert training.attached
    assert (state_of_torch(), hooks_of(model)) != before
    training.detach()
    assert not training.attached
    assert (state_of_torch(), hooks_of(model)) == before
    training.detach()
    assert (state_of_torch(), hooks_of(model)) == before


def test_a_root_never_found_leaves_nothing_behind(sink: RecordingSink) -> None:
    before = state_of_torch()
    with TrainingHooks(sink):
        assert state_of_torch() != before
    assert state_of_torch() == before


@pytest.mark.parametrize("first_out", [0, 1])
def test_two_at_once_hear_the_same_and_leave_in_any_order(first_out: int) -> None:
    model = Net()
    before = state_of_torch(), hooks_of(model)
    sinks = [RecordingSink(), RecordingSink()]
    both = [TrainingHooks(sink, model).attach() for sink in sinks]
    train(model)
    assert sinks[0].words == sinks[1].words
    both[first_out].detach()
    heard = sinks[first_out].take()
    train(model)
    assert sinks[first_out].take() == ""
    assert sinks[1 - first_out].take().startswith(heard.rpartition(" ")[0])
    both[1 - first_out].detach()
    assert (state_of_torch(), hooks_of(model)) == before


def test_another_engine_put_over_ours_is_left_there(sink: RecordingSink) -> None:
    model = Net()
    before = Variable._execution_engine

    class Theirs(torch._C._ImperativeEngine):
        engine: Any
        calls = 0

        def run_backward(self, *args: Any, **kwargs: Any) -> Any:
            Theirs.calls += 1
            return self.engine.run_backward(*args, **kwargs)

    training = TrainingHooks(sink, model).attach()
    theirs = Theirs()
    theirs.engine = Variable._execution_engine
    Variable._execution_engine = theirs
    try:
        training.detach()
        assert Variable._execution_engine is theirs
        with training:
            sink.take()
            model(X).sum().backward()
            # Once, though our engine is there twice now.
            assert sink.take() == "forward 0 backward 0 other"
        assert Variable._execution_engine is theirs
        assert Theirs.calls > 0
    finally:
        Variable._execution_engine = before


def test_a_sink_that_refuses_at_first_leaves_nothing_behind() -> None:
    class Refuses(RecordingSink):
        def define_layer(self, name: str, dynamic: bool) -> int:
            if name == "second":
                raise RuntimeError("refused")
            return super().define_layer(name, dynamic)

    model = Net()
    before = state_of_torch(), hooks_of(model)
    with pytest.raises(RuntimeError, match="refused"):
        TrainingHooks(Refuses(), model, layers=True).attach()
    assert (state_of_torch(), hooks_of(model)) == before


@pytest.mark.parametrize("layers", [False, True])
def test_losses_and_weights_are_identical_to_the_bit(sink: RecordingSink, layers: bool) -> None:
    torch.manual_seed(1)
    expected = train(Net())
    torch.manual_seed(1)
    with TrainingHooks(sink, layers=layers):
        actual = train(Net())
    assert all(torch.equal(a, b) for a, b in zip(expected, actual, strict=True))


def memory_events(work: Callable[[], object]) -> list[int]:
    """Bytes of every allocation (positive) and free (negative) of `work`, in order."""
    gc.collect()
    gc.disable()
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
            work()
    finally:
        gc.enable()
    events = prof.profiler.kineto_results.events()
    memory = [event for event in events if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(memory, key=lambda event: event.start_ns())]


@pytest.mark.parametrize("layers", [False, True])
def test_no_allocation_is_added_moved_or_kept(sink: RecordingSink, layers: bool) -> None:
    model = Net()
    train(model)
    expected = memory_events(lambda: train(model))
    assert len(expected) > 100
    with TrainingHooks(sink, model, layers=layers):
        actual = memory_events(lambda: train(model))
    assert actual == expected


def test_neither_model_nor_optimizer_nor_inputs_are_kept_alive(sink: RecordingSink) -> None:
    gc.disable()
    try:
        with TrainingHooks(sink, layers=True):
            model = nn.Linear(8, 8)
            optimizer = torch.optim.SGD(model.parameters())
            x = torch.ones(1, 8)
            model(x).sum().backward()
            optimizer.step()
            gone = [weakref.ref(thing) for thing in (model, optimizer, x, model.weight)]
            del model, optimizer, x
            gc.collect()
            assert [ref() for ref in gone] == [None] * 4
    finally:
        gc.enable()


# Copies


def test_a_copy_of_the_model_is_not_watched(sink: RecordingSink) -> None:
    model = Net()
    with TrainingHooks(sink, model, layers=True):
        averaged = copy.deepcopy(model)
        sink.take()
        with torch.no_grad():
            averaged(X)
        averaged(X).sum().backward()
        assert sink.take() == "backward other"
        assert sink.stays == []


def doubled(module: nn.Module, _: tuple[Tensor, ...], result: Tensor) -> Tensor:
    """A hook of the user's."""
    return result * 2


def halved(
    module: nn.Module, args: tuple[Tensor], kwargs: dict[str, Any]
) -> tuple[tuple[Tensor], dict[str, Any]]:
    """Another one."""
    return (args[0] / 2,), kwargs


class CopiesItself(nn.Linear):
    """Has a `__getstate__` and a `__deepcopy__` of its own, as wrappers do."""

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __deepcopy__(self, memo: dict[int, Any]) -> CopiesItself:
        other = CopiesItself(2, 2)
        other.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return other


class HookedNet(nn.Module):
    """Has hooks of its own, with and without the keyword arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.first.register_forward_pre_hook(halved, with_kwargs=True)
        self.copies = CopiesItself(2, 2)
        self.copies.register_forward_hook(doubled, always_call=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.copies(self.first(x))


def told(pickled: bytes) -> list[Any]:
    """The instructions of a pickle, without the storages of tensors and the lengths of frames.

    Storages are named by their addresses, which have fourteen digits or fifteen.
    """
    return [
        (code.name, None if isinstance(value, bytes) or code.name == "FRAME" else value)
        for code, value, _ in pickletools.genops(pickled)
    ]


def saved() -> tuple[list[Any], nn.Module]:
    """Files and pickles of a model and its optimizer after two steps, and a copy of the model."""
    torch.manual_seed(0)
    torch.utils.hooks.RemovableHandle.next_id = 1000
    model = HookedNet()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    model.register_forward_hook(doubled)
    files: list[Any] = []
    for thing in (model, optimizer, copy.deepcopy(model), model.state_dict(), model._forward_hooks):
        file = io.BytesIO()
        torch.save(thing, file)
        files += [file.getvalue(), told(pickle.dumps(thing))]
        files += [told(pickle._dumps(thing))]  # type: ignore[attr-defined]  # not in C
    return files, copy.deepcopy(model)


@pytest.mark.parametrize("layers", [False, True])
def test_a_saved_model_has_the_same_bytes_as_without_hooks(
    sink: RecordingSink, layers: bool
) -> None:
    number = torch.utils.hooks.RemovableHandle.next_id
    try:
        plain, _ = saved()
        with TrainingHooks(sink, layers=layers):
            hooked, model = saved()
    finally:
        torch.utils.hooks.RemovableHandle.next_id = number
    assert hooked == plain
    assert OrderedDict not in copyreg.dispatch_table
    heard = sink.take()
    model(torch.ones(1, 2)).sum().backward()
    assert (heard != "", sink.take()) == (True, "")
    assert hooks_of(model) == hooks_of(copy.deepcopy(model))


def test_a_users_reduction_of_dictionaries_is_kept(sink: RecordingSink) -> None:
    def reduction(value: OrderedDict[Any, Any]) -> tuple[Any, ...]:
        return OrderedDict, (list(value.items()),)

    model = nn.Linear(1, 1)
    copyreg.pickle(OrderedDict, reduction)  # type: ignore[arg-type]
    try:
        plain = pickle.dumps(model)
        with TrainingHooks(sink, model, layers=True):
            assert pickle.dumps(model) == plain
        assert copyreg.dispatch_table[OrderedDict] is reduction
    finally:
        del copyreg.dispatch_table[OrderedDict]


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_watched_model_can_be_scripted(sink: RecordingSink) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    with TrainingHooks(sink, model, layers=True):
        scripted = torch.jit.script(model)
        assert torch.equal(scripted(X), model(X))
        sink.take()
        model(X).sum().backward()
        assert sink.take() == "forward 1 backward 1 other"
    assert sum(hooks_of(model)) == 0


class FreezesInForward(nn.Module):
    """Changes the mode of a part of itself, as for frozen statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        self.norm.eval()
        y: Tensor = self.norm(self.linear(x))
        self.norm.train()
        return y


@pytest.mark.parametrize("given", [True, False])
def test_a_compiled_forward_may_change_modes(sink: RecordingSink, given: bool) -> None:
    torch._dynamo.reset()
    model = FreezesInForward()
    expected = copy.deepcopy(model)(X)
    compiled_model = torch.compile(model, backend="eager", fullgraph=True)
    with TrainingHooks(sink, model if given else None):
        for _ in range(3):
            actual = compiled_model(X)
            actual.sum().backward()
    assert torch.equal(actual, expected)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_frozen_script_module_is_no_root(sink: RecordingSink) -> None:
    features = torch.jit.freeze(torch.jit.script(nn.Sequential(nn.Linear(8, 8))).eval())
    model = nn.Linear(8, 8)
    with TrainingHooks(sink) as training:
        for _ in range(2):
            model(features(X)).sum().backward()
        assert training.root is model


# Wrappers


@pytest.fixture
def gloo() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("gloo")
@pytest.mark.parametrize("given", ["wrapper", "inside", "none"])
def test_distributed_data_parallel(sink: RecordingSink, given: str) -> None:
    inside = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    model = nn.parallel.DistributedDataParallel(inside)
    optimizer = torch.optim.SGD(model.parameters())
    root = {"wrapper": model, "inside": inside, "none": None}[given]
    with TrainingHooks(sink, root, layers=True) as training:
        for _ in range(2):
            with model.no_sync():
                model(X).sum().backward()
            model(X).sum().backward()
            optimizer.step()
        assert training.root is (inside if given == "inside" else model)
    one = "forward 0 backward 0 other forward 1 backward 1 other optimizer other"
    assert sink.take() == f"other {one} | other {one} other"


def compiled(kind: str, model: nn.Module, graphs: list[int]) -> nn.Module:
    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    torch._dynamo.reset()
    if kind == "in place":
        model.compile(backend=backend)
        return model
    return torch.compile(model, backend=backend)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("layers", [False, True])
@pytest.mark.parametrize("kind", ["in place", "wrapped"])
def test_compiled_models_keep_their_graph(
    sink: RecordingSink, kind: str, layers: bool, given: bool
) -> None:
    plain: list[int] = []
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    expected = compiled(kind, copy.deepcopy(model), plain)(X)
    graphs: list[int] = []
    model = compiled(kind, model, graphs)
    with TrainingHooks(sink, model if given else None, layers=layers) as training:
        for _ in range(3):
            actual = model(X)
            actual.sum().backward()
        with torch.no_grad():
            model(X)
        assert training.root is model
    assert torch.equal(actual, expected)
    one = [f"forward {i} backward {i} other" for i in range(3)]
    assert sink.take() == f"other {' '.join(one)} ( ) other"
    assert graphs[: len(plain)] == plain


def test_an_evaluation_compiled_before_the_training_keeps_its_graph(sink: RecordingSink) -> None:
    plain: list[int] = []
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).eval()
    with torch.no_grad():
        compiled("wrapped", copy.deepcopy(model), plain)(X)
    graphs: list[int] = []
    model = compiled("wrapped", model, graphs)
    with TrainingHooks(sink) as training:
        with torch.no_grad():
            model(X)
        assert graphs == plain
        assert len(graphs) == 1
        model.train()
        model(X).sum().backward()
        assert training.root is model


def test_a_compiled_function_is_whole_and_seldom_compiled_again(sink: RecordingSink) -> None:
    graphs: list[int] = []
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    torch._dynamo.reset()
    loss_of = torch.compile(lambda x: model(x).sum(), backend=backend, fullgraph=True)
    with TrainingHooks(sink):
        for _ in range(12):
            loss_of(X).backward()
            optimizer.step()
            optimizer.zero_grad()
    with TrainingHooks(sink):
        loss_of(X).backward()
    assert len(graphs) <= 4  # with and without each of the two hooks


def test_torch_compile_warns_of_the_users_global_hooks_alone(sink: RecordingSink) -> None:
    model = torch.compile(nn.Linear(8, 8), backend="eager")
    with TrainingHooks(sink):
        with torch.no_grad():
            model(X)
        handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
        try:
            with pytest.warns(UserWarning, match="global hooks"), torch.no_grad():
                model(X)
        finally:
            handle.remove()


def test_data_parallel_replicas_are_not_the_root(sink: RecordingSink) -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    with TrainingHooks(sink, model, layers=True):
        replica = model._replicate_for_data_parallel()
        assert replica._forward_pre_hooks
        replica(X)
    assert "forward" not in sink.take()
