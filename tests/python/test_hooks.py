"""Phases and iterations of the loops people write, as a sink hears of them."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from phase_sinks import RecordingSink
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stalloc import hooks
from stalloc._hooks.iterations import IterationCounter
from stalloc.hooks import PhaseKind, TrainingHooks

X = torch.ones(2, 4)
STEP = "optimizer other"
NEXT = "| other"


class Net(nn.Module):
    def __init__(self, fails: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.outer = nn.Linear(4, 1)
        self.fails = fails

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x).relu()
        if self.fails():
            raise RuntimeError("forward fails")
        return self.outer(x)


class FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        raise RuntimeError("backward fails")


def accumulate(n: int) -> str:
    return " ".join(f"forward {i} backward {i} other" for i in range(n))


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, microbatches: int = 1) -> None:
    optimizer.zero_grad()
    for _ in range(microbatches):
        model(X).sum().backward()
    optimizer.step()


# Plain loops


def test_gradient_accumulation_numbers_the_microbatches_of_each_iteration(
    sink: RecordingSink,
) -> None:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    with TrainingHooks(sink, model):
        assert sink.take() == "other"
        train_step(model, optimizer, 3)
        assert sink.take() == f"{accumulate(3)} {STEP}"
        train_step(model, optimizer, 3)
        assert sink.take() == f"{NEXT} {accumulate(3)} {STEP}"
    assert sink.take() == "other"


def test_an_explicit_end_replaces_the_one_by_optimizer_steps(sink: RecordingSink) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters())
    with TrainingHooks(sink, model) as training:
        train_step(model, optimizer)
        training.end_iteration()
        train_step(model, optimizer)
        train_step(model, optimizer)
        training.end_iteration()
    assert sink.take() == (
        f"other forward 0 backward 0 other {STEP} {NEXT} "
        f"forward 0 backward 0 other {STEP} forward 1 backward 1 other {STEP} {NEXT} other"
    )


def test_ending_an_iteration_of_detached_hooks_does_nothing(sink: RecordingSink) -> None:
    TrainingHooks(sink).end_iteration()
    assert sink.take() == ""


def test_backward_takes_the_newest_forward_and_a_second_one_keeps_its_number(
    sink: RecordingSink,
) -> None:
    model = Net()
    with TrainingHooks(sink, model):
        first, second = model(X).sum(), model(X).sum()
        second.backward(retain_graph=True)
        first.backward()
        second.backward()
    assert sink.take() == (
        "other forward 0 forward 1 backward 1 other backward 0 other backward 0 other other"
    )


def test_backward_before_any_forward_belongs_to_no_microbatch(sink: RecordingSink) -> None:
    model = Net()
    with TrainingHooks(sink, model):
        torch.ones(1, requires_grad=True).sum().backward()
        assert sink.take() == "other backward other"


def test_gradients_by_autograd_grad_and_of_gradients_are_backward_phases(
    sink: RecordingSink,
) -> None:
    model = Net()
    with TrainingHooks(sink, model):
        loss = model(X).square().sum()
        grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        torch.stack([g.square().sum() for g in grads]).sum().backward()
    assert sink.take() == "other forward 0 backward 0 other backward 0 other other"


def test_a_gradient_inside_the_forward_is_part_of_it(sink: RecordingSink) -> None:
    class Forces(Net):
        def forward(self, x: Tensor) -> Tensor:
            x = x.clone().requires_grad_()
            (force,) = torch.autograd.grad(super().forward(x).sum(), x, create_graph=True)
            return force

    model = Forces()
    with TrainingHooks(sink, model):
        model(X).square().sum().backward()
    assert sink.take() == "other forward 0 backward 0 other other"


# Evaluation


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation_is_unplanned_and_resumes_the_phase(
    sink: RecordingSink, mode: Callable[[], torch.no_grad]
) -> None:
    model = Net()
    with TrainingHooks(sink, model):
        loss = model(X).sum()
        with mode():
            model(X)
        loss.backward()
        model.eval()
        with mode():
            model(X)
        model.train()
        model(X).sum().backward()
    assert sink.take() == (
        "other forward 0 ( ) backward 0 other ( ) forward 1 backward 1 other other"
    )


def test_an_evaluation_lasts_from_eval_to_train(sink: RecordingSink) -> None:
    model = Net()
    with TrainingHooks(sink, model):
        model.eval()  # before anything trained, which means nothing
        assert sink.take() == "other"
        model.train()
        model(X).sum().backward()
        sink.take()
        model.eval()
        assert sink.take() == "("
        for _ in range(2):
            model(X)
        assert (sink.take(), sink.evaluations, sink.returned) == ("", 2, 2)
        model.train()
        assert sink.take() == ")"


def test_another_wrapper_of_train_stays_in_place(
    sink: RecordingSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Net()
    train = nn.Module.train
    monkeypatch.setattr(nn.Module, "train", train)  # is put back after the test
    with TrainingHooks(sink, model):
        ours = nn.Module.train
        assert ours is not train
    assert nn.Module.train is train
    with TrainingHooks(sink, model):
        below = nn.Module.train

        def others(module: nn.Module, mode: bool = True) -> nn.Module:
            return below(module, mode)

        nn.Module.train = others  # type: ignore[method-assign,assignment]
    assert nn.Module.train is others
    with TrainingHooks(sink, model):
        model(X).sum().backward()
        sink.take()
        assert model.eval() is model
        assert not model.training
        model.train()
        assert sink.take() == "( )"
    assert nn.Module.train is others


@pytest.mark.parametrize("end", ["forward", "backward", "step", "scope"])
def test_what_trains_ends_an_evaluation_whose_mode_stays(sink: RecordingSink, end: str) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters())
    with TrainingHooks(sink, model):
        loss = model(X).sum()
        model.eval()
        model(X)
        sink.take()
        if end == "forward":
            model.training = True  # as a class does that overrides train()
            model(X)
        elif end == "backward":
            loss.backward()
        elif end == "step":
            optimizer.step()
        else:
            with hooks.phase("optimizer"):
                pass
        assert sink.take().startswith(")")


def test_a_mode_in_which_something_trains_is_no_evaluation(sink: RecordingSink) -> None:
    model, generator = Net(), nn.Linear(4, 4)
    with TrainingHooks(sink, model):
        for _ in range(2):
            model(X).sum().backward()
            model.eval()
            sink.words.append("generator")
            model(generator(X)).sum().backward()
            model.train()
    first = "other forward 0 backward 0 other ( generator ) backward 0 other"
    later = "forward 1 backward 1 other generator ( ) backward 1 other"
    assert sink.take() == f"{first} {later} other"


def test_an_evaluation_without_its_mode_lasts_between_iterations(sink: RecordingSink) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters())
    with TrainingHooks(sink, model):
        train_step(model, optimizer)
        sink.take()
        for _ in range(2):
            with torch.no_grad():
                model(X)
        sink.words.append("loss")
        assert (sink.take(), sink.evaluations) == ("( loss", 2)
        model(X)
        assert sink.take() == f") {NEXT} forward 0"


def test_a_call_that_another_model_learns_from_is_no_evaluation(sink: RecordingSink) -> None:
    model, critic = Net(), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    with TrainingHooks(sink, model):
        for i in range(4):
            train_step(model, optimizer)
            sink.take()
            if i % 2:
                with torch.no_grad():
                    y = model(X)
                sink.words.append("critic")
                critic(y).sum().backward()
                words = sink.take()
        assert words.startswith("( ) critic")
        model.eval()
        assert sink.take() == "(", "the mode still tells"
        model.train()


def test_an_explicit_phase_ends_an_evaluation_without_its_mode(sink: RecordingSink) -> None:
    model = Net()
    with TrainingHooks(sink, model) as training:
        for i in range(4):
            with hooks.phase("forward"):
                y = model(X)
            with hooks.phase("backward"):
                y.sum().backward()
            training.end_iteration()
            sink.take()
            if i % 2:
                with torch.no_grad():
                    model(X)
                assert sink.take() == "("


def test_a_forward_without_gradients_in_each_iteration_belongs_to_training(
    sink: RecordingSink,
) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters())
    with TrainingHooks(sink, model):
        for _ in range(3):
            train_step(model, optimizer)
            sink.take()
            with torch.no_grad():
                model(X)
            sink.words.append("loss")
    assert sink.take() == "( ) loss other"


def test_an_evaluation_between_explicit_phases_lasts(sink: RecordingSink) -> None:
    model = Net()
    with TrainingHooks(sink, model):
        with hooks.phase("forward"):
            model(X)
        model.eval()
        model(X)
        model.train()
    assert sink.take() == "other forward 0 other ( ) other"


def test_a_call_in_eval_mode_is_unplanned_even_with_gradients_on(sink: RecordingSink) -> None:
    model = Net().eval()
    with TrainingHooks(sink, model):
        model(X)
    assert sink.take() == "other ( ) other"


def test_evaluation_between_step_and_next_forward_belongs_to_the_old_iteration(
    sink: RecordingSink,
) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters())
    with TrainingHooks(sink, model):
        train_step(model, optimizer)
        with torch.no_grad():
            model(X)
        model(X)
    assert sink.take().endswith(f"{STEP} ( ) {NEXT} forward 0 other")


# Checkpointing of the whole model


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputing_the_root_begins_no_phase(sink: RecordingSink, reentrant: bool) -> None:
    model = Net()
    x = X.clone().requires_grad_()
    with TrainingHooks(sink, model):
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    assert sink.take() == "other forward 0 backward 0 other other"


# Exceptions


def test_a_forward_that_raises_gives_its_number_back(sink: RecordingSink) -> None:
    fails = iter([False, True, False])
    model = Net(lambda: next(fails))
    with TrainingHooks(sink, model):
        model(X).sum().backward()
        with pytest.raises(RuntimeError, match="forward fails"):
            model(X)
        model(X).sum().backward()
    assert sink.take() == (
        "other forward 0 backward 0 other forward 1 other forward 1 backward 1 other other"
    )


def test_an_evaluation_that_raises_is_over(sink: RecordingSink) -> None:
    fails = iter([True, False])
    model = Net(lambda: next(fails))
    with TrainingHooks(sink, model):
        with torch.no_grad(), pytest.raises(RuntimeError, match="forward fails"):
            model(X)
        assert sink.take() == "other ( )"
        model(X).sum().backward()
    assert sink.take() == "forward 0 backward 0 other other"


def test_an_exception_in_the_loss_leaves_the_forward_behind(sink: RecordingSink) -> None:
    model = Net()
    with TrainingHooks(sink, model):
        with pytest.raises(RuntimeError):
            (model(X) @ torch.ones(7, 7)).sum().backward()
        model(X).sum().backward()
    assert sink.take() == "other forward 0 forward 1 backward 1 other other"


def test_a_backward_that_raises_is_over(sink: RecordingSink) -> None:
    model = Net()
    with TrainingHooks(sink, model):
        with pytest.raises(RuntimeError, match="backward fails"):
            FailsInBackward.apply(model(X)).sum().backward()
        model(X).sum().backward()
    assert sink.take() == "other forward 0 backward 0 other forward 1 backward 1 other other"


def test_an_optimizer_step_that_raises_is_over_with_the_next_event(sink: RecordingSink) -> None:
    class Fails(torch.optim.SGD):
        fails = True

        def step(self, closure: object = None) -> None:
            if self.fails:
                raise RuntimeError("step fails")

    model = Net()
    optimizer = Fails(model.parameters())
    with TrainingHooks(sink, model):
        with pytest.raises(RuntimeError, match="step fails"):
            train_step(model, optimizer)
        optimizer.fails = False
        train_step(model, optimizer)
        train_step(model, optimizer)
    assert sink.take() == (
        f"other forward 0 backward 0 other optimizer other forward 1 backward 1 other {STEP} "
        f"{NEXT} forward 0 backward 0 other {STEP} other"
    )


@pytest.mark.parametrize("training", [True, False])
def test_a_keyboard_interrupt_passes_no_hook_and_is_mended(
    sink: RecordingSink, training: bool
) -> None:
    def interrupt() -> bool:
        if next(interrupts):
            raise KeyboardInterrupt
        return False

    interrupts = iter([True, False])
    model = Net(interrupt).train(training)
    with TrainingHooks(sink, model, layers=True):
        with pytest.raises(KeyboardInterrupt):
            model(X)
        model.train()(X).sum().backward()
        healed = "forward 0 other" if training else "( )"
        assert sink.take() == f"other {healed} forward 0 backward 0 other"


# Optimizers


def test_the_closure_of_lbfgs_has_phases_inside_the_step(sink: RecordingSink) -> None:
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(X).square().sum()
        loss.backward()
        return loss

    with TrainingHooks(sink, model):
        optimizer.step(closure)
        one = "optimizer forward 0 backward 0 optimizer forward 1 backward 1 optimizer"
        assert sink.take().startswith(f"other {one}")
        # The next step's first evaluation begins the next iteration, the others do not.
        optimizer.step(closure)
        assert sink.take() == f"optimizer {NEXT} {one.removeprefix('optimizer ')} other"
        model(X)
        assert sink.take() == f"{NEXT} forward 0"


def test_hooks_that_join_the_forward_of_a_closure_know_of_its_step(sink: RecordingSink) -> None:
    """As where a trainer does all of an iteration in closures, and a plan goes into force."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters())
    hooks: list[TrainingHooks] = []

    def closure() -> Tensor:
        loss = model(X).square().sum()
        loss.backward()
        return loss

    def join(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if not hooks:
            hooks.append(TrainingHooks(sink, model))
            hooks[0].attach()
            hooks[0].join_forward(module, args, kwargs)

    with TrainingHooks(RecordingSink(), model, on_forward=join):
        optimizer.step(closure)
        assert sink.take() == "other forward 0 backward 0 optimizer other"
        optimizer.step(closure)
        assert sink.take() == f"optimizer {NEXT} forward 0 backward 0 optimizer other"
    hooks[0].detach()


def test_an_evaluation_in_a_closure_that_steps_itself_ends_no_iteration(
    sink: RecordingSink,
) -> None:
    model = Net()
    inner = torch.optim.SGD(model.parameters())

    class Twice(torch.optim.SGD):
        """Steps another optimizer between two evaluations, as SAM does."""

        def step(self, closure: Callable[[], None] | None = None) -> None:  # type: ignore[override]
            assert closure is not None
            closure()
            inner.step()
            closure()

    optimizer = Twice(model.parameters())

    def closure() -> None:
        model(X).sum().backward()

    with TrainingHooks(sink, model):
        for _ in range(2):
            optimizer.step(closure)
    one = "forward 0 backward 0 optimizer forward 1 backward 1 optimizer"
    assert sink.take() == f"other optimizer {one} other optimizer {NEXT} {one} other other"


def by_hand(model: nn.Module) -> None:
    model(X).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad)


