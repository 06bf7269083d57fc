"""A rank whose parameters are sharded over data-parallel ranks: torch's FullyShardedDataParallel.

Its streams are torch's own: one gathers the parameters of the next layer, another one reduces the
gradients of the last one, and `record_stream` keeps what either uses (torch/distributed/fsdp).
Collectives do nothing, as the process group is torch's fake one. Weights and states have 32 bits,
gathered parameters and gradients 16. Needs a CUDA build of torch, on a GPU or a pretended one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from configs import Config
from layers import Layer
from stage import Stage
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore


class ShardedRank:
    """A rank with its shard of the model and of the optimizer.

    Args:
        config: One pipeline stage, one chunk and one tensor-parallel rank.
        between: Called before each microbatch.

    Attributes:
        stage: Its model.
    """

    def __init__(self, config: Config, between: Callable[[], None]) -> None:
        parallelism = config.parallelism
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=parallelism.data)
        self._config = config
        self._between = between
        with_angles = Stage(config, angles="cuda")
        self.stage = FullyShardedDataParallel(
            with_angles.chunks[0].float(),
            auto_wrap_policy=ModuleWrapPolicy({Layer}),
            mixed_precision=MixedPrecision(torch.bfloat16, torch.bfloat16),
            param_init_fn=_materialize,
            device_id=0,
        )
        self._optimizer = torch.optim.AdamW(self.stage.parameters())

    def iterate(self, iteration: int) -> None:
        """One iteration: every microbatch forward and backward, then the optimizer's step."""
        parallelism, model = self._config.parallelism, self._config.model
        shape = (parallelism.microbatch, model.sequence)
        for _ in range(parallelism.microbatches):
            self._between()
            tokens = torch.empty(shape, dtype=torch.int64, device="cuda")
            self.stage(tokens, tokens).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


def _materialize(module: nn.Module) -> None:
    module.to_empty(device="cuda", recurse=False)
