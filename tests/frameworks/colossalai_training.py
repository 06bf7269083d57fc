"""Trains a small model with Colossal-AI's own schedules, or its Booster, on the CPU."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from colossalai_package import Adam, load, on_cpu
from gloo import settled
from megatron_training import Result
from missing import stand_in_for
from torch import Tensor, nn
from torch.nn import functional

import stalloc
import stalloc.colossalai

WIDTH = 32
ROWS = 8
MICROBATCHES = 4
RANKS = 2  # of a pipeline, or that share experts


@dataclass
class Settings:
    """The training and its settings, as in megatron_training.

    Attributes:
        plugin: The Booster's plugin, without a pipeline.
        schedule: The schedule of a pipeline of two stages, if any.
        experts: The number in each layer, split over two ranks; 0 for none.
    """

    plugin: str = "ddp"
    schedule: str | None = None
    experts: int = 0
    iterations: int = 10
    mode: str | None = None
    folder: str | None = None

    @property
    def ranks(self) -> int:
        return 1 if self.schedule is None and self.experts == 0 else RANKS

    @property
    def chunks(self) -> int:
        return 1 if self.schedule in (None, "1F1B") else 2


class Chunk(nn.Module):
    """Some layers; the first embed, and the last predict."""

    def __init__(self, first: bool, last: bool, layer: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, WIDTH) if first else None
        self.layers = nn.Sequential(*(layer(WIDTH, WIDTH) for _ in range(3)))
        self.head = layer(WIDTH, 64) if last else None

    def forward(self, tokens: Tensor, hidden: Tensor | None = None, **_: Any) -> Any:
        x = self.embedding(tokens) if self.embedding is not None else hidden
        x = functional.gelu(self.layers(x))
        return self.head(x) if self.head is not None else {"hidden": x}


class Layer(nn.Linear):
    """Puts off its weights' gradient, as the layers do that shardformer makes for zero bubbles."""

    def forward(self, x: Tensor) -> Any:
        (operations,) = load("shardformer.layer._operation")
        return operations.linear_with_async_comm(
            x, self.weight, self.bias, None, False, use_zbv=True
        )


class Chunks(nn.Module):
    """Both chunks of a rank, as one model: zero-bubble schedules say which they want."""

    def __init__(self, chunks: list[Chunk], manager: Any) -> None:
        super().__init__()
        self.chunks = nn.ModuleList(chunks)
        self._manager = manager

    def forward(self, **kwargs: Any) -> Any:
        return self.chunks[self._manager.model_chunk_id](**kwargs)


class Optimizer:
    """The part of Colossal-AI's OptimizerWrapper that schedules and users call."""

    def __init__(self, model: nn.Module) -> None:
        self.optim = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def backward_by_grad(self, tensor: Any, grad: Any, **_: Any) -> None:
        torch.autograd.backward(tensor, grad)

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def step(self) -> None:
        self.optim.step()

    def zero_grad(self) -> None:
        self.optim.zero_grad()


def train(settings: Settings, rank: int, store: str) -> Result:
    """Trains on this rank of a pipeline, or on the only one."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=settings.ranks,
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", stalloc.StallocWarning)
        with settled(), on_cpu() if settings.ranks == 1 else contextlib.nullcontext():
            result = _train(settings)
    result.warnings = [str(w.message) for w in said]
    torch.distributed.destroy_process_group()
    return result


def _train(settings: Settings) -> Result:
    torch.manual_seed(0)
    job = _boosted if settings.schedule is None else _pipeline
    if settings.experts > 0:
        job = _expert_parallel
    step, evaluate, booster, model, optimizer = job(settings)
    driver = None
    if settings.mode is not None:
        driver = stalloc.colossalai.install(
            booster, model, optimizer, settings.mode, settings.folder, warmup=1
        )
        assert stalloc.colossalai.install(booster, model, optimizer) is driver, "twice is once"
    result = Result()
    for iteration in range(settings.iterations):
        result.losses += step(iteration)
        optimizer.step()
        optimizer.zero_grad()
        # A pipeline sends the shapes of its tensors anew after each evaluation.
        if evaluate is not None and iteration in (0, settings.iterations - 2):
            with torch.no_grad():
                result.losses += evaluate(1000 + iteration)
        if driver is not None:
            result.stages.append(driver.stage.value)
    result.stats = dict(stalloc.memory_stats())
    stalloc._core.runtime("cpu").check()
    stalloc.colossalai.uninstall()
    assert "step" not in vars(optimizer)
    result.weights = str([p.double().sum().item() for p in model.parameters()])
    return result


def _boosted(settings: Settings) -> tuple[Any, Any, Any, nn.Module, Any]:
    booster_module, plugins = load("booster", "booster.plugin")
    make = {
        "ddp": plugins.TorchDDPPlugin,
        "zero1": lambda: plugins.LowLevelZeroPlugin(stage=1, precision="fp32"),
        "zero2": lambda: plugins.LowLevelZeroPlugin(stage=2, precision="bf16"),
        "gemini": lambda: plugins.GeminiPlugin(precision="bf16", enable_async_reduce=False),
    }[settings.plugin]
    booster = booster_module.Booster(plugin=make())
    model: nn.Module = Chunk(True, True)
    optimizer = Adam(model.parameters(), lr=1e-3)
    model, optimizer, *_ = booster.boost(model, optimizer)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        output = model(batch["tokens"]).flatten(0, 1).float()
        return functional.cross_entropy(output, _labels(batch))

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


class Expert(nn.Module):
    """As a Mixtral of transformers 4 has them."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.w2 = nn.Linear(2 * WIDTH, WIDTH)
        self.act_fn = functional.silu