def test_without_optimizers_an_iteration_ends_after_a_backward_pass(sink: RecordingSink) -> None:
    model = Net()
    with TrainingHooks(sink, guesses_ends=True) as training:
        for _ in range(2):
            by_hand(model)
            with torch.no_grad():
                model(X)
        assert training.guesses_ends
    assert sink.take() == f"other {accumulate(1)} ( ) {NEXT} {accumulate(1)} ( ) other"


def test_the_first_step_joins_iterations_that_ended_by_guess(sink: RecordingSink) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters())
    told: list[str] = []
    with TrainingHooks(
        sink, model, guesses_ends=True, on_first_step=lambda: told.append(sink.take())
    ) as training:
        for _ in range(2):
            for _ in range(3):
                model(X).sum().backward()
            optimizer.step()
        assert not training.guesses_ends
    assert told == [f"other {f' {NEXT} '.join([accumulate(1)] * 3)}"]
    assert sink.take() == f"{STEP} {NEXT} {accumulate(3)} {STEP} other"


@pytest.mark.parametrize("optimizes", [False, True])
def test_without_modules_an_iteration_ends_with_the_step_or_the_backward_pass(
    sink: RecordingSink, optimizes: bool
) -> None:
    weight = torch.ones(2, 2, requires_grad=True)
    optimizer = torch.optim.SGD([weight])
    with TrainingHooks(sink, guesses_ends=True):
        for _ in range(3):
            weight.square().sum().backward()
            if optimizes:
                optimizer.step()
    words = sink.take()
    if optimizes:  # the first end was a guess
        words = words.replace(f"backward other {NEXT} optimizer", "backward other optimizer", 1)
    one = f"backward other {STEP}" if optimizes else "backward other"
    assert words == f"other {one} {NEXT} {one} {NEXT} {one} {NEXT} other"


