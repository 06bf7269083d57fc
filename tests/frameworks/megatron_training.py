"""Trains a small model with Megatron's own layers, schedules and optimizer, on the CPU.

In this process, or as a script under torchrun, where each rank writes its result to a file.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from megatron_batches import VOCABULARY, Batches, forward
from megatron_cpu import on_cpu
from megatron_loop import Loop
from packages import folders

import stalloc
import stalloc.megatron

DEATH = 77  # exit code of a rank that dies


@dataclass
class Settings:
    """The training and its settings.

    Attributes:
        packages: See `packages.folders`.
        experts: The number in each layer; 0 for none.
        recompute: Recompute all layers in the backward.
        stages: Ranks of the pipeline.
        chunks: Chunks of the model on each rank; 2 or more train with the interleaved schedule.
        mode: stalloc's; None does not install it.
        evaluate: Run an evaluation after every third iteration.
        own_loop: Use Megatron's `train_step` and `evaluate`.
        graphs: Let that loop capture whole iterations in CUDA graphs, though later than
            it ends.
        replicas: Ranks that train the same stage on other data.
        distributed_optimizer: Use Megatron's DistributedOptimizer for Adam's states.
        serve_from: See `stalloc.driver.Driver`.
        extra: Rank whose pipeline asks for more than the others', in each iteration.
        dies: Rank that dies in iteration `dies_at`.
        batches: The microbatches of each iteration.
        width: Features of each token in the model.
        layers: Of each chunk of the model.
    """

    packages: str = "stable"
    experts: int = 0
    recompute: bool = False
    stages: int = 1
    chunks: int = 1
    replicas: int = 1
    microbatches: int = 4
    iterations: int = 9
    mode: str | None = None
    folder: str | None = None
    warmup: int = 2
    profiled: int = 3
    serve_from: int = 1
    evaluate: bool = False
    own_loop: bool = False
    graphs: bool = False
    distributed_optimizer: bool = False
    extra: int | None = None
    dies: int | None = None
    dies_at: int = 4
    batches: Batches = field(default_factory=Batches)
    width: int = 64
    layers: int = 2

    @property
    def ranks(self) -> int:
        return self.stages * self.replicas


@dataclass
class Result:
    """The result: equal for equal runs."""

    losses: list[float] = field(default_factory=list)
    weights: str = ""
    stages: list[str] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def assert_same(self, other: Result) -> None:
        assert self.losses == other.losses
        assert self.weights == other.weights


def train(settings: Settings) -> Result:
    """Trains in this process, which may be a rank of torchrun's."""
    torch.set_num_threads(1)
    with on_cpu(folders(settings.packages)), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", stalloc.StallocWarning)
        result = _train(settings)
    result.warnings = [str(w.message) for w in said]
    return result


def _train(settings: Settings) -> Result:
    run = Run(settings)
    driver = None
    if settings.mode is not None:
        driver = stalloc.megatron.install(
            settings.mode,
            settings.folder,
            warmup=settings.warmup,
            iterations=settings.profiled,
            serve_from=settings.serve_from,
        )
    result = Result()
    for iteration in range(settings.iterations):
        if settings.dies == run.rank and iteration == settings.dies_at:
            os._exit(DEATH)
        result.losses += run.iteration(iteration)
        if settings.evaluate and iteration % 3 == 2:
            result.losses += run.evaluation(iteration)
        if driver is not None:
            result.stages.append(driver.stage.value)
    result.stats = dict(stalloc.memory_stats())
    stalloc._core.runtime("cpu").check()
    stalloc.megatron.uninstall()
    result.weights = run.weights()
    torch.distributed.destroy_process_group()
    return result


