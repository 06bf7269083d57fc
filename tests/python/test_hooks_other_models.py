"""Evaluations of other models than the one that trains, as a sink hears of them."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from phase_sinks import RecordingSink
from torch import nn
from torch.nn.modules import module as module_globals
from torch.optim.swa_utils import AveragedModel

from stalloc import hooks
from stalloc.hooks import TrainingHooks

X = torch.ones(2, 4)
STEP = "forward 0 backward 0 other optimizer other"


class Loop:
    """Trains a model and lets the sink tell what happens in each part."""

    def __init__(self, sink: RecordingSink) -> None:
        self.sink = sink
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters())

    def train(self) -> str:
        self.sink.take()
        self.model(X).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return self.sink.take()

    def evaluate(self, model: nn.Module) -> str:
        """Two batches."""
        for _ in range(2):
            with torch.no_grad():
                model(X)
        self.sink.words.append("loss")
        return self.sink.take()


@pytest.fixture
def loop(sink: RecordingSink) -> Loop:
    return Loop(sink)


COPIES = [copy.deepcopy, AveragedModel, lambda model: nn.Linear(4, 2)]
NAMES = ["copy", "average", "other"]


@pytest.mark.parametrize("of", COPIES, ids=NAMES)
@pytest.mark.parametrize("finds_root", [False, True])
def test_an_evaluation_of_another_model_lasts_until_training_goes_on(
    sink: RecordingSink, loop: Loop, of: Callable[[nn.Module], nn.Module], finds_root: bool
) -> None:
    other = of(loop.model).eval()
    with TrainingHooks(sink, None if finds_root else loop.model):
        loop.train()
        loop.train()
        assert loop.evaluate(other) == "( loss"
        assert sink.evaluations == 2, "each call is a forward, and no call inside of it"
        assert loop.train() == f") | other {STEP}"
        loop.train()
        assert loop.evaluate(other) == "( loss"
        assert sink.evaluations == 4
        loop.train()


def test_a_call_in_each_iteration_from_the_first_on_belongs_to_training(
    sink: RecordingSink, loop: Loop
) -> None:
    # After the first iteration nobody can tell it from an evaluation.
    other = copy.deepcopy(loop.model)
    with TrainingHooks(sink, loop.model):
        for _ in range(4):
            loop.train()
            assert loop.evaluate(other) == "loss"


def test_each_iteration_of_a_teacher_belongs_to_training(sink: RecordingSink, loop: Loop) -> None:
    teacher = copy.deepcopy(loop.model)
    with TrainingHooks(sink, loop.model):
        for _ in range(4):
            assert "(" not in loop.evaluate(teacher)
            assert loop.train().endswith(STEP)
    assert sink.evaluations == 0


def test_a_teacher_between_steps_and_ends_of_iterations_belongs_to_training(
    sink: RecordingSink, loop: Loop
) -> None:
    teacher = copy.deepcopy(loop.model)
    with TrainingHooks(sink, loop.model) as training:
        loop.evaluate(teacher)
        for when in ("before", "after"):
            for _ in range(3):
                loop.train()
                told = loop.evaluate(teacher) if when == "before" else ""
                training.end_iteration()
                told += loop.evaluate(teacher) if when == "after" else ""
                assert "(" not in told


def test_a_teacher_inside_of_iterations_stays_one(sink: RecordingSink, loop: Loop) -> None:
    # It was evaluated once, so it has hooks.
    teacher = copy.deepcopy(loop.model)
    with TrainingHooks(sink, loop.model):
        loop.train()
        loop.train()
        assert loop.evaluate(teacher) == "( loss"
        for _ in range(3):
            y = loop.model(X)
            sink.take()
            assert loop.evaluate(teacher) == "loss"
            y.sum().backward()
            loop.optimizer.step()
            sink.take()
        assert loop.evaluate(teacher) == "loss", "the iteration before had a call"


def test_rare_forwards_with_gradients_are_evaluations_until_something_trains_by_one(
    sink: RecordingSink, loop: Loop
) -> None:
    # The generator of adversarial training makes pictures, and the loop keeps them for a while.
    generator = nn.Linear(4, 4)

    def iteration(*, pictures: bool) -> str:
        sink.take()
        loop.model(X).sum().backward()
        loop.model(generator(X)).sum().backward()  # this call is inside of the iteration
        loop.optimizer.step()
        sink.take()
        if pictures:
            generator(X).detach()
        return sink.take()

    with TrainingHooks(sink, loop.model):
        for number in range(6):
            assert iteration(pictures=number == 3) == "", "one call tells nothing"
    with TrainingHooks(sink, loop.model):
        for number in range(8):
            rare = number % 4 == 3
            assert iteration(pictures=rare) == ("(" if rare else "")
        assert sink.evaluations == 2
        iteration(pictures=False)
        iteration(pictures=False)
        generator(X).sum().backward()  # this one trains
        sink.take()
        iteration(pictures=False)
        assert iteration(pictures=True) == ""


def test_forwards_with_gradients_in_each_gap_belong_to_training(
    sink: RecordingSink, loop: Loop
) -> None:
    generator = nn.Linear(4, 4)
    with TrainingHooks(sink, loop.model):
        for _ in range(4):
            generator(X)
            assert "(" not in sink.take()
            loop.train()
    assert sink.evaluations == 0


def test_a_model_and_its_average_are_evaluated_one_after_the_other(
    sink: RecordingSink, loop: Loop
) -> None:
    average = copy.deepcopy(loop.model)
    with TrainingHooks(sink, loop.model):
        loop.train()
        loop.train()
        loop.model.eval()
        assert loop.evaluate(loop.model) == "( loss"
        loop.model.train()
        sink.take()
        assert loop.evaluate(average) == "( loss"
        loop.model.eval()
        assert loop.evaluate(loop.model) == "loss"
        loop.model.train()
        assert sink.take() == ")"
        assert loop.evaluate(average) == "( loss"
        assert loop.train().startswith(")")
    assert sink.evaluations == 8


def test_a_part_of_the_model_is_evaluated_as_another_model(sink: RecordingSink, loop: Loop) -> None:
    with TrainingHooks(sink, loop.model):
        loop.train()
        loop.train()
        assert loop.evaluate(loop.model[0]) == "( loss"
        assert loop.train() == f") | other {STEP}"


def test_a_wrapper_of_the_model_is_no_other_one(sink: RecordingSink, loop: Loop) -> None:
    wrapper = nn.Sequential(loop.model)
    with TrainingHooks(sink, loop.model):
        for _ in range(3):
            loop.train()
            told = loop.evaluate(wrapper)
    assert told == "( ) ( ) loss", "as for the model itself"


@pytest.mark.parametrize(
    "call",
    [
        lambda other: other(X),  # for training, as a generator
        lambda other: nn.ReLU()(X),  # without parameters, as a transform
    ],
    ids=["training", "no-parameters"],
)
def test_other_calls_begin_no_evaluation(
    sink: RecordingSink, loop: Loop, call: Callable[[nn.Module], object]
) -> None:
    other = copy.deepcopy(loop.model)
    with TrainingHooks(sink, loop.model):
        for i in range(4):
            loop.train()
            if i % 2:
                call(other)
                assert sink.take() == ""


def test_another_model_that_learns_from_a_call_ends_the_evaluation(
    sink: RecordingSink, loop: Loop
) -> None:
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    with TrainingHooks(sink, loop.model):
        loop.train()
        loop.train()
        with torch.no_grad():
            y = generator(X)
        sink.words.append("critic")
        critic(y).sum().backward()
        assert sink.take().startswith("( critic )")
        loop.train()
        loop.train()
        assert loop.evaluate(generator) == "loss", "such calls are no sign any more"


def test_an_exception_in_another_model_leaves_its_evaluation_on(
    sink: RecordingSink, loop: Loop
) -> None:
    other = copy.deepcopy(loop.model)
    with TrainingHooks(sink, loop.model):
        loop.train()
        loop.train()
        with torch.no_grad(), pytest.raises(RuntimeError):
            other(torch.ones(3))
        assert loop.evaluate(other) == "( loss"
        assert sink.evaluations == 3
        assert loop.train() == f") | other {STEP}"


def test_only_gaps_have_a_global_hook(sink: RecordingSink, loop: Loop) -> None:
    seen = []
    loop.model[0].register_forward_hook(
        lambda *_: seen.append(len(module_globals._global_forward_pre_hooks))
    )
    other = copy.deepcopy(loop.model)  # with the same hook
    with TrainingHooks(sink, loop.model):
        loop.train()
        loop.train()
        loop.evaluate(other)
        assert seen == [0] * 4, "two forwards of each"
        assert len(module_globals._global_forward_pre_hooks) == 1
    assert not module_globals._global_forward_pre_hooks


def test_hooks_leave_other_models_as_they_were(sink: RecordingSink, loop: Loop) -> None:
    other = copy.deepcopy(loop.model)
    with TrainingHooks(sink, loop.model):
        loop.train()
        loop.train()
        loop.evaluate(other)
        gone = weakref.ref(copy.deepcopy(other))
        gc.collect()
        assert gone() is None
    assert not other._forward_pre_hooks
    assert not other._forward_hooks
    assert not other._forward_hooks_always_called


def test_an_evaluated_model_is_not_kept_alive(sink: RecordingSink, loop: Loop) -> None:
    with TrainingHooks(sink, loop.model):
        loop.train()
        for _ in range(2):
            loop.train()
            other = copy.deepcopy(loop.model)
            assert loop.evaluate(other) == "( loss"
            gone = weakref.ref(other)
            del other
            gc.collect()
            assert gone() is None


def test_a_module_without_a_hash_can_be_called(sink: RecordingSink, loop: Loop) -> None:
    class Transform(nn.Module):
        def __eq__(self, other: object) -> bool:
            return self is other

        __hash__ = None  # type: ignore[assignment]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with TrainingHooks(sink, loop.model):
        loop.train()
        loop.train()
        assert loop.evaluate(Transform()) == "loss"


def test_an_unplanned_stretch_tells_the_forwards_of_another_model(
    sink: RecordingSink, loop: Loop
) -> None:
    other = copy.deepcopy(loop.model)
    with TrainingHooks(sink, loop.model):
        loop.train()
        loop.train()
        with hooks.unplanned():
            assert loop.evaluate(other) == "( loss"
        assert sink.evaluations == 2
        assert sink.take() == ")"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_model_is_evaluated(sink: RecordingSink, loop: Loop) -> None:
    other = torch.jit.trace(  # type: ignore[no-untyped-call]
        copy.deepcopy(loop.model), X
    )
    with TrainingHooks(sink, loop.model):
        loop.train()
        loop.train()
        assert loop.evaluate(other) == "( loss"
        assert loop.train() == f") | other {STEP}"


def _train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(X).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def _steps(count: int) -> str:
    """So many microbatches, each with a step of its own."""
    return " ".join(f"forward {i} backward {i} other optimizer other" for i in range(count))


@pytest.mark.parametrize("finds_root", [False, True])
def test_copies_that_train_in_turns_while_the_root_lives_have_forwards(
    sink: RecordingSink, finds_root: bool
) -> None:
    parent: nn.Module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    with TrainingHooks(sink, None if finds_root else parent) as training:
        for generation in range(4):
            sink.take()
            children = [copy.deepcopy(parent) for _ in range(3)]
            for child in children:
                optimizer = torch.optim.SGD(child.parameters())
                _train(child, optimizer)
                _train(child, optimizer)
            words = sink.take()
            training.end_iteration()
            if generation > 0:
                assert words == _steps(6), generation
            parent = children[generation % 3]
        assert training.root is children[-1]


def test_copies_that_stay_and_train_in_turns_have_forwards(sink: RecordingSink) -> None:
    server = nn.Linear(4, 1)
    clients = [copy.deepcopy(server) for _ in range(3)]
    optimizers = [torch.optim.SGD(client.parameters()) for client in clients]
    with TrainingHooks(sink, server) as training:
        for number in range(5):
            sink.take()
            for client, optimizer in zip(clients, optimizers, strict=True):
                _train(client, optimizer)
            words = sink.take()
            training.end_iteration()
            if number > 2:
                assert words == _steps(3), number


def test_a_lazy_model_can_be_the_root(sink: RecordingSink) -> None:
    model = nn.LazyLinear(1)
    with TrainingHooks(sink) as training:
        model(X).sum().backward()
        assert training.root is model
        _train(copy.deepcopy(model), torch.optim.SGD(model.parameters()))
    assert sink.take() == "other forward 0 backward 0 other backward 0 other optimizer other other"


def test_a_model_of_another_shape_is_no_twin(sink: RecordingSink) -> None:
    root, other = nn.Linear(4, 1), nn.Linear(4, 2)
    frozen = copy.deepcopy(root).requires_grad_(False)
    with TrainingHooks(sink, root) as training:
        for model in (copy.deepcopy(root), other):
            _train(model, torch.optim.SGD(model.parameters()))
            training.end_iteration()
        other(X)
        frozen(X)
        assert isinstance(training.root, nn.Linear)
        assert training.root.out_features == 1
        assert training.root is not frozen