def test_two_optimizers_side_by_side_make_one_iteration(sink: RecordingSink) -> None:
    model = Net()
    first = torch.optim.AdamW(model.inner.parameters())
    second = torch.optim.SGD(model.outer.parameters())
    with TrainingHooks(sink, model):
        for _ in range(3):
            model(X).sum().backward()
            first.step()
            second.step()
    one = f"forward 0 backward 0 other {STEP} {STEP}"
    assert sink.take() == f"other {one} {NEXT} {one} {NEXT} {one} other"


def test_two_models_trained_in_turn_make_one_iteration_a_cycle(sink: RecordingSink) -> None:
    generator, critic = Net(), nn.Linear(1, 1)
    of_generator = torch.optim.SGD(generator.parameters())
    of_critic = torch.optim.SGD(critic.parameters())
    found: list[str] = []
    with TrainingHooks(sink, on_slower=lambda: found.append(sink.take())) as training:
        for _ in range(3):
            critic(generator(X).detach()).sum().backward()
            of_critic.step()
            critic(generator(X)).sum().backward()
            of_generator.step()
        assert training.root is generator
    first, second = f"forward 0 backward 0 other {STEP}", f"forward 1 backward 1 other {STEP}"
    # The critic's first step seems to end an iteration. From then on its turn is the first.
    assert found == [f"other {first} {NEXT} {first}"]
    cycle = f"{NEXT} {first} {second}"
    assert sink.take() == f"{cycle} {cycle} other"


