"""Programs of torch's CUDA graph trees run under stalloc as they do without it.

`torch.compile(backend="cudagraphs")` records trees of graphs, and needs no kernel of its own. Each
program runs in processes of its own: with torch's allocator, under a plan, under a plan with graphs
that share memory, and under `stalloc.auto`. In each step the same graphs are captured and replayed,
and the run has no more memory than with torch's allocator. What graphs compute is not seen here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import standin
import torch
from isolation import run_isolated
from torch import Tensor
from torch.nn import Parameter
from training_cuda import Model

import stalloc

STEPS = 12
WIDTH = 4096
SMALL = 2 << 20  # bytes of a segment for small tensors, beside the pool
SCALE = 8  # activations get segments of their own size

Step = Callable[[int], None]


def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(function, backend="cudagraphs", dynamic=False)


class Program:
    """Trains a model in steps, from whose graphs programs differ."""

    def __init__(self) -> None:
        self.model = Model(WIDTH, layers=3).cuda()
        self.call = compiled(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.kept: list[Tensor] = []

    def train(self, rows: int) -> None:
        """A forward, a backward and an optimizer step."""
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.empty(rows * SCALE, WIDTH, device="cuda")
        self.call(x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def trains(self, _step: int) -> None:
        self.train(512)

    def changes_shapes(self, step: int) -> None:
        """Three shapes by turns, each with its own recordings."""
        self.train((256, 384, 512)[step % 3])

    def keeps_outputs(self, step: int) -> None:
        """Outputs that live on let the next call go to another place of the tree."""
        self.train(256)
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            x = torch.empty(128 * SCALE, WIDTH, device="cuda")
            first = self.call(x)
            second = self.call(x)  # in one generation, the first output lives
            if step % 2:
                del first
            third = self.call(x)
            assert second.data_ptr() != third.data_ptr()
            self.kept = [second.clone(), *self.kept[:1]]

    def records_anew(self, step: int) -> None:
        """A graph has the addresses of the weights, which move at times."""
        if step in (4, 6):
            for block in self.model.blocks:
                block.scale = Parameter(block.scale.detach().clone())
            self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.train(256)

    def evaluates(self, step: int) -> None:
        """Eager evaluations between steps whose graphs hold memory."""
        self.train(256)
        if step % 3 == 2:
            with torch.no_grad():
                self.model(torch.empty(640 * SCALE, WIDTH, device="cuda"))


PROGRAMS = [name for name in vars(Program) if not name.startswith("_") and name != "train"]


def counted(step: Step, steps: int, first: int = 0) -> Iterator[tuple[int, int]]:
    """The graphs that are captured and replayed in each step."""
    calls = ("cudaStreamBeginCapture", "cudaGraphLaunch")
    for number in range(first, first + steps):
        before = [standin.calls(call) for call in calls]
        step(number)
        stalloc.step()
        captures, launches = (standin.calls(c) - b for c, b in zip(calls, before, strict=True))
        yield captures, launches


def leave_plan(name: str, path: Path) -> None:
    """Saves the plan of a program."""
    program = Program()
    with stalloc.profile(program.model, device="cuda") as prof:
        for _ in counted(getattr(program, name), 2 * STEPS):
            pass
    prof.plan().save(path)


def run(way: str, name: str, plan: Path | None = None) -> tuple[list[tuple[int, int]], int, int]:
    """Runs a program. Returns its graphs by step, their number, and the peak of reserved bytes."""
    if way == "auto":
        stalloc.auto(device="cuda")
    program = Program()
    step: Step = getattr(program, name)
    if way == "planned, shared":
        stalloc.share_graphs()
    if plan is not None:
        stalloc.enable(stalloc.Plan.load(plan), model=program.model)
    graphs = list(counted(step, 2 * STEPS))
    while way == "auto" and stalloc.status()["stage"] not in ("serving", "resting"):
        graphs += counted(step, STEPS, len(graphs))
        assert len(graphs) < 10_000, stalloc.status()
    hits = stalloc.memory_stats()["hits"] if way != "torch" else 0
    graphs += counted(step, STEPS, len(graphs))
    if plan is not None:
        assert stalloc.memory_stats()["hits"] >= hits + STEPS, "the plan serves what is eager"
    from torch._inductor import cudagraph_trees

    manager = cudagraph_trees.get_manager(0, create_if_none_exists=False)
    assert manager is not None
    made = next(manager.graph_counter)
    torch.cuda.synchronize()
    assert standin.hazards() == 0, standin.complaint()
    assert standin.misuses() == 0, standin.complaint()
    return graphs, made, torch.cuda.max_memory_reserved()


@pytest.mark.parametrize("name", PROGRAMS)
def test_graph_trees_are_the_same_and_need_no_more(name: str, tmp_path: Path) -> None:
    expected, made, reserved = run_isolated(run, "torch", name)
    assert made > 0
    assert any(launches for _, launches in expected)
    plan = tmp_path / "plan.json"
    run_isolated(leave_plan, name, plan)
    for way, its_plan in (("planned", plan), ("planned, shared", plan), ("auto", None)):
        graphs, its, most = run_isolated(run, way, name, its_plan)
        # Hooks that auto adds to the modules in the first step let torch compile once more.
        assert way == "auto" or (graphs[: len(expected)], its) == (expected, made), way
        assert graphs[-STEPS:] == expected[-STEPS:], way
        assert most <= reserved + SMALL, way
