"""`stalloc fits --advise`: means with which a run fits, against runs that have them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from documented import documented_keys
from isolation import isolated, run_isolated
from processes import python
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

import stalloc
from stalloc._estimate import answer, nccl
from stalloc._estimate.accumulation import accumulated
from stalloc._estimate.answer import Estimate
from stalloc._estimate.arguments import divided
from stalloc._estimate.means import blocks_of

_distributed: Any = dist

WIDTH, ROWS, BLOCKS = 512, 8192, 6
FEW = 64  # rows, if weights and states are to be most of the load
MIB = 1 << 20


class Block(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.mlp(self.norm(x))
        return y


class Net(nn.Module):
    """Blocks, recomputed by the program itself or not."""

    def __init__(self, recomputed: bool = False, width: int = WIDTH) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(BLOCKS))
        self.head = nn.Linear(width, 16)
        self.recomputed = recomputed

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputed else block(x)
        y: Tensor = self.head(x)
        return y


class Momentum(torch.optim.Optimizer):
    """SGD with a momentum of any type."""

    def __init__(self, parameters: Any, dtype: torch.dtype) -> None:
        super().__init__(parameters, {"lr": 0.1, "dtype": dtype})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p, dtype=group["dtype"])
                state["momentum"].mul_(0.9).add_(p.grad)
                p.add_(state["momentum"], alpha=-group["lr"])


Build = Callable[[], Callable[[], None]]


def training(
    make: Callable[[], nn.Module],
    optimizer: Callable[[Any], Any] = torch.optim.AdamW,
    rows: int = ROWS,
    width: int = WIDTH,
    microbatches: int = 1,
) -> Build:
    def build() -> Callable[[], None]:
        model = make()
        steps = optimizer(model.parameters())

        def step() -> None:
            for _ in range(microbatches):
                model(torch.zeros(rows, width, device="cuda")).square().mean().backward()
            steps.step()
            steps.zero_grad()

        return step

    return build


def advice_for(build: Build, gpu: str) -> dict[tuple[str, ...], stalloc.Advice]:
    found = stalloc.advise(build, gpu=gpu)
    assert found == sorted(found, key=lambda advice: advice.cost)
    return {advice.means: advice for advice in found}


def card_for(reserved: int) -> str:
    """A card on which so much fits, and hardly more: with all extras."""
    return f"{(reserved + 520 * MIB) // MIB + 2}MiB"


def needed(build: Build, **settings: Any) -> stalloc.Estimate:
    return stalloc.estimate(build, gpu="80GiB", plan=False, **settings)


@isolated
def test_a_run_that_fits_needs_no_means() -> None:
    found = stalloc.advise(training(lambda: Net().cuda()), gpu="80GiB")
    assert [advice.means for advice in found] == [()]
    assert found[0].reserved == needed(training(lambda: Net().cuda())).reserved


@isolated
def test_recomputation_needs_what_a_program_with_checkpoints_needs() -> None:
    plain, replayed = (needed(training(lambda r=r: Net(r).cuda())) for r in (False, True))  # type: ignore[misc]
    assert replayed.reserved < plain.reserved / 2
    found = advice_for(training(lambda: Net().cuda()), card_for(replayed.reserved))
    advice = found["recomputation of all blocks",]
    assert advice.reserved == replayed.reserved
    # A forward is a third of the work, and one of a block's two products needs no replay: nothing
    # saves its result. The head is not replayed.
    assert 0.16 < advice.recomputed < 1 / 6
    assert not any("1 of" in name for means in found for name in means if len(means) == 1)


@isolated
def test_some_blocks_are_recomputed_if_that_suffices() -> None:
    plain = needed(training(lambda: Net().cuda())).reserved
    found = advice_for(training(lambda: Net().cuda()), card_for(plain - 100 * MIB))
    advice = found["recomputation of 1 of 4 blocks",]
    assert advice.reserved < plain
    assert 0.05 < advice.recomputed < 1 / 18  # two of six
    assert ("recomputation of all blocks",) not in found


@isolated
def test_activations_go_to_the_host_and_come_back() -> None:
    plain = needed(training(lambda: Net().cuda())).reserved
    found = advice_for(training(lambda: Net().cuda()), card_for(plain // 2))
    advice = found["activations on the host",]
    # Input and output of the norm, of the first layer and of the GELU, forth and back.
    saved = BLOCKS * ROWS * WIDTH * 4 * (1 + 1 + 4 + 4)
    assert advice.transferred == 2 * saved
    assert advice.recomputed == 0


@isolated
@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_states_of_16_bits_need_what_such_an_optimizer_needs(dtype: torch.dtype) -> None:
    def built(kind: torch.dtype) -> Build:
        return training(lambda: Net().cuda(), lambda parameters: Momentum(parameters, kind), FEW)

    halved = needed(built(dtype))
    found = advice_for(built(torch.float32), card_for(halved.reserved))
    assert found["states in bfloat16",].reserved == halved.reserved
    # They are of 16 bits already: that is no advice.
    again = advice_for(built(dtype), card_for(halved.reserved - 2 * MIB))
    assert not any("states in" in name for means in again for name in means)


@isolated
def test_shards_need_what_a_rank_needs() -> None:
    width = 2048

    def rank() -> nn.Module:
        _distributed.init_process_group("nccl")
        model: Any = Net(width=width)
        for block in model.blocks:
            fully_shard(block)
        return fully_shard(model)

    recorded = needed(training(rank, rows=FEW, width=width), world=4)
    build = training(lambda: Net(width=width).cuda(), rows=FEW, width=width)
    network = nccl.of_shards(4, (8, 0), 108)
    assert network is not None
    found = stalloc.advise(build, gpu=card_for(int(1.05 * recorded.reserved) + network.high))
    advice = {each.means: each for each in found}["all sharded over 4 GPUs",]
    assert advice.reserved == pytest.approx(recorded.reserved, rel=0.05)
    weights = sum(p.numel() * 4 for p in Net(width=width).parameters())
    assert advice.sent == pytest.approx(3 * weights * 3 / 4, rel=0.01)
    assert advice.gpus == 4


@isolated
def test_nothing_fits_a_tiny_card() -> None:
    assert stalloc.advise(training(lambda: Net().cuda()), gpu="600MiB") == []


def test_blocks_are_what_a_model_repeats() -> None:
    net = Net()
    assert blocks_of(net) == list(net.blocks)
    assert blocks_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))) == []
    nested = nn.Sequential(nn.Sequential(Block(), Block()), nn.Linear(2, 2), Net())
    assert blocks_of(nested) == [*nested[0], *nested[2].blocks]


@pytest.mark.parametrize(
    ("arguments", "number", "expected"),
    [
        (["--batch-size", "8", "--lr", "1"], 2, ["--batch-size", "4", "--lr", "1"]),
        (["--batch_size=8"], 4, ["--batch_size=2"]),
        (["trainer.batch_size=8"], 2, ["trainer.batch_size=4"]),
        (["-b", "6"], 2, ["-b", "3"]),
        (["-b", "6"], 4, None),
        (["--eval_batch_size", "8"], 2, None),
        (["--batch-size"], 2, None),
        (["data.json"], 2, None),
        (
            ["--batch", "3", "--per_device_train_batch_size", "8"],
            2,
            ["--batch", "3", "--per_device_train_batch_size", "4"],
        ),
    ],
)
def test_the_batch_of_a_script_is_divided(
    arguments: list[str], number: int, expected: list[str] | None
) -> None:
    assert divided(arguments, number) == expected


SCRIPT = """
import sys
import torch
sys.path.insert(0, {folder!r})
from test_fits_advice import Net, WIDTH