def test_a_slower_optimizer_ends_the_iteration_from_its_first_step_on(sink: RecordingSink) -> None:
    generator, critic = Net(), nn.Linear(1, 1)
    of_generator = torch.optim.SGD(generator.parameters())
    of_critic = torch.optim.SGD(critic.parameters())
    found: list[str] = []
    with TrainingHooks(sink, on_slower=lambda: found.append(sink.take())):
        for _ in range(3):
            for _ in range(2):
                critic(generator(X).detach()).sum().backward()
                of_critic.step()
            critic(generator(X)).sum().backward()
            of_generator.step()
    one, two, three = (f"forward {i} backward {i} other {STEP}" for i in range(3))
    assert found == [f"other {one} {NEXT} {one} {NEXT} {one}"]
    assert sink.take() == f"{NEXT} {one} {two} {three} {NEXT} {one} {two} {three} other"


@pytest.mark.parametrize(
    ("steps", "ends", "waits"),
    [
        ("abababab", "11010101", False),
        ("abcabc", "111001", False),
        ("abababab", "01010101", True),
        ("aaabaaab", "11110001", False),
        ("aaabaaab", "00010001", True),
        ("abbabbabb", "111100100", False),
        ("aaaaaaaaabbb", "111111111011", False),  # b replaces a
        ("aabaaaaaaa", "1110000111", False),  # b steps once
        ("abaaaabaaaab", "110000100001", False),  # b steps with every fourth of a, and the first
        ("abaaaaaaaaaa", "110000000011", False),  # b steps once
        ("ababaaaa", "11010111", False),
        ("aaaaaaaaaa", "0000000011", True),  # none is slower
    ],
)
def test_one_of_several_optimizers_ends_the_iterations(steps: str, ends: str, waits: bool) -> None:
    optimizers = {name: Net() for name in "abc"}
    counter = IterationCounter(waits)
    assert "".join(str(int(counter.ends_with(optimizers[name]))) for name in steps) == ends