class Block(nn.Module):
    """Likewise, for Colossal-AI to turn into one of its own: a router, and experts."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.num_experts, self.top_k = experts, 2
        self.gate = nn.Linear(WIDTH, experts, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(experts))


class Mixture(nn.Module):
    """A model of such blocks."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in blocks)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(WIDTH, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + block(norm(x))[0]
        logits: Tensor = self.head(x)
        return logits


def _expert_parallel(settings: Settings) -> tuple[Any, Any, Any, nn.Module, Any]:
    """Its blocks dispatch tokens between the ranks; no rank has another's experts."""
    load("cluster")
    stand_in_for("flash_attn", "transformers")  # whose part of the model is not used
    (mixtral,) = load("shardformer.modeling.mixtral")
    world = torch.distributed.group.WORLD
    mine = torch.distributed.new_subgroups(group_size=1)[0]
    make = mixtral.EPMixtralSparseMoeBlock.from_native_module
    blocks = [make(Block(settings.experts), mine, mine, world) for _ in range(2)]
    model = Mixture(blocks)
    rank = torch.distributed.get_rank()

    def step(number: int) -> list[float]:
        losses = []
        for batch in _batches(10_000 * rank + number):
            output = model(batch["tokens"]).flatten(0, 1)
            loss = functional.cross_entropy(output, _labels(batch))
            if torch.is_grad_enabled():
                loss.backward()
            losses.append(loss.item())
        return losses

    booster = SimpleNamespace(plugin=SimpleNamespace(ep_size=RANKS))
    return step, step, booster, model, Optimizer(model)


def _pipeline(settings: Settings) -> tuple[Any, Any, Any, nn.Module, Any]:
    cluster, managers = load("cluster", "pipeline.stage_manager")
    many, zero_bubble = settings.chunks > 1, settings.schedule == "zero bubble"
    manager = managers.PipelineStageManager(
        cluster.ProcessGroupMesh(RANKS),
        0,
        enable_interleave=many,
        use_zbv=zero_bubble,
        num_model_chunks=settings.chunks,
    )
    rank = torch.distributed.get_rank()
    last = RANKS * settings.chunks - 1
    places = [rank + RANKS * chunk for chunk in range(settings.chunks)]
    if zero_bubble:  # there and back again
        places = [rank, last - rank]
    layer = Layer if zero_bubble else nn.Linear
    chunks = [Chunk(place == 0, place == last, layer) for place in places]
    model: nn.Module = nn.ModuleList(chunks) if many else chunks[0]
    if zero_bubble:
        manager.stage_indices = [(0, 3), (3, 6)]
        model = Chunks(chunks, manager)
    scheduler = _scheduler(settings, manager)
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
    # The evaluation of zero bubbles needs another schedule.
    return step, None if zero_bubble else step, booster, model, optimizer


def _scheduler(settings: Settings, manager: Any) -> Any:
    if settings.schedule == "1F1B":
        (schedules,) = load("pipeline.schedule.one_f_one_b")
        return schedules.OneForwardOneBackwardSchedule(manager, num_microbatches=MICROBATCHES)
    if settings.schedule == "interleaved":
        (schedules,) = load("pipeline.schedule.interleaved_pp")
        return schedules.InterleavedSchedule(
            manager, settings.chunks, num_microbatch=MICROBATCHES, overlap_p2p=False
        )
    schedules, graphs = load("pipeline.schedule.zero_bubble_pp", "pipeline.schedule.v_schedule")
    graph = graphs.PipelineGraph(
        n_stage=RANKS,
        n_micro=MICROBATCHES,
        **{f"{kind}_cost": 6 for kind in "fbwc"},
        **{"f_mem": 10, "b_mem": -5, "w_mem": -5},
    )
    return schedules.ZeroBubbleVPipeScheduler(
        manager, graph.get_v_schedule(), 2, num_microbatch=MICROBATCHES, overlap_p2p=False
    )


def _batches(number: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(number)
    return [
        {"tokens": torch.randint(64, (ROWS // MICROBATCHES, 16), generator=generator)}
        for _ in range(MICROBATCHES)
    ]


def _labels(batch: dict[str, Tensor]) -> Tensor:
    return batch["tokens"].roll(1, dims=1).flatten()
