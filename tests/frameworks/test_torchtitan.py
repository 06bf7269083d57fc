"""torchtitan's own Trainer: its `train_step` and what that calls.

It is made by hand, as what its constructor reads (configurations, tokenizers, data sets) is not
here. The tests replace its imports other than torch. Its
pipelines hand a schedule one microbatch at a time, which the schedules of newer torches take: here
they are put together, for torch to split them again.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from gloo import settled
from isolation import isolated
from launcher import together
from missing import stand_in_for
from torch import nn
from torch.nn import functional
from trainers import LENGTH, Run, assert_served, network, phases_of, prepare, tokens

import stalloc
import stalloc.integrations.torchtitan
from stalloc.driver import Stage
from stalloc.errors import StallocError, StallocWarning

MICROBATCHES = 2
RUN = 4  # microbatches of a run of the pipeline's schedule


def package() -> ModuleType:
    """The module that has the Trainer."""
    prepare()
    stand_in_for("datasets", "tensorboard", "wandb", "PIL", "shtab")
    board = ModuleType("torch.utils.tensorboard")  # which asks for tensorboard's version
    board.SummaryWriter = object  # type: ignore[attr-defined]
    sys.modules[board.__name__] = board
    import torchtitan.trainer

    return torchtitan.trainer  # type: ignore[no-any-return]


class Training:
    """A Trainer of this rank's, with what its constructor would have given it.

    Args:
        ranks: That share the parameters, by FSDP2.
        graphs: Request CUDA graphs.
        stages: Ranks of the pipeline, each with two chunks of the model.
    """

    def __init__(self, ranks: int = 1, graphs: bool = False, stages: int = 1) -> None:
        from torchtitan.distributed import ParallelDims

        if not torch.distributed.is_initialized():
            store = torch.distributed.HashStore()
            torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        rank = torch.distributed.get_rank()
        trainer = self.trainer = object.__new__(package().Trainer)
        self.run = Run()
        model = network(layers=2 * stages)
        trainer.parallel_dims = ParallelDims(
            dp_replicate=1, dp_shard=ranks, cp=1, tp=1, pp=stages, ep=1, world_size=ranks * stages
        )
        if ranks > 1:
            mesh = torch.distributed.init_device_mesh("cpu", (ranks,))
            for layer in model:
                torch.distributed.fsdp.fully_shard(layer, mesh=mesh)
            torch.distributed.fsdp.fully_shard(model, mesh=mesh)
        if stages > 1:
            schedule, model = _pipeline(model, rank, stages, self._stage_loss)
            trainer.pp_schedule = schedule
            trainer.pp_has_first_stage = rank == 0
            trainer.pp_has_last_stage = rank == stages - 1
        trainer.model_parts = list(model) if stages > 1 else [model]
        self._model = model
        trainer.optimizers = torch.optim.AdamW(model.parameters(), lr=1e-3)
        trainer.lr_schedulers = SimpleNamespace(get_metrics=dict, step=lambda: None)
        trainer.metrics_processor = SimpleNamespace(should_log=lambda step: False)
        trainer.checkpointer = SimpleNamespace(maybe_wait_for_staging=lambda: None)
        trainer.config = SimpleNamespace(
            training=SimpleNamespace(disable_cuda_graphs=not graphs, max_norm=1.0)
        )
        trainer.gradient_accumulation_steps = MICROBATCHES
        trainer.num_pipeline_parallel_microbatches = RUN if stages > 1 else 1
        trainer.device = torch.device("cpu")
        trainer.step = 0
        trainer.train_context = contextlib.nullcontext
        trainer.loss_fn = self._loss
        trainer.post_dataloading_process = lambda inputs, labels: (inputs["input"], labels, {})
        trainer.fwd_bwd_fn = trainer._forward_backward_body
        # All stages of a pipeline are given the same ones.
        batches = tokens().split(2) * 2 if stages > 1 else tokens().split(4)[rank::ranks]
        self._batches = iter(({"input": rows[:, :LENGTH]}, rows[:, 1:]) for rows in batches)

    def train(self, steps: int = 10) -> Run:
        for _ in range(steps):
            self.trainer.train_step(self._batches)
        return self.run.keep(self._model)

    def _loss(self, output: torch.Tensor, labels: torch.Tensor, count: torch.Tensor) -> Any:
        loss = functional.cross_entropy(output.flatten(0, 1), labels.flatten(), reduction="sum")
        self.run.losses.append(loss.item())
        return loss / count, None

    def _stage_loss(
        self, output: torch.Tensor, labels: torch.Tensor, global_valid_tokens: torch.Tensor
    ) -> Any:
        return self._loss(output, labels, global_valid_tokens)[0]


def _pipeline(model: nn.Sequential, rank: int, stages: int, loss: Any) -> tuple[Any, nn.ModuleList]:
    """A schedule, and the chunks of the model that this rank has."""
    from torch.distributed import pipelining

    class Schedule(pipelining.ScheduleInterleaved1F1B):
        def step(
            self, *, arg_mbs: Any, kwarg_mbs: Any, target_mbs: Any = None, **arguments: Any
        ) -> Any:
            assert not any(kwarg_mbs)
            inputs = [torch.cat([inputs for (inputs,) in arg_mbs])] if arg_mbs else []
            target = torch.cat(target_mbs) if target_mbs else None
            return super().step(*inputs, target=target, **arguments)

    embedding, *layers, head = model
    chunks = [nn.Sequential(layer) for layer in layers]
    chunks[0].insert(0, embedding)
    chunks[-1].append(head)
    count, device = len(chunks), torch.device("cpu")
    mine = range(rank, count, stages)
    there = [pipelining.PipelineStage(chunks[i], i, count, device) for i in mine]
    schedule = Schedule(there, RUN, loss_fn=loss, scale_grads=False)
    return schedule, nn.ModuleList(chunks[i] for i in mine)


@isolated
def test_one_run_profiles_plans_and_is_served(tmp_path: Path) -> None:
    trainer = package().Trainer
    plain = Training().train()
    original = trainer.train_step
    driver = stalloc.integrations.torchtitan.install("auto", tmp_path, warmup=1)
    assert stalloc.integrations.torchtitan.install() is driver
    plain.assert_same(Training().train())
    assert driver.stage is Stage.SERVING
    assert_served(10 - 1 - 4)
    check_phases(tmp_path / "mb2.rank0.trace.json")
    stalloc.integrations.torchtitan.uninstall()
    assert trainer.train_step is original


def check_phases(trace: Path, microbatches: int = MICROBATCHES, chunks: int = 1) -> None:
    wanted = {
        (kind, i, chunk)
        for kind in ("forward", "backward")
        for i in range(microbatches)
        for chunk in range(chunks)
    }
    phases = phases_of(str(trace))
    assert {phase for phase in phases if phase[0] in ("forward", "backward")} == wanted


def train_sharded(folder: Path, mode: str) -> list[float]:
    torch.distributed.init_process_group("gloo")
    package()
    stalloc.integrations.torchtitan.install(mode, folder, warmup=1)
    with settled():
        training = Training(ranks=2)
        for _ in range(12):
            training.trainer.train_step(training._batches)
    if mode == "auto":
        assert_served(12 - 1 - 4)
        check_phases(folder / f"dpshard2-mb2.rank{torch.distributed.get_rank()}.trace.json")
    return training.run.losses


def test_parameters_that_fsdp2_shards_over_two_ranks(tmp_path: Path) -> None:
    plain = [job.result() for job in together(2, train_sharded, tmp_path, "off")]
    assert plain[0] != plain[1]
    assert plain == [job.result() for job in together(2, train_sharded, tmp_path, "auto")]


def train_pipeline(folder: Path, mode: str) -> Run:
    torch.distributed.init_process_group("gloo")
    package()
    driver = stalloc.integrations.torchtitan.install(mode, folder, warmup=1)
    with settled():
        training = Training(stages=2)
        run = training.train(steps=12)
    if mode == "auto":
        assert driver.stage is Stage.SERVING
        assert_served(12 - 1 - 4)
        trace = f"pp2-mb2.rank{torch.distributed.get_rank()}.trace.json"
        check_phases(folder / trace, MICROBATCHES * RUN, chunks=2)
    schedule = training.trainer.pp_schedule
    followed = set(vars(schedule)) & {"step", "eval", "_maybe_compute_loss"}
    assert len(followed) == (3 if mode == "auto" else 0)
    stalloc.integrations.torchtitan.uninstall()
    assert not set(vars(schedule)) & followed
    return run


def test_a_pipeline_of_two_ranks(tmp_path: Path) -> None:
    plain = [job.result() for job in together(2, train_pipeline, tmp_path, "off")]
    planned = [job.result() for job in together(2, train_pipeline, tmp_path, "auto")]
    assert plain == planned
    assert not plain[0].losses, "those are the last stage's"
    assert len(plain[1].losses) >= 12 * MICROBATCHES * RUN


@isolated
def test_cuda_graphs_are_left_alone() -> None:
    training = Training(graphs=True)
    driver = stalloc.integrations.torchtitan.install("auto")
    with pytest.warns(StallocWarning, match="disable_cuda_graphs"):
        training.train(steps=1)
    assert driver.stage is Stage.OFF


@isolated
def test_without_torchtitan_there_is_an_error_that_says_so() -> None:
    sys.modules["torchtitan"] = None  # type: ignore[assignment]
    with pytest.raises(StallocError, match="install torchtitan"):
        stalloc.integrations.torchtitan.install()