def test_hooks_that_begin_amid_a_cycle_end_it_as_those_before_did(sink: RecordingSink) -> None:
    model = Net()
    first, second = (torch.optim.SGD(model.parameters()) for _ in range(2))
    for order, steps in (((first, second), [1, 1]), ((second, first), [1, 2])):
        with TrainingHooks(sink):
            for optimizer in 2 * order:
                train_step(model, optimizer)
            train_step(model, order[0])
        iterations = sink.take().split("|")
        assert [words.count("optimizer") for words in iterations][:2] == steps


def test_an_optimizer_that_sits_idle_hands_over_the_end_of_the_iteration(
    sink: RecordingSink,
) -> None:
    model = Net()
    idle = torch.optim.SGD(model.parameters())
    optimizer = torch.optim.SGD(model.parameters())
    with TrainingHooks(sink, model):
        for _ in range(2):
            train_step(model, optimizer)
            train_step(model, idle)
        assert sink.take().count("|") == 2
        train_step(model, optimizer)
        assert sink.take().count("|") == 1
        train_step(model, optimizer)
        assert sink.take().count("|") == 0, "the last one of the cycle may still step"
        train_step(model, optimizer)
        assert sink.take() == f"{NEXT} forward 0 backward 0 other {STEP}"


def test_an_optimizer_that_is_gone_hands_over_at_once(sink: RecordingSink) -> None:
    model = Net()
    with TrainingHooks(sink, model):
        for _ in range(3):
            train_step(model, torch.optim.SGD(model.parameters()))
    assert sink.take().count("|") == 2


