"""torchtitan's own Trainer: its `train_step` and what that calls.

It is made by hand, as what its constructor reads (configurations, tokenizers, data sets) is not
here. What the package imports besides torch is stood in for.
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
from torch.nn import functional
from trainers import LENGTH, Run, assert_served, network, phases_of, prepare, tokens

import stalloc
import stalloc.integrations.torchtitan
from stalloc.driver import Stage
from stalloc.errors import StallocError, StallocWarning

MICROBATCHES = 2


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
        graphs: Whether CUDA graphs are asked for.
    """

    def __init__(self, ranks: int = 1, graphs: bool = False) -> None:
        from torchtitan.distributed import ParallelDims

        if not torch.distributed.is_initialized():
            store = torch.distributed.HashStore()
            torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        rank = torch.distributed.get_rank()
        trainer = self.trainer = object.__new__(package().Trainer)
        self.run = Run()
        model = network()
        trainer.parallel_dims = ParallelDims(
            dp_replicate=1, dp_shard=ranks, cp=1, tp=1, pp=1, ep=1, world_size=ranks
        )
        if ranks > 1:
            mesh = torch.distributed.init_device_mesh("cpu", (ranks,))
            for layer in model:
                torch.distributed.fsdp.fully_shard(layer, mesh=mesh)
            torch.distributed.fsdp.fully_shard(model, mesh=mesh)
        trainer.model_parts = [model]
        trainer.optimizers = torch.optim.AdamW(model.parameters(), lr=1e-3)
        trainer.lr_schedulers = SimpleNamespace(get_metrics=dict, step=lambda: None)
        trainer.metrics_processor = SimpleNamespace(should_log=lambda step: False)
        trainer.checkpointer = SimpleNamespace(maybe_wait_for_staging=lambda: None)
        trainer.config = SimpleNamespace(
            training=SimpleNamespace(disable_cuda_graphs=not graphs, max_norm=1.0)
        )
        trainer.gradient_accumulation_steps = MICROBATCHES
        trainer.num_pipeline_parallel_microbatches = 1
        trainer.device = torch.device("cpu")
        trainer.step = 0
        trainer.train_context = contextlib.nullcontext
        trainer.loss_fn = self._loss
        trainer.post_dataloading_process = lambda inputs, labels: (inputs["input"], labels, {})
        trainer.fwd_bwd_fn = trainer._forward_backward_body
        self._batches = iter(
            ({"input": rows[:, :LENGTH]}, rows[:, 1:]) for rows in tokens().split(4)[rank::ranks]
        )

    def train(self, steps: int = 10) -> Run:
        for _ in range(steps):
            self.trainer.train_step(self._batches)
        return self.run.keep(self.trainer.model_parts[0])

    def _loss(self, output: torch.Tensor, labels: torch.Tensor, count: torch.Tensor) -> Any:
        loss = functional.cross_entropy(output.flatten(0, 1), labels.flatten(), reduction="sum")
        self.run.losses.append(loss.item())
        return loss / count, None


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


def check_phases(trace: Path) -> None:
    wanted = {(kind, i, 0) for kind in ("forward", "backward") for i in range(MICROBATCHES)}
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
