"""One rank's model: the chunks of its pipeline stage."""

from __future__ import annotations

import legacy
import torch
from configs import Config
from experts import MoE, Routing
from layers import MLP, Layer, norm
from models import Implementation
from parallel import ColumnParallelLinear, GatherBuffer, checkpoint, cross_entropy, reduce_scatter
from torch import Tensor, nn


class Embedding(nn.Module):
    """VocabParallelEmbedding with the sum over ranks scattered along the sequence."""

    def __init__(self, vocabulary: int, hidden: int, ranks: int) -> None:
        super().__init__()
        self.ranks = ranks
        self.weight = nn.Parameter(
            torch.empty(vocabulary // ranks, hidden, dtype=torch.bfloat16, device="meta")
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [batch, sequence] to [sequence / ranks, batch, hidden]."""
        mask = (tokens < 0) | (tokens >= self.weight.shape[0])
        masked = tokens.clone() - 0
        masked.masked_fill_(mask, 0)
        embedded = torch.nn.functional.embedding(masked, self.weight)
        embedded = embedded.masked_fill(mask.unsqueeze(-1), 0.0)
        return reduce_scatter(embedded.transpose(0, 1).contiguous(), self.ranks)


class LegacyEmbedding(Embedding):
    """The same with dropout behind it."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [batch, sequence] to [sequence / ranks, batch, hidden]."""
        return torch.nn.functional.dropout(super().forward(tokens), legacy.DROPOUT)


class Chunk(nn.Module):
    """Some consecutive layers, with the embedding before or the loss behind where they belong."""

    def __init__(
        self, config: Config, layers: range, first: bool, last: bool, shared: Shared
    ) -> None:
        super().__init__()
        model, parallelism = config.model, config.parallelism
        self.recompute = config.recompute
        vocabulary = model.padded_vocabulary(parallelism.tensor)
        is_legacy = model.implementation is Implementation.LEGACY
        embedding = LegacyEmbedding if is_legacy else Embedding
        self.embedding = embedding(vocabulary, model.hidden, parallelism.tensor) if first else None
        self.layers = nn.ModuleList(_layer(config, index, shared) for index in layers)
        self.norm = legacy.RMSNorm(model.hidden) if last and is_legacy else None
        if last and not is_legacy:
            self.norm = norm(model)
        self.head = (
            ColumnParallelLinear(model.hidden, vocabulary, parallelism.tensor, shared.buffer)
            if last
            else None
        )

    def forward(self, x: Tensor, labels: Tensor | None) -> Tensor:
        """Tokens or the previous chunk's output to this chunk's output or the loss."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = checkpoint(layer, x) if self.recompute else layer(x)
        if self.norm is None or self.head is None:
            return x
        assert labels is not None
        logits = self.head(self.norm(x))
        losses = cross_entropy(logits.float(), labels.transpose(0, 1).contiguous())
        return losses.transpose(0, 1).contiguous().float().mean()


def _layer(config: Config, index: int, shared: Shared) -> nn.Module:
    model, ranks, buffer = config.model, config.parallelism.tensor, shared.buffer
    if model.implementation is Implementation.LEGACY:
        return legacy.Layer(model, ranks, buffer)
    mlp: nn.Module = (
        MoE(model, ranks, config.parallelism.expert, shared.routing, index, buffer)
        if model.experts
        else MLP(model, model.ffn, ranks, buffer)
    )
    return Layer(model, ranks, buffer, shared.angles, mlp)


class Shared:
    """Shared by all chunks of a rank: the gather buffer, the rotary angles, the routing."""

    def __init__(self, config: Config, device: str) -> None:
        model = config.model
        self.buffer = GatherBuffer()
        self.routing = Routing(config.seed, config.skew, config.drift)
        positions = torch.arange(model.sequence, dtype=torch.float32, device=device)
        frequencies = torch.empty(model.head_size // 2, dtype=torch.float32, device=device)
        half = torch.outer(positions, frequencies)
        self.angles = torch.cat((half, half), dim=-1)[:, None, None, :]


class Stage(nn.Module):
    """All chunks of one rank; calling it runs one of them.

    Its modules are made on the meta device. On another one, their parameters get memory at the end.

    Args:
        config: The configuration.
        device: The device of the parameters.
        angles: The device of the rotary angles; None: the same.
    """

    def __init__(self, config: Config, device: str = "meta", angles: str | None = None) -> None:
        super().__init__()
        parallelism = config.parallelism
        self.config = config
        self.shared = Shared(config, angles or device)
        slots = parallelism.pipeline * parallelism.chunks
        each = config.model.layers // slots
        if each * slots != config.model.layers:
            raise ValueError(
                f"{config.name}: {config.model.layers} layers cannot be split into {slots} chunks"
            )
        self.chunks = nn.ModuleList()
        for chunk in range(parallelism.chunks):
            slot = chunk * parallelism.pipeline + config.stage
            layers = range(slot * each, (slot + 1) * each)
            self.chunks.append(Chunk(config, layers, slot == 0, slot == slots - 1, self.shared))
        if device != "meta":
            self.to_empty(device=device)

    def forward(self, chunk: int, x: Tensor, labels: Tensor | None) -> Tensor:
        """Runs one chunk."""
        return self.chunks[chunk](x, labels)