def test_a_step_that_a_scaler_skips_ends_nothing_unless_one_says_so(sink: RecordingSink) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)

    def step(factor: float) -> None:
        optimizer.zero_grad()
        scaler.scale(model(X).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()

    with TrainingHooks(sink, model) as training:
        step(1.0)
        step(float("inf"))
        assert sink.take() == f"other {accumulate(1)} {STEP} {NEXT} {accumulate(1)}"
        step(1.0)
        assert sink.take() == f"forward 1 backward 1 other {STEP}"
        training.end_iteration()
        step(float("inf"))
        training.end_iteration()
        assert sink.take() == f"{NEXT} {accumulate(1)} {NEXT}"


def test_an_optimizer_fused_into_backward_begins_no_phase_and_ends_the_iteration(
    sink: RecordingSink,
) -> None:
    model = Net()
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter])

        def step(p: Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)
    with TrainingHooks(sink, model):
        for _ in range(3):
            model(X).sum().backward()
    one = accumulate(1)
    assert sink.take() == f"other {one} {NEXT} {one} {NEXT} {one} other"


# Finding the root


def test_the_root_is_the_first_module_called_for_training(sink: RecordingSink) -> None:
    frozen = Net().requires_grad_(False)
    model, loss = nn.Sequential(nn.Flatten(), Net()), nn.MSELoss()
    with TrainingHooks(sink) as training:
        frozen(X)
        with torch.no_grad():
            model(X)
        model.eval()(X)
        model.train()
        assert training.root is None
        loss(model(X), torch.ones(2, 1)).backward()
        assert training.root is model
        model(X)
    assert sink.take() == "other forward 0 backward 0 other forward 1 other"


def test_another_root_is_found_once_the_first_is_gone(sink: RecordingSink) -> None:
    with TrainingHooks(sink) as training:
        for _ in range(2):
            model = Net()
            train_step(model, torch.optim.SGD(model.parameters()))
            del model
        assert training.root is None
        train_step(second := Net(), torch.optim.SGD(second.parameters()))
        assert training.root is second


def test_a_copy_that_replaces_the_root_is_found_at_its_first_forward(sink: RecordingSink) -> None:
    server = Net()
    one = f"forward 0 backward 0 other {STEP}"
    with TrainingHooks(sink) as training:
        for number in range(5):
            client = copy.deepcopy(server)  # the one before goes here
            train_step(client, torch.optim.SGD(client.parameters()))
            words = sink.take()
            if number > 1:  # the first copy to be replaced may have been a warm-up
                assert words == f"{NEXT} {one}"
                assert training.root is client


def test_a_root_may_go_in_a_backward_pass_or_on_another_thread(sink: RecordingSink) -> None:
    with TrainingHooks(sink) as training:
        held = [Net()]
        loss = held[0](X).sum()
        loss.register_hook(lambda _: held.clear())
        loss.backward()
        train_step(second := Net(), torch.optim.SGD(second.parameters()))
        assert training.root is second
        held.append(second)
        del second
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        for _ in range(2):
            train_step(third := Net(), torch.optim.SGD(third.parameters()))
        assert training.root is third


def test_a_root_that_no_longer_trains_gives_way(sink: RecordingSink) -> None:
    warm, model = Net(), Net()
    with TrainingHooks(sink) as training:
        train_step(warm, torch.optim.SGD(warm.parameters()))
        assert training.root is warm
        optimizer = torch.optim.SGD(model.parameters())
        train_step(model, optimizer)
        sink.take()
        one = f"forward 0 backward 0 other {STEP}"
        for _ in range(2):
            train_step(model, optimizer)
            assert sink.take() == f"{NEXT} {one}"
            assert training.root is model
            warm(X)
            assert sink.take() == ""


def test_a_root_that_trains_each_time_stays_one_among_others(sink: RecordingSink) -> None:
    models = [Net() for _ in range(3)]
    optimizers = [torch.optim.SGD(model.parameters()) for model in models]
    with TrainingHooks(sink) as training:
        for _ in range(4):
            for model, optimizer in zip(models, optimizers, strict=True):
                train_step(model, optimizer)
            assert training.root is models[0]