rows = int(sys.argv[sys.argv.index("--batch-size") + 1])
model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.zeros(rows, WIDTH, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def by_microbatches() -> int:
    build = training(lambda: Net().cuda(), rows=ROWS // 2, microbatches=2)
    return needed(build).reserved


@isolated
def test_summed_gradients_take_what_those_of_microbatches_do() -> None:
    def estimate(microbatches: int) -> Estimate:
        build = training(lambda: Net().cuda(), rows=ROWS // 2, microbatches=microbatches)
        return stalloc.estimate(build, gpu="1400MiB", plan=False)

    direct, summed = estimate(2), accumulated(estimate(1).trace)
    assert summed is not None
    for allocator in ("torch", "torch, expandable segments"):
        assert answer.reserved(summed, allocator) == direct.need(allocator).reserved


def test_a_script_is_advised(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parent)))
    command = ("-m", "stalloc", "fits", "--gpu", "1400MiB", "--advise")
    arguments = (str(script), "--batch-size", str(ROWS))
    done = python(*command, *arguments, code=1)
    lines = done.stdout.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("Means with which it fits"))
    assert lines[first + 2].startswith("accumulation of 2 microbatches")
    assert "checkpoint(block" in done.stdout
    found = json.loads(python(*command, "--json", *arguments, code=1).stdout)
    keys = documented_keys()
    assert set(found) == keys["fits"] | {"advice", "not_tried"}
    assert all(set(advice) == keys["advice[] of fits"] for advice in found["advice"])
    assert found["advice"][0]["means"] == ["accumulation of 2 microbatches"]
    assert found["advice"][0]["microbatches"] == 2
    # The program that does so: gradients live while the second microbatch runs.
    assert found["advice"][0]["reserved"] == pytest.approx(run_isolated(by_microbatches), rel=0.03)
    assert found["not_tried"] == []
    assert found["verdict"] == "does not fit"


def test_means_that_break_the_script_are_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = SCRIPT.format(folder=str(Path(__file__).parent))
    script.write_text(text + "    assert rows > 5000, 'too few rows'\n")
    arguments = (str(script), "--batch-size", str(ROWS))
    done = python("-m", "stalloc", "fits", "--gpu", "1400MiB", "--advise", *arguments, code=1)
    assert "Not tried: batches of 1/2: train.py:" in done.stdout
    assert "too few rows" in done.stdout
    assert "recomputation of" in done.stdout
