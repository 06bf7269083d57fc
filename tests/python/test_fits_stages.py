"""`stalloc fits --rank stages`: one rank of each stage of a pipeline."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from documented import documented_keys
from isolation import isolated
from processes import python
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import stalloc
from stalloc._estimate.mail import Mail
from stalloc.errors import StallocError

_distributed: Any = dist
_pipelining: Any = pipelining
_shard: Any = fully_shard
ROWS, STAGES = 512, 4
WIDTHS = (256, 512, 128, 64, 1024)
"""The width of what each stage gets, and of what the last one makes."""


def scheduled(name: str, degree: int = 1, examples: bool = True) -> Callable[[], Any]:
    """Stages of different widths, each of which `degree` ranks share."""

    def build() -> Any:
        _distributed.init_process_group("nccl")
        mesh: Any = init_device_mesh("cuda", (STAGES, degree), mesh_dim_names=("pp", "dp"))
        chunks = 2 if name == "ScheduleInterleaved1F1B" else 1
        place, device = (
            mesh["pp"].get_local_rank(),
            torch.device("cuda", torch.cuda.current_device()),
        )
        numbers = [place + STAGES * i for i in range(chunks)]
        # Interleaved stages are all alike.
        widths = [256] * 9 if chunks > 1 else list(WIDTHS)
        models: list[Any] = [nn.Linear(widths[n], widths[n + 1]).to(device) for n in numbers]
        if degree > 1:
            for model in models:
                _shard(model, mesh=mesh["dp"])
        stages = []
        for n, model in zip(numbers, models, strict=True):
            rows, given = ROWS // 8, {}
            if examples:
                given = {
                    "input_args": torch.zeros(rows, widths[n], device=device, requires_grad=n > 0),
                    "output_args": torch.zeros(
                        rows, widths[n + 1], device=device, requires_grad=True
                    ),
                }
            group = mesh.get_group("pp")
            stages.append(
                _pipelining.PipelineStage(model, n, STAGES * chunks, device, group=group, **given)
            )
        schedule = getattr(_pipelining, name)(
            stages if chunks > 1 else stages[0], 8, loss_fn=lambda y, t: (y - t).square().mean()
        )
        optimizer = torch.optim.Adam([p for m in models for p in m.parameters()])

        def step() -> None:
            x = (torch.zeros(ROWS, widths[0], device=device),) if place == 0 else ()
            target = {}
            if place == STAGES - 1:
                target = {"target": torch.zeros(ROWS, widths[STAGES * chunks], device=device)}
            schedule.step(*x, **target)
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


@isolated
@pytest.mark.parametrize("name", ["Schedule1F1B", "ScheduleInterleaved1F1B", "ScheduleGPipe"])
def test_each_stage_is_what_its_rank_is_alone(name: str) -> None:
    build = scheduled(name)
    found = stalloc.estimate_stages(build, world=STAGES, gpu="H100", plan=False)
    assert [stage.rank for stage in found.stages] == list(range(STAGES))
    for stage in found.stages:
        alone = stalloc.estimate(build, world=STAGES, rank=stage.rank, gpu="H100", plan=False)
        assert stage.estimate == alone
    assert found.fits


@isolated
@pytest.mark.parametrize("degree", [2, 16])
def test_ranks_that_share_a_stage_have_one_representative(degree: int) -> None:
    world = STAGES * degree
    found = stalloc.estimate_stages(scheduled("Schedule1F1B", degree), world=world, plan=False)
    assert [stage.rank for stage in found.stages] == [degree * n for n in range(STAGES)]
    loads = {stage.estimate.load for stage in found.stages if stage.estimate is not None}
    assert len(loads) == STAGES
    highs = [stage.estimate.need().high for stage in found.stages if stage.estimate is not None]
    assert found.largest() == found.stages[highs.index(max(highs))]
    assert found.fits is None


@isolated
def test_a_stage_gets_the_shapes_that_the_one_before_sends() -> None:
    told, asked = (
        stalloc.estimate_stages(
            scheduled("Schedule1F1B", examples=examples), world=STAGES, plan=False
        )
        for examples in (True, False)
    )
    assert len(asked.stages) == STAGES
    for one, other in zip(told.stages, asked.stages, strict=True):
        assert one.estimate is not None
        assert other.estimate is not None
        assert one.estimate.load == other.estimate.load


def written(shapes: str) -> Callable[[], Any]:
    """A pipeline of blocking sends, whose stages tell each other how wide what they send is."""

    def told(y: Any, target: int) -> None:
        if shapes == "objects":
            _distributed.send_object_list([tuple(y.shape), y.dtype], dst=target)
        else:
            place = "cuda" if shapes == "gpu" else "cpu"
            group = None if shapes == "gpu" else hosts[0]
            _distributed.send(torch.tensor(y.shape).to(place), target, group=group)

    def asked(source: int) -> tuple[int, ...]:
        if shapes == "objects":
            got: list[Any] = [None, None]
            assert _distributed.recv_object_list(got, src=source) == source
            assert got[1] == torch.float32
            return tuple(got[0])
        group = None if shapes == "gpu" else hosts[0]
        shape = torch.zeros(2, dtype=torch.long, device="cuda" if shapes == "gpu" else "cpu")
        _distributed.recv(shape, source, group=group)
        return tuple(shape.tolist())

    hosts: list[Any] = []

    def build() -> Any:
        _distributed.init_process_group("nccl")
        hosts[:] = [_distributed.new_group(backend="gloo")]
        rank, last = _distributed.get_rank(), _distributed.get_world_size() - 1
        layer = nn.Linear(WIDTHS[rank], WIDTHS[rank + 1], device="cuda")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

        def step() -> None:
            if rank == 0:
                x = torch.zeros(ROWS, WIDTHS[0], device="cuda")
            else:
                x = torch.zeros(asked(rank - 1), device="cuda", requires_grad=True)
                _distributed.recv(x, rank - 1)
            y = layer(x)
            if rank < last:
                told(y, rank + 1)
                _distributed.send(y, rank + 1)
                gradient = torch.empty_like(y)
                _distributed.recv(gradient, rank + 1)
                y.backward(gradient)
            else:
                y.square().mean().backward()
            if rank > 0:
                _distributed.send(x.grad, rank - 1)
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


@isolated
@pytest.mark.parametrize("shapes", ["objects", "gpu", "host"])
def test_a_stage_gets_the_values_that_the_one_before_sends(shapes: str) -> None:
    found = stalloc.estimate_stages(written(shapes), world=STAGES, plan=False)
    assert [stage.reason for stage in found.stages] == [""] * STAGES
    for n, stage in enumerate(found.stages):
        assert stage.estimate is not None
        weights = 4 * (WIDTHS[n] * WIDTHS[n + 1] + WIDTHS[n + 1])
        activations = 4 * ROWS * (WIDTHS[n] + WIDTHS[n + 1])
        assert stage.estimate.iterations == 3
        assert (
            2 * weights + activations <= stage.estimate.load < 3 * (weights + activations) + 2**26
        )


@isolated
def test_a_rank_alone_does_not_know_the_objects_of_others() -> None:
    with pytest.raises(StallocError, match="--rank stages"):
        stalloc.estimate(written("objects"), world=STAGES, rank=1, plan=False)


def test_a_rank_that_runs_again_sends_and_receives_all_again() -> None:
    mail, fixed = Mail(), (n for n in "abc")  # a generator cannot be copied
    route = ((0, 1), 0, 1)
    for _ in range(2):
        mail.begin(0)
        for message in ("first", None, fixed, ["last"]):
            mail.send(route, message)
        for _ in range(2):
            mail.begin(1)
            assert [mail.receive(route) for _ in range(5)] == ["first", None, None, ["last"], None]


@isolated
def test_ranks_that_only_share_a_model_are_no_stages() -> None:
    def build() -> Any:
        _distributed.init_process_group("nccl")
        if _distributed.get_rank() == 0:
            for other in range(1, 8):
                place = torch.device("cuda", 0)
                _distributed.send_object_list([{"seed": 1}], dst=other, device=place)
        hosts = _distributed.new_group(backend="gloo")
        model: Any = _shard(nn.Linear(64, 64, device="cuda"))

        def step() -> None:
            _distributed.send(torch.zeros(2), 1, group=hosts)
            loss = model(torch.zeros(8, 64, device="cuda")).sum()
            loss.backward()
            _distributed.all_reduce(loss)

        return step

    found = stalloc.estimate_stages(build, world=8, gpu="H100", plan=False)
    assert [stage.rank for stage in found.stages] == [0]
    assert found.fits


@isolated
def test_a_stage_that_fails_leaves_the_others_their_answers() -> None:
    def build() -> Any:
        step = scheduled("Schedule1F1B")()
        if _distributed.get_rank() == 2:
            raise StallocError("broken")
        return step

    found = stalloc.estimate_stages(build, world=STAGES, gpu="H100", plan=False)
    # Rank 2 would have told of rank 3.
    assert [(stage.rank, stage.reason) for stage in found.stages] == [
        (0, ""),
        (1, ""),
        (2, "broken"),
    ]
    assert [stage.rank for stage in found.failed] == [2]
    assert found.fits is None
    small = stalloc.estimate_stages(build, world=STAGES, gpu="500MiB", plan=False)
    assert small.fits is False


SCRIPT = """
import argparse, torch, torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--broken", type=int, default=-1)
parser.add_argument("--alone", action="store_true")
parser.add_argument("--batch-size", type=int, default=256)
args = parser.parse_args()
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
stage, last = (rank, size - 1) if not args.alone else (0, 0)
if rank == args.broken:
    raise RuntimeError("no such stage")

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(512, 4096), nn.GELU(), nn.Linear(4096, 512))
    def forward(self, x):
        return x + self.net(x)