def test_only_a_module_that_is_accepted_becomes_the_root(sink: RecordingSink) -> None:
    model = Net()
    waits = []

    def accepts(module: nn.Module, waited: int) -> bool:
        waits.append(waited)
        return module is model

    with TrainingHooks(sink, accepts=accepts) as training:
        model.inner(X).sum().backward()
        assert training.root is None
        assert sink.take() == "other backward other"
        training.end_iteration()
        train_step(model.inner, torch.optim.SGD(model.parameters()))
        assert waits == [0, 1]
        sink.take()
        train_step(model, torch.optim.SGD(model.parameters()))
        assert training.root is model
        assert sink.take() == f"forward 0 backward 0 other {STEP}"
        assert waits == [0, 1, 2]


def test_calls_of_other_modules_belong_to_the_phase_that_is_on(sink: RecordingSink) -> None:
    model, other = Net(), Net()
    with TrainingHooks(sink, model):
        other(X)
        other(model(X).expand(2, 4)).sum().backward()
    assert sink.take() == "other forward 0 backward 0 other other"


def test_a_root_that_calls_itself_is_one_forward(sink: RecordingSink) -> None:
    class Recursive(Net):
        def forward(self, x: Tensor, depth: int = 2) -> Tensor:
            return super().forward(x) if depth == 0 else self(x, depth - 1)

    model = Recursive()
    with TrainingHooks(sink, model):
        model(X).sum().backward()
        model(X).sum().backward()
    assert sink.take() == f"other {accumulate(2)} other"


def test_on_forward_sees_the_inputs_of_every_training_forward(sink: RecordingSink) -> None:
    class Masked(Net):
        def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
            return super().forward(x)

    heard = []
    model = Masked()
    optimizer = torch.optim.SGD(model.parameters())

    def on_forward(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        assert module is model
        heard.append((hooks.input_signature(args, kwargs), sink.take()))

    with TrainingHooks(sink, on_forward=on_forward):
        model(X, mask=X).sum().backward()
        optimizer.step()
        with torch.no_grad():
            model(X)
        model(X, mask=X)
    before = f"forward 0 backward 0 other {STEP} ( ) {NEXT}"
    signature = "(float32[2,4], mask=float32[2,4])"
    assert heard == [(signature, "other"), (signature, before)]


def test_exception_of_on_forward_reaches_the_caller_before_anything_begins(
    sink: RecordingSink,
) -> None:
    model = Net()

    def refuse(*_: object) -> None:
        raise ValueError("another batch size")

    with TrainingHooks(sink, model, layers=True, on_forward=refuse):
        with pytest.raises(ValueError, match="another batch size"):
            model(X)
        assert sink.take() == "other"


# Explicit scopes


def test_an_explicit_phase_replaces_the_automatic_ones(sink: RecordingSink) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters())
    with TrainingHooks(sink, model):
        for _ in range(2):
            with hooks.phase("forward", microbatch=1, chunk=2):
                loss = model(X).sum()
            with hooks.phase(PhaseKind.BACKWARD, microbatch=1, chunk=2):
                loss.backward()
            with hooks.phase("optimizer"):
                optimizer.step()
    one = f"forward 1.2 other backward 1.2 other {STEP}"
    # The iteration ends before the first phase of the next, not inside it.
    assert sink.take() == f"other {one} {NEXT} {one} other"


def test_explicit_phases_nest_and_the_outer_one_is_entered_again(sink: RecordingSink) -> None:
    with TrainingHooks(sink), hooks.phase("forward", 0), hooks.phase("backward", 3):
        pass
    assert sink.take() == "other forward 0 backward 3 forward 0 other other"


def test_an_explicit_phase_inside_a_forward_gives_way_to_the_forward(sink: RecordingSink) -> None:
    class Explicit(Net):
        def forward(self, x: Tensor) -> Tensor:
            with hooks.phase("other"):
                x = x + 1
            return super().forward(x)

    model = Explicit()
    with TrainingHooks(sink, model):
        model(X).sum().backward()
    assert sink.take() == "other forward 0 other forward 0 backward 0 other other"


def test_an_explicit_phase_ends_with_the_exception_that_leaves_it(sink: RecordingSink) -> None:
    with TrainingHooks(sink):
        with pytest.raises(RuntimeError), hooks.phase("forward"), hooks.unplanned():
            raise RuntimeError
        assert sink.take() == "other forward 0 ( ) other"


def test_each_forward_in_an_unplanned_stretch_is_an_evaluation(sink: RecordingSink) -> None:
    model = nn.Sequential(Net())
    with TrainingHooks(sink, model):
        model(X).sum().backward()
        model.eval()
        with torch.no_grad():
            model(X)
        assert sink.evaluations == 1
        with hooks.unplanned():
            with torch.no_grad():
                model(X)
            model(X)
        assert sink.evaluations == 3
    assert sink.take() == "other forward 0 backward 0 other ( ) other"


