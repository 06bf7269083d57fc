"""Routed experts with expert parallelism: Megatron-LM's alltoall dispatcher and SequentialMLP.

The steps and their buffers follow megatron/core/transformer/moe (0.10): permute to the experts'
order, exchange, sort by local expert, run the experts one by one, and all of it back. Only how many
tokens each expert gets is not computed but drawn (`Routing`), since nothing computes on the meta
device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from layers import MLP, has_fused_swiglu, swiglu
from models import Experts, Implementation, Model
from parallel import ColumnParallelLinear, GatherBuffer, RowParallelLinear
from router_drift import NONE, Drift
from torch import Tensor, nn
from torch.autograd import Function


@dataclass
class Routing:
    """Draws the number of tokens for each expert, with a seed.

    Every layer has a popularity of its experts, exp(skew x standard normal), which drifts a little
    with each microbatch (a tenth of the skew); tokens choose by a multinomial draw. Skew 0 is a
    perfectly balanced router but for chance; at 0.5, of 60 experts, the most popular gets about
    three times the mean. The same microbatch has the same counts when it is recomputed. Over many
    iterations the popularity may drift as well (`Drift`).

    Attributes:
        seed: Seed of all random draws.
        skew: Standard deviation of the logarithm of the experts' popularity.
        drift: Its change over the run.
        iteration: The current iteration.
        microbatch: The current microbatch.
    """

    seed: int
    skew: float
    drift: Drift = NONE
    iteration: int = 0
    microbatch: int = 0

    def counts(self, layer: int, ranks: int, choices: int, experts: int) -> list[list[int]]:
        """Tokens that each of `ranks` senders sends to each of all `experts`, [ranks][experts]."""
        fixed = np.random.default_rng((self.seed, layer))
        drawn = np.random.default_rng((self.seed, layer, self.iteration, self.microbatch))
        start = fixed.standard_normal(experts)
        popularity = self.skew * self.drift.apply(start, self.seed, layer, self.iteration)
        popularity += 0.1 * self.skew * drawn.standard_normal(experts)
        share = np.exp(popularity)
        return drawn.multinomial(choices, share / share.sum(), size=ranks).tolist()


class _Select(Function):
    """masked_select of a known number of elements; its backward scatters into zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int) -> Tensor:
        ctx.like = (x.shape, x.dtype, x.device)
        return x.new_empty(count)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        shape, dtype, device = ctx.like
        return torch.zeros(shape, dtype=dtype, device=device), None


class _AllToAll(Function):
    """Exchanges rows over the expert-parallel ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: int) -> Tensor:
        ctx.rows = x.shape[0]
        return x.contiguous().new_empty((rows, *x.shape[1:]))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        return grad.contiguous().new_empty((ctx.rows, *grad.shape[1:])), None


class Expert(nn.Module):
    """One expert, whole on its rank."""

    def __init__(self, model: Model, ffn: int, buffer: GatherBuffer) -> None:
        super().__init__()
        self.fused = has_fused_swiglu(model)
        self.up = ColumnParallelLinear(model.hidden, 2 * ffn, 1, buffer)
        self.down = RowParallelLinear(ffn, model.hidden, 1, buffer)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] to the same."""
        return self.down(swiglu(self.up(x), fused=self.fused))