model = nn.Sequential(*(Block() for _ in range(2 + 16 * stage))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    x = torch.zeros(args.batch_size, 512, device="cuda", requires_grad=stage > 0)
    if stage > 0:
        dist.recv(x, rank - 1)
    y = model(x)
    if stage < last:
        dist.send(y, rank + 1)
        gradient = torch.empty_like(y)
        dist.recv(gradient, rank + 1)
        y.backward(gradient)
    else:
        y.square().mean().backward()
    if stage > 0:
        dist.send(x.grad, rank - 1)
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(name="fits")
def _fits(tmp_path: Path) -> Callable[..., Any]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def run(
        *options: str, gpu: str = "80GiB", script_options: tuple[str, ...] = (), code: int = 0
    ) -> Any:
        given = ("--gpu", gpu, *options, str(script), *script_options)
        return python("-m", "stalloc", "fits", *given, code=code)

    return run


def test_the_command_has_a_line_for_each_stage_and_the_largest_decides(fits: Any) -> None:
    done = fits("--world", "3", "--rank", "stages")
    lines = [line.split() for line in done.stdout.splitlines()]
    rows = [line for line in lines if line and line[-1] == "fits" and line[0].isdecimal()]
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert "Rank 2 needs the most" in done.stdout
    answer = json.loads(fits("--world", "3", "--rank", "stages", "--json").stdout)
    keys = documented_keys()
    assert set(answer) == keys["fits"] | {"rank", "stages"}
    assert answer["rank"] == 2
    assert all(set(stage) == keys["stages[] of fits"] for stage in answer["stages"])
    loads = [stage["load"] for stage in answer["stages"]]
    assert loads == sorted(set(loads))
    assert answer["load"] == loads[2]
    # A card that holds the first stage, and not the last one.
    first, last = (answer["stages"][n]["needs"][0]["high"] for n in (0, 2))
    options = ("--world", "3", "--rank", "stages", "--json")
    answer = json.loads(fits(*options, gpu=f"{(first + 8 * 2**20) // 2**20}MiB", code=1).stdout)
    assert first < last
    assert [stage["verdict"] == "fits" for stage in answer["stages"]] == [True, False, False]
    assert answer["verdict"] != "fits"


def test_a_program_without_a_pipeline_has_one_rank(fits: Any) -> None:
    done = fits("--world", "3", "--rank", "stages", script_options=("--alone",))
    assert "No pipeline was seen" in done.stdout
    assert "stands for all 3" in " ".join(done.stdout.split())


def test_a_stage_that_fails_is_named(fits: Any) -> None:
    options = ("--world", "3", "--rank", "stages")
    broken = ("--broken", "1")
    done = fits(*options, script_options=broken, code=2)
    assert "no answer" in done.stdout
    assert done.stderr.splitlines()[-1].startswith(
        "stalloc fits: no answer: rank 1: train.py:14: the script failed here: RuntimeError"
    )
    assert "Traceback" not in done.stderr
    answer = json.loads(fits(*options, "--json", script_options=broken, code=2).stdout)
    assert answer["verdict"] is None
    assert [stage["verdict"] for stage in answer["stages"]] == ["fits", None]
    assert fits(*options, script_options=("--broken", "0"), code=2).stdout == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--rank", "stages"), "give --world"),
        (("--world", "3", "--rank", "stages", "--largest", "rows"), "--largest goes with one rank"),
        (("--world", "3", "--rank", "first"), "neither a rank nor stages"),
        (("--world", "3", "--rank", "3"), "rank 3: there are 3 processes"),
    ],
)
def test_what_cannot_be_combined_is_refused(
    fits: Any, options: tuple[str, ...], message: str
) -> None:
    done = fits(*options, code=2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_advice_and_files_are_those_of_stages(fits: Any, tmp_path: Path) -> None:
    folder = tmp_path / "plans"
    options = ("--world", "2", "--rank", "stages")
    done = fits(*options, "--profile", str(folder))
    names = sorted(path.name for path in folder.iterdir())
    assert names == [f"rank{n}.{kind}.json" for n in (0, 1) for kind in ("plan", "trace")]
    assert str(folder) in done.stdout
    assert "rank0.trace.json" in fits(*options, "--profile", str(folder), code=2).stderr
    answer = json.loads(fits(*options, "--advise", "--json").stdout)
    assert answer["rank"] == 1
    assert answer["advice"][0]["means"] == []
    # The stage that needs the most is recorded again with means.
    high = answer["needs"][0]["high"]
    answer = json.loads(
        fits(*options, "--advise", "--json", gpu=f"{high // 2**20 - 60}MiB", code=1).stdout
    )
    assert answer["rank"] == 1
    assert answer["advice"]