def test_nothing_begins_or_ends_in_an_unplanned_stretch(sink: RecordingSink) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters())
    with TrainingHooks(sink, model) as training:
        train_step(model, optimizer)
        sink.take()
        with hooks.unplanned(), hooks.phase("unplanned"):
            train_step(model, optimizer)
            with hooks.phase("forward"):
                model(X)
        assert sink.take() == "( )"
        model(X)
        with hooks.unplanned():
            training.end_iteration()
        assert sink.take() == f"{NEXT} forward 0 ( ) {NEXT} ( )"


def test_an_iteration_that_ends_inside_an_explicit_phase_enters_it_again(
    sink: RecordingSink,
) -> None:
    with TrainingHooks(sink) as training, hooks.phase("backward", 5):
        training.end_iteration()
    assert sink.take() == "other backward 5 | backward 5 other other"


def test_scopes_do_nothing_when_nobody_listens(sink: RecordingSink) -> None:
    with hooks.phase("forward"), hooks.unplanned():
        pass
    training = TrainingHooks(sink)
    with hooks.phase("forward"):
        training.attach()
    training.detach()
    with training:
        scope = hooks.phase("forward")
        scope.__enter__()
    scope.__exit__(None, None, None)
    assert sink.take() == "other other other forward 0 other"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sideways",), "no phase 'sideways'; choose one of other, forward, backward"),
        ((17,), "no phase 17"),
        (("forward", -1), "forward of microbatch -1, chunk 0"),
        (("forward", 0, -2), "chunk -2"),
    ],
)
def test_phases_that_cannot_be_are_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message), hooks.phase(*arguments):  # type: ignore[arg-type]
        pass


# Threads


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_other_threads_change_nothing(sink: RecordingSink) -> None:
    model, other = Net(), Net()
    optimizer = torch.optim.SGD(other.parameters())

    def elsewhere() -> None:
        with hooks.phase("optimizer"), hooks.unplanned():
            model(X).sum().backward()
        train_step(other, optimizer)
        with torch.no_grad():
            model.eval()(X)
        model.train()

    with TrainingHooks(sink, model, layers=True):
        loss = model(X).sum()
        stays = len(sink.stays)
        in_thread(elsewhere)
        loss.backward()
        assert len(sink.stays) == stays
        model(X)
    assert sink.take() == "other forward 0 backward 0 other forward 1 other"


def test_a_root_called_on_another_thread_first_is_not_discovered(sink: RecordingSink) -> None:
    model = Net()
    with TrainingHooks(sink) as training:
        in_thread(lambda: model(X))
        assert training.root is None


def test_any_thread_is_followed_that_trains_first(sink: RecordingSink) -> None:
    model, other = Net(), Net()
    optimizer = torch.optim.SGD(model.parameters())
    training = TrainingHooks(sink)
    training.follow_any_thread()
    with training:
        in_thread(lambda: train_step(model, optimizer, 2))
        assert training.root is model
        other(X).sum().backward()
    assert sink.take() == f"other {accumulate(2)} {STEP} other"


def test_a_thread_that_only_calls_a_model_is_left_for_one_that_trains(sink: RecordingSink) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters())
    training = TrainingHooks(sink)
    training.follow_any_thread()
    with training:
        in_thread(lambda: model(X))
        train_step(model, optimizer)
        sink.take()
        train_step(model, optimizer, 2)
    assert sink.take() == f"{NEXT} {accumulate(2)} {STEP} other"


def test_threads_that_run_the_model_all_the_while(sink: RecordingSink) -> None:
    model, other = Net(), Net()
    optimizer = torch.optim.SGD(model.parameters())
    stop = threading.Event()

    def evaluate() -> None:
        while not stop.is_set():
            with torch.no_grad():
                model(X)
            model(X)
            other(X).sum().backward()

    threads = [threading.Thread(target=evaluate) for _ in range(3)]
    with TrainingHooks(sink, model, layers=True):
        for thread in threads:
            thread.start()
        for _ in range(30):
            train_step(model, optimizer, 2)
        stop.set()
        for thread in threads:
            thread.join()
    one = f"{accumulate(2)} {STEP}"
    assert sink.take() == "other " + f" {NEXT} ".join([one] * 30) + " other"