class RoutedExperts(nn.Module):
    """From dispatch to combine: everything whose size depends on the routing."""

    def __init__(
        self,
        model: Model,
        experts: Experts,
        ranks: int,
        routing: Routing,
        layer: int,
        buffer: GatherBuffer,
    ) -> None:
        super().__init__()
        self.top_k = experts.top_k
        self.count = experts.count
        self.ranks = ranks
        self.routing = routing
        self.layer = layer
        local = experts.count // ranks
        self.local = nn.ModuleList(Expert(model, experts.ffn, buffer) for _ in range(local))

    def forward(self, tokens: Tensor, probs: Tensor, routing_map: Tensor) -> Tensor:
        """Tokens [tokens, hidden], probabilities and choices [tokens, experts]."""
        choices = tokens.shape[0] * self.top_k
        counts = self.routing.counts(self.layer, self.ranks, choices, self.count)
        mine = [row[: len(self.local)] for row in counts]  # this rank's experts come first
        by_sender = [count for row in mine for count in row]
        by_expert = [sum(column) for column in zip(*mine, strict=True)]

        order = torch.arange(tokens.shape[0], device=tokens.device).unsqueeze(0)
        order = _Select.apply(order.expand(self.count, -1), choices)
        permuted = tokens.index_select(0, order)
        received = _AllToAll.apply(permuted, sum(by_expert))
        # Sender by sender, then expert by expert, into expert by expert.
        pieces = torch.split(received, by_sender)
        local, senders = range(len(self.local)), range(self.ranks)
        sorted_ = torch.cat([pieces[s * len(local) + e] for e in local for s in senders])
        parts = torch.split(sorted_, by_expert)
        output = torch.cat([run(part) for run, part in zip(self.local, parts, strict=True)])
        back = torch.split(output, [mine[s][e] for e in local for s in senders])
        unsorted = torch.cat([back[e * len(senders) + s] for s in senders for e in local])
        returned = _AllToAll.apply(unsorted, choices)

        weights = _Select.apply(probs.T.contiguous(), choices)
        weighted = returned * weights.unsqueeze(-1)
        combined = torch.zeros(tokens.shape, dtype=weighted.dtype, device=tokens.device)
        index = order.unsqueeze(1).expand(-1, tokens.shape[1])
        return combined.scatter_add_(0, index, weighted).to(tokens.dtype)


class MoE(nn.Module):
    """Router, routed experts, and a shared expert with its gate."""

    def __init__(
        self,
        model: Model,
        tensor: int,
        expert: int,
        routing: Routing,
        layer: int,
        buffer: GatherBuffer,
    ) -> None:
        super().__init__()
        assert model.experts is not None
        experts = model.experts
        self.experts = experts
        self.router = nn.Parameter(
            torch.empty(experts.count, model.hidden, dtype=torch.bfloat16, device="meta")
        )
        self.routed = RoutedExperts(model, experts, expert, routing, layer, buffer)
        self.shared = MLP(model, experts.shared_ffn, tensor, buffer)
        self.shared_gate = (
            nn.Parameter(torch.empty(1, model.hidden, dtype=torch.bfloat16, device="meta"))
            if model.implementation is Implementation.CORE
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        tokens = x.view(-1, x.shape[-1])
        logits = torch.nn.functional.linear(tokens, self.router)
        scores = torch.softmax(logits, dim=-1, dtype=torch.float32)
        top, indices = torch.topk(scores, self.experts.top_k, dim=1)
        probs = torch.zeros_like(logits).scatter(1, indices, top.type_as(logits))
        routing_map = torch.zeros_like(logits).int().scatter(1, indices, 1).bool()
        load = routing_map.sum(dim=0)
        auxiliary = torch.sum(scores.mean(dim=0) * load) * 1e-2
        probs = _AuxiliaryLoss.apply(probs, auxiliary)
        routed = self.routed(tokens, probs, routing_map).view_as(x)
        shared = self.shared(x)
        if self.shared_gate is None:
            return routed + shared
        gate = torch.sigmoid(torch.nn.functional.linear(x, self.shared_gate))
        return routed + shared * gate


class _AuxiliaryLoss(Function):
    """MoEAuxLossAutoScaler: carries the router's own loss into backward."""

    @staticmethod
    def forward(ctx: Any, probs: Tensor, auxiliary: Tensor) -> Tensor:
        ctx.save_for_backward(auxiliary)
        return probs.view_as(probs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (auxiliary,) = ctx.saved_tensors
        return grads[0], torch.ones_like(auxiliary)