class Run:
    """The model, its optimizer and its data."""

    def __init__(self, settings: Settings) -> None:
        from megatron.core import parallel_state
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

        self.settings = settings
        self.rank = _start_process_group()
        parallel_state.initialize_model_parallel(
            1,
            settings.stages,
            settings.chunks if settings.chunks > 1 else None,
        )
        self.models = _models(settings)
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=1e-3,
                use_distributed_optimizer=settings.distributed_optimizer,
            ),
            self.models,
        )
        self.loop: Loop | None = None
        if settings.own_loop:
            self.loop = Loop(
                self.models,
                self.optimizer,
                forward,
                settings.batches,
                graphs=settings.graphs,
                seq_length=settings.batches.longest,
                micro_batch_size=settings.batches.rows,
                num_microbatches=settings.microbatches,
            )

    def iteration(self, number: int) -> list[float]:
        if self.loop is not None:
            return self.loop.iteration(number)
        for model in self.models:
            model.zero_grad_buffer()
        self.optimizer.zero_grad()
        losses = self._schedule(number, forward_only=False)
        if self.settings.extra == self.rank:
            for size in range(1, 2 + number % 3):
                torch.empty(1000 * size)
        self.optimizer.step()
        return losses

    def evaluation(self, number: int) -> list[float]:
        if self.loop is not None:
            return self.loop.evaluation(number)
        for model in self.models:
            model.eval()
        with torch.no_grad():
            losses = self._schedule(1000 + number, forward_only=True)
        for model in self.models:
            model.train()
        return losses

    def weights(self) -> str:
        digest = hashlib.sha256()
        for model in self.models:
            for parameter in model.parameters():
                digest.update(parameter.detach().numpy().tobytes())
        return digest.hexdigest()

    def _schedule(self, number: int, forward_only: bool) -> list[float]:
        from megatron.core import parallel_state
        from megatron.core.pipeline_parallel import get_forward_backward_func

        seed = number + 10_000 * parallel_state.get_data_parallel_rank()
        batches = self.settings.batches
        reported = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=[batches(seed) for _ in self.models],
            model=self.models,
            num_microbatches=self.settings.microbatches,
            seq_length=batches.announced(seed),
            micro_batch_size=batches.rows,
            forward_only=forward_only,
        )
        return [report["loss"].item() for report in reported]


def _start_process_group() -> int:
    if "RANK" not in os.environ:
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    else:
        torch.distributed.init_process_group("gloo")
    return torch.distributed.get_rank()


def _models(settings: Settings) -> list[torch.nn.Module]:
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.distributed.finalize_model_grads import finalize_model_grads
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    options: dict[str, Any] = {}
    if settings.experts:
        options.update(
            num_moe_experts=settings.experts,
            add_bias_linear=False,
            moe_router_topk=2,
            moe_token_dispatcher_type="allgather",
            moe_router_load_balancing_type="aux_loss",
            moe_aux_loss_coeff=1e-2,
        )
    if settings.batches.differ:
        # The allgather dispatcher refuses it; without pipelining nothing asks for it.
        options.update(moe_token_dispatcher_type="alltoall", variable_seq_lengths=True)
    if settings.recompute:
        options.update(
            recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1
        )
    if settings.chunks > 1:
        options.update(virtual_pipeline_model_parallel_size=settings.chunks)
    config = TransformerConfig(
        num_layers=settings.layers * settings.stages * settings.chunks,
        hidden_size=settings.width,
        num_attention_heads=4,
        pipeline_model_parallel_size=settings.stages,
        pipeline_dtype=torch.float32,
        use_cpu_initialization=True,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        deallocate_pipeline_outputs=settings.stages > 1,
        attention_dropout=0.1,
        hidden_dropout=0.1,
        **options,
    )
    config.finalize_model_grads_func = finalize_model_grads
    torch.manual_seed(0)
    models: list[torch.nn.Module] = []
    for chunk in range(settings.chunks):
        last = settings.chunks - 1
        place: dict[str, Any] = {}
        if settings.chunks > 1:
            place["vp_stage"] = chunk
            parallel_state.set_virtual_pipeline_model_parallel_rank(chunk)
        model = GPTModel(
            config,
            get_gpt_layer_local_spec(num_experts=settings.experts or None, moe_grouped_gemm=False),
            vocab_size=VOCABULARY,
            max_sequence_length=settings.batches.longest,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=True) and chunk == 0,
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=True)
            and chunk == last,
            **place,
        )
        ddp = DistributedDataParallelConfig(
            use_distributed_optimizer=settings.distributed_optimizer
        )
        models.append(DistributedDataParallel(config, ddp, model))
    return models


def main() -> None:
    given = json.loads(sys.argv[1])
    settings = Settings(**given | {"batches": Batches(**given["batches"])})
    result = train(settings)
    path = Path(sys.argv[2]) / f"rank{os.environ['RANK']}.result.json"
    path.write_text(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
