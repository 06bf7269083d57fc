"""Trains a small model with Colossal-AI's own schedules, or its Booster, on the CPU."""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from colossalai_package import load
from megatron_training import Result
from torch import Tensor, nn
from torch.nn import functional

import stalloc
import stalloc.colossalai

WIDTH = 32
ROWS = 8
MICROBATCHES = 4


@dataclass
class Settings:
    """What to train, and under what; as in megatron_training."""

    stages: int = 1
    chunks: int = 1
    iterations: int = 10
    mode: str | None = None
    folder: str | None = None


class Chunk(nn.Module):
    """Some layers; the first embed, and the last predict."""

    def __init__(self, first: bool, last: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, WIDTH) if first else None
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
        self.head = nn.Linear(WIDTH, 64) if last else None

    def forward(self, tokens: Tensor, hidden: Tensor | None = None, **_: Any) -> Any:
        x = self.embedding(tokens) if self.embedding is not None else hidden
        x = functional.gelu(self.layers(x))
        return self.head(x) if self.head is not None else {"hidden": x}


class Optimizer:
    """The part of Colossal-AI's OptimizerWrapper that schedules and users call."""

    def __init__(self, model: nn.Module) -> None:
        self.optim = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def backward_by_grad(self, tensor: Any, grad: Any) -> None:
        torch.autograd.backward(tensor, grad)

    def step(self) -> None:
        self.optim.step()

    def zero_grad(self) -> None:
        self.optim.zero_grad()


def train(settings: Settings) -> Result:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", stalloc.StallocWarning)
        step, evaluate, booster, model, optimizer = _job(settings)
        driver = None
        if settings.mode is not None:
            driver = stalloc.colossalai.install(
                booster, model, optimizer, settings.mode, settings.folder, warmup=2
            )
        result = Result()
        for iteration in range(settings.iterations):
            result.losses += step(iteration)
            optimizer.step()
            optimizer.zero_grad()
            # A pipeline sends the shapes of its tensors anew after each evaluation.
            if iteration in (0, settings.iterations - 2):
                with torch.no_grad():
                    result.losses += evaluate(1000 + iteration)
            if driver is not None:
                result.stages.append(driver.stage.value)
        result.stats = dict(stalloc.memory_stats())
        stalloc._core.runtime("cpu").check()
        stalloc.colossalai.uninstall()
    result.weights = str([p.double().sum().item() for p in model.parameters()])
    result.warnings = [str(w.message) for w in said]
    torch.distributed.destroy_process_group()
    return result


def _job(settings: Settings) -> tuple[Any, Any, Any, nn.Module, Any]:
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        return _pipeline(settings)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    return _boosted()


def _boosted() -> tuple[Any, Any, Any, nn.Module, Any]:
    booster_module, plugins = load("booster", "booster.plugin")
    booster = booster_module.Booster(plugin=plugins.TorchDDPPlugin())
    model: nn.Module = Chunk(True, True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, *_ = booster.boost(model, optimizer)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch["tokens"]).flatten(0, 1), _labels(batch))

    def step(number: int) -> list[float]:
        losses = []
        for batch in _batches(number):
            loss = loss_of(batch) / MICROBATCHES
            booster.backward(loss, optimizer)
            losses.append(loss.item())
        return losses

    def evaluate(number: int) -> list[float]:
        return [loss_of(batch).item() for batch in _batches(number)]

    return step, evaluate, booster, model, optimizer


def _pipeline(settings: Settings) -> tuple[Any, Any, Any, nn.Module, Any]:
    cluster, managers, one, interleaved = load(
        "cluster",
        "pipeline.stage_manager",
        "pipeline.schedule.one_f_one_b",
        "pipeline.schedule.interleaved_pp",
    )
    mesh = cluster.ProcessGroupMesh(settings.stages)
    many = settings.chunks > 1
    manager = managers.PipelineStageManager(
        mesh, 0, enable_interleave=many, num_model_chunks=settings.chunks
    )
    rank = torch.distributed.get_rank()
    last = settings.stages * settings.chunks - 1
    places = [rank + settings.stages * chunk for chunk in range(settings.chunks)]
    chunks = [Chunk(place == 0, place == last) for place in places]
    model: nn.Module = nn.ModuleList(chunks) if many else chunks[0]
    scheduler = (
        interleaved.InterleavedSchedule(
            manager, settings.chunks, num_microbatch=MICROBATCHES, overlap_p2p=False
        )
        if many
        else one.OneForwardOneBackwardSchedule(manager, num_microbatches=MICROBATCHES)
    )
    optimizer = Optimizer(model)

    def criterion(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return functional.cross_entropy(output.flatten(0, 1), _labels(batch))

    def step(number: int) -> list[float]:
        batch = {"tokens": torch.cat([b["tokens"] for b in _batches(number)])}
        result = scheduler.forward_backward_step(
            model, iter([batch]), criterion, optimizer, return_loss=True
        )
        return [result["loss"].item()] if result["loss"] is not None else []

    booster = SimpleNamespace(plugin=SimpleNamespace(scheduler=scheduler, tp_size=1))
    return step, step, booster, model, optimizer


def _batches(number: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(number)
    return [
        {"tokens": torch.randint(64, (ROWS // MICROBATCHES, 16), generator=generator)}
        for _ in range(MICROBATCHES)
    ]


def _labels(batch: dict[str, Tensor]) -> Tensor:
    return batch["tokens"].roll(1, dims=1).flatten()


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    path = Path(sys.argv[2]) / f"rank{os.environ['RANK']}.result.json"
    path.write_text(json.dumps(asdict(train(settings))))


if __name__ == "__main__":
    main()
