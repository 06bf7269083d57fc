"""torch.compile with CUDA graphs: torch's graph trees over the allocator, with plans coming in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import standin
import torch
from torch import Tensor
from training_cuda import Trainer

import stalloc

# torch captures an empty graph itself, to have a pool, and says nothing unless warnings are errors.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The CUDA Graph is empty", "ignore:Using `torch.compile"
)

Maker = Callable[[torch.nn.Module], torch.nn.Module]


def reduce_overhead(model: torch.nn.Module) -> torch.nn.Module:
    return torch.compile(model, mode="reduce-overhead")  # type: ignore[return-value]


def graphs_alone(model: torch.nn.Module) -> torch.nn.Module:
    return torch.compile(model, backend="cudagraphs")  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch.compiler.reset()


def private_segments() -> list[tuple[int, int]]:
    """The segments of graphs: their begins and ends."""
    return [
        (s["address"], s["address"] + s["total_size"])
        for s in torch.cuda.memory_snapshot()
        if tuple(s["segment_pool_id"]) != (0, 0)
    ]


@pytest.mark.parametrize("compiled", [reduce_overhead, graphs_alone])
@pytest.mark.parametrize("warm", [False, True])
def test_training_with_graphs_under_a_plan(compiled: Maker, warm: bool) -> None:
    trainer = Trainer(microbatches=1, rows=64)
    trainer.model = compiled(trainer.model)
    if warm:  # what graphs hold then has been torch's from before stalloc came
        for _ in range(3):
            trainer.step()
    plan = trainer.plan(steps=4)
    stalloc.enable(plan, model=trainer.model)
    for _ in range(3):
        trainer.step()
    settled, replays = stalloc.memory_stats(), standin.calls("cudaGraphLaunch")
    for _ in range(3):
        trainer.step()
    stats = stalloc.memory_stats()
    assert standin.calls("cudaGraphLaunch") - replays == 6, "a forward and a backward a step"
    # Before 2.12 this backend keeps the input of the call that it compiles, for good, in its place.
    kept = compiled is graphs_alone and not warm and torch.__version__ < "2.12"
    assert stats["hits"] - settled["hits"] == 3 * (stats["planned"] - kept) > 0
    pool = [s for s in torch.cuda.memory_snapshot() if s["total_size"] == plan.pool]
    begin, end = pool[0]["address"], pool[0]["address"] + plan.pool
    assert private_segments()
    assert all(b >= end or e <= begin for b, e in private_segments())
    stalloc.disable()
    trainer.step()


@pytest.mark.parametrize("enabled_first", [False, True])
def test_a_tree_goes_back_to_where_its_branches_part(enabled_first: bool) -> None:
    """Storages of the path that is left lose their deleter, those of the other get one."""
    trainer = Trainer(microbatches=1, rows=16)
    plan = trainer.plan()

    def compiled(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return torch.compile(function, backend="cudagraphs")

    stem = compiled(lambda x: x * 2 + 1)
    branches = [compiled(lambda x: x.tanh() * 3), compiled(lambda x: x.exp() - x)]
    x = torch.empty(256, 1000, device="cuda")

    def run(branch: int) -> None:
        torch.compiler.cudagraph_mark_step_begin()
        middle = stem(x)
        first = branches[branch](middle)
        second = branches[1 - branch](middle)
        del middle
        assert first.data_ptr() != second.data_ptr()

    def run_all() -> None:
        with torch.no_grad():
            for branch in (0, 0, 0, 1, 1, 0, 1):
                run(branch)

    if enabled_first:
        stalloc.enable(plan, model=trainer.model)
    run_all()
    if not enabled_first:
        stalloc.enable(plan, model=trainer.model)
        trainer.step()
    for _ in range(2):
        run_all()
        trainer.step()
    replays = standin.calls("cudaGraphLaunch")
    run_all()
    assert standin.calls("cudaGraphLaunch") > replays
    stalloc.disable()
    run_all()
