"""`stalloc fits`: kinds of programs whose operators or optimizers need an answer of their own."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from isolation import isolated
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import stalloc
from stalloc._estimate.arguments import ROWS, TOKENS, find, steps

LENGTHS = (9, 7, 4, 4)
WIDTH = 64


@isolated
def test_torchscript_compiles_operators_under_their_names() -> None:
    def build() -> Any:
        model = nn.Linear(8, 8).cuda()

        @torch.jit.script
        def scaled(x: Tensor) -> Tensor:
            return torch.where(torch.isfinite(x), x, torch.tensor(2.0, device=x.device))

        def step() -> None:
            scaled(model(torch.zeros(4, 8, device="cuda"))).sum().backward()

        return step

    assert stalloc.estimate(build, plan=False).parts["gradients"] == (8 * 8 + 8) * 4


@isolated
def test_an_optimizer_of_several_processes_may_be_imported_late() -> None:
    assert "torch.distributed.optim" not in sys.modules

    def build() -> Any:
        torch.distributed.init_process_group("nccl")
        from torch.distributed.optim import ZeroRedundancyOptimizer

        model = nn.parallel.DistributedDataParallel(nn.Sequential(*made(4)).cuda())
        optimizer: Any = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3
        )

        def step() -> None:
            model(torch.zeros(4, 64, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    def made(count: int) -> list[nn.Module]:
        return [nn.Linear(64, 64, bias=False) for _ in range(count)]

    parts = stalloc.estimate(build, world=4, plan=False).parts
    states = 2 * 64 * 64 * 4
    assert states <= parts["optimizer states"] < states + 64  # of one of the four layers


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
@isolated
def test_packed_sequences_have_the_lengths_that_the_host_knows(kind: Any) -> None:
    shapes: list[torch.Size] = []

    def build() -> Any:
        model = kind(WIDTH, WIDTH, 2, batch_first=True).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            rows = torch.zeros(len(LENGTHS), max(LENGTHS), WIDTH, device="cuda")
            packed = pack_padded_sequence(rows, torch.tensor(LENGTHS), batch_first=True)
            output, _ = model(packed)
            padded, _ = pad_packed_sequence(output, batch_first=True)
            shapes.extend([packed.data.shape, padded.shape])
            padded.sum().backward()
            optimizer.step()

        return step

    estimate = stalloc.estimate(build, plan=False)
    assert shapes[:2] == [(sum(LENGTHS), WIDTH), (len(LENGTHS), max(LENGTHS), WIDTH)]
    assert not estimate.guesses


@isolated
def test_gradients_reach_every_weight_of_a_gru() -> None:
    found: list[bool] = []

    def build() -> Any:
        model = nn.GRU(WIDTH, WIDTH).cuda()

        def step() -> None:
            model(torch.zeros(5, 4, WIDTH, device="cuda"))[0].sum().backward()
            found.append(
                all(p.grad is not None and p.grad.shape == p.shape for p in model.parameters())
            )

        return step

    stalloc.estimate(build, plan=False)
    assert all(found)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@isolated
def test_history_of_lbfgs_is_full(search: str | None) -> None:
    def states(history: int) -> int:
        def build() -> Any:
            model = nn.Linear(256, 256, bias=False).cuda()
            optimizer: Any = torch.optim.LBFGS(
                model.parameters(), history_size=history, max_iter=3, line_search_fn=search
            )

            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = model(torch.zeros(4, 256, device="cuda")).square().mean()
                loss.backward()
                return loss

            def step() -> None:
                optimizer.step(closure)

            return step

        estimate = stalloc.estimate(build, plan=False)
        assert ("updates in the history of L-BFGS", str(history)) in {
            (guess.read, guess.value) for guess in estimate.guesses
        }
        return estimate.load

    pair = 2 * 256 * 256 * 4
    assert states(40) - states(20) == pytest.approx(20 * pair, rel=0.01)


@isolated
def test_convolutions_may_have_workspaces() -> None:
    def made(model: nn.Module, *shape: int) -> Any:
        def build() -> Any:
            model.cuda()
            return lambda: model(torch.zeros(shape, device="cuda")).sum().backward()

        return {extra.name: extra for extra in stalloc.estimate(build, plan=False).extras}

    convolved = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1))
    extra = made(convolved, 2, 3, 16, 16)["cuDNN's workspaces"]
    pixels = 2 * 16 * 16
    first, second = 3 * 8 * 9 + pixels * (3 + 8), 8 * 4 + pixels * (8 + 4)
    assert (extra.low, extra.high) == (0, 4 * max(first, second))
    assert "cuDNN's workspaces" not in made(nn.Linear(8, 8), 2, 8)


@isolated
def test_scratch_memory_without_a_law_does_not_hide_the_largest_batch() -> None:
    def build(rows: int) -> Any:
        model = nn.Sequential(nn.Embedding(5000, WIDTH), nn.Linear(WIDTH, 512)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            batch = torch.zeros(rows, 256, dtype=torch.int64, device="cuda")
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    # The rows that sort the gradients of an embedding are rounded to tens, and to the vocabulary.
    found = stalloc.largest(build, (16, 24, 32), gpu="1GiB")
    assert found.estimate.fits
    assert found.proven < 1
    assert not stalloc.estimate(lambda: build(found.value + 16), gpu="1GiB", plan=False).fits


@isolated
def test_laws_that_promise_too_much_are_taken_back() -> None:
    recorded: list[int] = []

    def build(rows: int) -> Any:
        recorded.append(rows)
        model = nn.Linear(1024, 1024).cuda()
        more = 4 if rows > 256 else 1  # a program of another kind for large batches

        def step() -> None:
            model(torch.zeros(rows * more, 1024, device="cuda")).sum().backward()
            model.zero_grad()

        return step

    found = stalloc.largest(build, (64, 128, 192), gpu="1GiB")
    assert found.value in recorded
    assert found.estimate.fits
    assert found.value < max(recorded)


@pytest.mark.parametrize(
    ("given", "names", "changed"),
    [
        ("--batch-size 8 --lr 3", ROWS, "--batch-size 5 --lr 3"),
        ("--seq_len=1024 -b 4", TOKENS, "--seq_len=5 -b 4"),
        ("--training.seq-len=64", TOKENS, "--training.seq-len=5"),
        ("block_size=128 x=1", TOKENS, "block_size=5 x=1"),
    ],
)
def test_an_extent_is_changed_where_it_is_given(
    given: str, names: tuple[str, ...], changed: str
) -> None:
    option = find(given.split(), names)
    assert option is not None
    assert option.changed(given.split(), 5) == changed.split()


@pytest.mark.parametrize("value", [1, 2, 3, 4, 6, 1000, 1024])
def test_values_have_equal_steps(value: int) -> None:
    tries = steps(value)
    for first, second, third in tries:
        assert 0 < first < second < third
        assert second - first == third - second
    assert len(tries) == 1 or tries[-2][0] <= value


@isolated
def test_parameters_may_be_made_without_memory_by_their_type() -> None:
    """Transformers and Accelerate load models so."""

    def build() -> Any:
        layer = nn.Linear(64, 64)
        values = {name: torch.zeros_like(p) for name, p in layer.named_parameters()}
        for name, p in layer.named_parameters():
            keywords = vars(p) | {"requires_grad": p.requires_grad}
            layer.register_parameter(name, type(p)(p.to("meta"), **keywords))
        layer.load_state_dict(values, assign=True)
        layer.cuda()

        def step() -> None:
            layer(torch.zeros(8, 64, device="cuda")).sum().backward()
            layer.zero_grad()
            stalloc.step()

        return step

    found = stalloc.estimate(build, gpu="1GiB", plan=False)
    assert found.parts["weights and buffers"] == 4 * (64 * 64 + 64)
