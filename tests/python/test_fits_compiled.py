"""`stalloc fits`: a program that `torch.compile` compiles requests what its code requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fits_scripts import LANGUAGE
from isolation import isolated
from processes import python
from torch import Tensor, nn

import stalloc

Step = Callable[[], None]
_compile: Any = torch.compile

WIDTH, ROWS = 512, 1024
TENSOR = ROWS * WIDTH * 4


class Block(nn.Module):
    """A product, and elementwise functions that eager autograd keeps four results of."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return (y.tanh() * y.sigmoid()).exp()


def training(
    change: Callable[[nn.Module], Any], count: int = 4, width: int = WIDTH
) -> Callable[[], Step]:
    def build() -> Step:
        model = change(nn.Sequential(*(Block(width) for _ in range(count))).cuda())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            model(torch.zeros(ROWS, width, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


def estimated(change: Callable[[nn.Module], Any] = torch.compile, **options: int) -> Any:
    return stalloc.estimate(training(change, **options), plan=False)


def said(estimate: Any) -> list[str]:
    return [guess.value for guess in estimate.guesses if guess.read == "torch.compile"]


def kept(change: Callable[[nn.Module], Any]) -> int:
    """Tensors that each further block keeps for the backward."""
    few, many = (estimated(change, count=count).parts["activations"] for count in (2, 6))
    assert (many - few) % (4 * TENSOR) == 0
    return int(many - few) // (4 * TENSOR)


@isolated
def test_compiled_blocks_keep_what_their_kernels_read_again() -> None:
    # tanh, sigmoid, their product's exponential: which is the next block's input, too.
    assert kept(lambda model: model) == 3
    # The product, of which a kernel computes everything again, and the next block's input.
    assert kept(torch.compile) == 2


@isolated
def test_a_compiled_program_is_a_range_and_says_so() -> None:
    plain, compiled = estimated(lambda model: model), estimated()
    assert compiled.load < plain.load
    assert not said(plain)
    assert said(compiled) == ["the requests of Inductor's code; its kernels do not run"]
    trials = {extra.name: extra for extra in compiled.extras}["torch.compile's trials"]
    assert (trials.low, trials.high) == (0, 256 << 20)
    assert {extra.name for extra in plain.extras} < {extra.name for extra in compiled.extras}


@isolated
def test_products_that_a_gpu_may_pad_are_in_the_range() -> None:
    padded = {extra.name: extra for extra in estimated(width=510).extras}
    assert padded["torch.compile's padding"].high == 4 * (2 * ROWS * 512 + 512 * 512)
    assert "torch.compile's padding" not in {extra.name for extra in estimated().extras}


@isolated
def test_compiled_parts_and_their_settings() -> None:
    def blocks(model: Any) -> Any:
        for block in model:
            block.compile(fullgraph=True)
        return model

    def decorated(model: Any) -> Any:
        for block in model:
            block.forward = _compile(mode="max-autotune")(block.forward)
        return model

    whole = estimated().load
    assert estimated(blocks).load == whole
    assert estimated(decorated).load == whole
    assert "tuned" in said(estimated(decorated))[0]
    assert estimated(lambda model: _compile(model, mode="reduce-overhead")).load == whole
    assert not said(estimated(lambda model: _compile(model, disable=True)))


@isolated
def test_layers_share_their_code() -> None:
    from torch._dynamo.utils import counters

    def each(model: Any) -> Any:
        for block in model:
            block.compile(fullgraph=True)
        return model

    counted = []
    for count in (2, 12):
        counters.clear()
        estimated(each, count=count)
        counted.append(counters["stats"]["unique_graphs"])
    # The first layer's input needs no gradient.
    assert counted == [2, 2]


@isolated
def test_the_first_iteration_has_one_backward() -> None:
    trace = estimated().trace
    backwards = [
        int(trace.phases.iteration[i]) for i, kind in enumerate(trace.phases.kind) if kind == 2
    ]
    assert backwards == [0, 1, 2]


@isolated
def test_a_part_that_cannot_be_compiled_runs_as_it_is() -> None:
    from torch._inductor import compile_fx

    def failing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no such kernel\nand much more")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_fx, "compile_fx", failing)
        compiled = estimated()
    assert compiled.load == estimated(lambda model: model).load
    assert said(compiled) == ["a part as it is, for RuntimeError: no such kernel"]


@isolated
def test_nothing_of_it_remains() -> None:
    from torch._subclasses.functional_tensor import FunctionalTensor

    before = (
        torch.compile,
        FunctionalTensor.__torch_dispatch__,
        torch._dynamo.config.suppress_errors,
    )
    estimated()
    after = torch.compile, FunctionalTensor.__torch_dispatch__, torch._dynamo.config.suppress_errors
    assert before == after
    compiled: Any = _compile(nn.Linear(4, 4), backend="aot_eager")
    assert compiled(torch.ones(2, 4)).sum().requires_grad


def test_script_that_compiles_is_answered(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LANGUAGE)
    done = python("-m", "stalloc", "fits", "--gpu", "H100", "--json", "train.py", cwd=tmp_path)
    answer = json.loads(done.stdout)
    found = {guess["value"] for guess in answer["guesses"] if guess["read"] == "torch.compile"}
    assert found == {"the requests of Inductor's code; its kernels do not run"}
    assert "Traceback" not in done.stderr


@isolated
@pytest.mark.parametrize("way", ["replicated", "sharded"])
def test_models_of_several_processes_are_compiled(way: str) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    distributed: Any = dist

    def change(model: Any) -> Any:
        distributed.init_process_group("nccl")
        if way == "replicated":
            return _compile(nn.parallel.DistributedDataParallel(model, device_ids=[0]))
        for block in model:
            block.compile()
            fully_shard(block)
        return fully_shard(model)

    estimate = stalloc.estimate(training(change), world=4, plan=False)
    assert set(said(estimate)) == {"the requests of Inductor's code; its kernels do not run"}


@isolated
def test_recomputed_blocks_are_compiled() -> None:
    from torch.utils.checkpoint import checkpoint

    class Recomputed(nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            for block in self.model:
                y = nn.functional.dropout(block(x), 0.1)
                x = checkpoint(block, y, use_reentrant=False)
            return x

    estimate = estimated(lambda model: _compile(Recomputed(model)))
    assert set(said(estimate)) == {"the requests of Inductor's code; its kernels do not run"}
