"""Any program gives the sink a well-formed sequence, and the next clean step is clean."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from phase_sinks import RecordingSink
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stalloc import hooks
from stalloc._hooks.iterations import MOST_STEPS
from stalloc.hooks import TrainingHooks

X = torch.ones(1, 2, requires_grad=True)
CLEAN = "forward 0 backward 0 other optimizer other"

# An optimizer that steps alone closes iterations again once it has stepped more than twice as often
# as in a cycle of two (stalloc/_hooks/iterations.py).
ENOUGH = 2 * MOST_STEPS + 2

OUTCOMES = ["fine", "raises", "interrupts"]
Operation = tuple[Any, ...]

SIMPLE: st.SearchStrategy[Operation] = st.one_of(
    st.tuples(st.just("forward"), st.sampled_from(OUTCOMES), st.booleans()),
    st.tuples(st.just("evaluate"), st.sampled_from(OUTCOMES)),
    st.tuples(st.just("backward"), st.sampled_from(OUTCOMES), st.booleans()),
    st.tuples(st.just("step"), st.sampled_from(OUTCOMES), st.integers(0, 1)),
    st.tuples(st.just("closure"), st.sampled_from(OUTCOMES)),
)
NESTED = st.recursive(
    st.lists(SIMPLE, max_size=6),
    lambda inner: st.lists(
        st.one_of(
            SIMPLE,
            st.tuples(
                st.just("scope"),
                st.sampled_from(["forward", "backward", "optimizer", "other", "unplanned"]),
                st.sampled_from(OUTCOMES),
                inner,
            ),
        ),
        max_size=6,
    ),
    max_leaves=8,
)


def end_as(outcome: str) -> None:
    if outcome == "raises":
        raise RuntimeError("raised by the program")
    if outcome == "interrupts":
        raise KeyboardInterrupt


class Ends(torch.autograd.Function):
    """Ends its backward as told."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, outcome: str) -> Tensor:
        ctx.outcome = outcome
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        end_as(ctx.outcome)
        return grad, None


class Program:
    """Runs operations on a model whose last module ends as told."""

    def __init__(self) -> None:
        self.outcome = "fine"
        self.recompute_outcome = "fine"
        program = self

        class Last(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                recomputes = torch._C._current_graph_task_id() != -1
                end_as(program.recompute_outcome if recomputes else program.outcome)
                return x.exp()

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first = nn.Linear(2, 2)
                self.rest = nn.Sequential(nn.Linear(2, 2), Last())

            def forward(self, x: Tensor, reentrant: bool = False) -> Tensor:
                return checkpoint(self.rest, self.first(x), use_reentrant=reentrant)

        class Optimizer(torch.optim.SGD):
            def step(self, closure: Any = None) -> Any:
                loss = closure() if closure is not None else None
                end_as(program.outcome)
                return loss

        self.model = Net()
        self.optimizers = [Optimizer(self.model.parameters()) for _ in range(2)]

    def run(self, operations: list[Operation]) -> None:
        """Runs all; what an operation raises is caught, as a patient user would."""
        for name, *arguments in operations:
            with contextlib.suppress(RuntimeError, KeyboardInterrupt):
                getattr(self, name)(*arguments)
            self.outcome = self.recompute_outcome = "fine"

    def forward(self, outcome: str, reentrant: bool) -> None:
        self.outcome = outcome
        self.model(X, reentrant)

    def evaluate(self, outcome: str) -> None:
        self.outcome = outcome
        with torch.no_grad():
            self.model.eval()
            try:
                self.model(X)
            finally:
                self.model.train()

    def backward(self, outcome: str, in_recomputation: bool) -> None:
        loss = self.model(X, in_recomputation)
        if in_recomputation:
            self.recompute_outcome = outcome
        else:
            loss = Ends.apply(loss, outcome)
        loss.sum().backward()

    def step(self, outcome: str, which: int) -> None:
        self.outcome = outcome
        self.optimizers[which].step()

    def closure(self, outcome: str) -> None:
        def run() -> Tensor:
            loss = self.model(X).sum()
            Ends.apply(loss, outcome).backward()
            return loss

        self.optimizers[0].step(run)

    def scope(self, kind: str, outcome: str, inner: list[Operation]) -> None:
        with hooks.phase(kind):
            self.run(inner)
            end_as(outcome)

    def clean_step(self) -> None:
        self.model(X).sum().backward()
        self.optimizers[0].step()


@settings(deadline=None, max_examples=150)
@given(NESTED)
def test_after_any_program_a_new_iteration_is_clean(operations: list[Operation]) -> None:
    sink, program = RecordingSink(), Program()
    with TrainingHooks(sink, program.model, layers=True) as training:
        program.run(operations)
        training.end_iteration()
        sink.check()
        assert sink.words[-2:] == ["|", "other"]
        sink.take()
        program.clean_step()
        assert sink.take() == CLEAN
        sink.check()


@settings(deadline=None, max_examples=150)
@given(NESTED)
@example([("closure", "fine"), ("step", "fine", 0), ("step", "fine", 1)])
def test_after_any_program_a_plain_loop_finds_its_iterations_again(
    operations: list[Operation],
) -> None:
    sink, program = RecordingSink(), Program()
    with TrainingHooks(sink) as training:
        program.run(operations)
        for _ in range(ENOUGH):
            program.clean_step()
        assert training.root is program.model
        sink.take()
        program.clean_step()
        assert sink.take() == f"| other {CLEAN}"
        sink.check()


@settings(deadline=None, max_examples=100)
@given(NESTED, st.integers(1, 3))
def test_the_same_program_tells_the_same_story_each_iteration(
    operations: list[Operation], repetitions: int
) -> None:
    sink, program = RecordingSink(), Program()
    with TrainingHooks(sink, program.model, layers=True) as training:
        training.end_iteration()  # From here on, optimizer steps end none.
        sink.take()
        stories = []
        for _ in range(repetitions + 1):
            sink.stays.clear()
            program.run(operations)
            training.end_iteration()
            stories.append((sink.take(), list(sink.stays)))
    assert all(story == stories[0] for story in stories)
