"""Models on the meta device: a mixture of experts without tags, and dense ones with odd batches."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import stalloc

_WIDTH = 1024
_HEADS = 16
_VOCABULARY = 32_000
_EXPERTS = 16
_TOP_K = 4
_EXPERT_WIDTH = 1408
_LONGEST = 4096
_PROFILED = 5  # iterations


@dataclass(frozen=True)
class Case:
    """A program.

    Attributes:
        longest: The profile has a batch of the longest length.
        dense: No experts.
        padding: The model rounds lengths up to a multiple of it.
        budget: Tokens that a batch has at most. Shorter rows are more.
        evaluated: After four iterations each, three batches are evaluated, and a variable holds the
            last scores until the next evaluation.
        mode: The model is in evaluation mode meanwhile.
        averaged: Another model is evaluated, an average of the weights.
        batches: The rows and tokens of each evaluated batch; none: three of 4 rows, of lengths at
            random.
        other_batches: The same of every second evaluation, if there are any.
        first: The iteration after which the first evaluation comes.
        held: A variable holds the scores of a batch until those of the next one exist, and the
            last ones until the next evaluation.
        listed: A list holds the scores of all batches until the next evaluation.
        gradients: They live until the next iteration.
        kept: A variable of the loop holds the scores until the next ones exist.
        skew: Standard deviation of the log popularity of experts.
        drift: The part of the way to another popularity that the experts go in 50 iterations.
    """

    name: str
    layers: int = 8
    microbatches: int = 1
    longest: bool = True
    fixed: bool = False
    rows: bool = False
    recompute: bool = False
    dense: bool = False
    padding: int = 1
    budget: int = 0
    evaluated: bool = False
    mode: bool = True
    averaged: bool = False
    batches: tuple[tuple[int, int], ...] = ()
    other_batches: tuple[tuple[int, int], ...] = ()
    first: int = 3
    held: bool = True
    listed: bool = False
    gradients: bool = False
    kept: bool = True
    skew: float = 0.5
    drift: float = 0.0
    iterations: int = 24


def _fixed(name: str, *, kept: bool = False, held: bool = False, **options: Any) -> Case:
    """A program of fixed batches with evaluations that need more than its pool."""
    return Case(
        f"evaluations, fixed batches, {name}",
        layers=6,
        dense=True,
        fixed=True,
        evaluated=True,
        kept=kept,
        held=held,
        **options,
    )


CASES = (
    Case("experts, fixed length", fixed=True),
    Case("experts", longest=False),
    Case("experts, longest profiled"),
    Case("experts, 4 microbatches", layers=4, microbatches=4),
    Case("experts, 2 microbatches, longest not profiled", layers=4, microbatches=2, longest=False),
    Case("experts, recomputed", recompute=True),
    Case("experts, recomputed, 3 microbatches", layers=4, microbatches=3, recompute=True),
    Case("experts, rows change, too", rows=True),
    Case("experts that drift", skew=1.5, drift=5.0),
    Case("padded to 64", layers=6, dense=True, padding=64),
    Case("padded to 128, longest not profiled", layers=6, dense=True, padding=128, longest=False),
    Case("evaluations", layers=6, dense=True, evaluated=True, kept=False),
    Case(
        "evaluations without eval()",
        layers=6,
        dense=True,
        evaluated=True,
        mode=False,
        kept=False,
    ),
    Case(
        "evaluations, longest not profiled",
        layers=6,
        dense=True,
        evaluated=True,
        kept=False,
        longest=False,
    ),
    Case(
        "evaluations, 2 layers, longest not profiled",
        layers=2,
        dense=True,
        evaluated=True,
        kept=False,
        longest=False,
    ),
    Case(
        "evaluations of an average",
        layers=6,
        dense=True,
        evaluated=True,
        averaged=True,
        kept=False,
    ),
    Case(
        "evaluations of an average, longest not profiled",
        layers=4,
        dense=True,
        evaluated=True,
        averaged=True,
        kept=False,
        longest=False,
    ),
    _fixed("lengths vary"),
    _fixed("4 times the rows", batches=((16, 1024),) * 3),
    _fixed("4 times the rows, scores held", batches=((16, 1024),) * 3, held=True),
    _fixed("4 times the length", batches=((4, 4096),) * 3),
    _fixed(
        "two kinds, scores held",
        batches=((8, 1024),) * 2,
        other_batches=((4, 4096),) * 2,
        held=True,
    ),
    _fixed("two kinds", batches=((8, 1024),) * 2, other_batches=((4, 4096),) * 2),
    _fixed("late", batches=((16, 1024),) * 3, first=15),
    _fixed("gradients kept", batches=((16, 1024),) * 3, gradients=True),
    _fixed("scores kept", batches=((12, 1024),) * 3, kept=True),
    _fixed("all scores kept", batches=((4, 1024),) * 6, listed=True),
    _fixed("recomputed", batches=((8, 1024),) * 3, recompute=True),
    _fixed("recomputed, lengths vary", recompute=True),
    _fixed("recomputed, all scores kept", batches=((4, 1024),) * 6, listed=True, recompute=True),
    Case("budget of tokens", layers=6, dense=True, budget=8192, kept=False),
    Case("budget, longest not profiled", layers=6, dense=True, budget=8192, longest=False),
    Case("budget, 2 microbatches", layers=6, dense=True, budget=8192, microbatches=2, kept=False),
    Case("budget, experts", layers=4, budget=8192, longest=False, kept=False),
)


def record(case: Case, seed: int, *, profiled: bool) -> stalloc.Trace:
    """The trace of the profiled iterations, or of the whole run, which begins like them."""
    rng = np.random.default_rng(seed)
    moment = _Moment()
    evaluated: list[Tensor] = []
    with stalloc.profile(device="meta", dynamic=()) as prof, torch.device("meta"):
        model = _Model(case, rng, moment).bfloat16()
        average = copy.deepcopy(model) if case.averaged else model
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for i in range(_PROFILED if profiled else case.iterations):
            if case.gradients:
                optimizer.zero_grad()
            for microbatch in range(case.microbatches):
                moment.at = (i, microbatch)
                rows, length = _shape(case, i, rng)
                ids = torch.zeros(rows, length + 1, dtype=torch.long)
                scores = model(ids[:, :-1]).flatten(0, 1).float()
                loss = functional.cross_entropy(scores, ids[:, 1:].flatten())
                if not case.kept:
                    del scores
                loss.backward()
                del loss
            optimizer.step()
            if not case.gradients:
                optimizer.zero_grad()
            if case.averaged:
                _update(average, model)
            prof.step()
            if case.evaluated and i % 4 == 3 and i >= case.first:
                evaluated = _evaluate(average, case, i, evaluated, rng)
    del evaluated
    return prof.trace


@torch.no_grad()
def _update(average: nn.Module, model: nn.Module) -> None:
    for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
        mean.lerp_(weight, 0.01)


def _evaluate(
    model: nn.Module,
    case: Case,
    iteration: int,
    before: list[Tensor],
    rng: np.random.Generator,
) -> list[Tensor]:
    """The scores of the last batch, or of all if they are listed. Forgets those of before."""
    if case.listed:
        before.clear()
    second = case.other_batches and iteration % 8 == 7
    batches = case.other_batches if second else case.batches
    listed: list[Tensor] = []
    model.train(not case.mode)
    with torch.no_grad():
        for rows, length in batches or [(4, 0)] * 3:
            ids = torch.zeros(rows, (length or _length(rng)) + 1, dtype=torch.long)
            scores: Tensor = model(ids[:, :-1])
            functional.cross_entropy(scores.flatten(0, 1).float(), ids[:, 1:].flatten())
            if case.listed:
                listed.append(scores)
            elif case.held:
                listed = [scores]
            if not case.held:
                del scores
    model.train()
    return listed


def _length(rng: np.random.Generator) -> int:
    return int(np.clip(rng.lognormal(6.3, 0.7, 4), 64, _LONGEST).max())


def _shape(case: Case, iteration: int, rng: np.random.Generator) -> tuple[int, int]:
    if case.fixed:
        return 4, _LONGEST // 4
    if case.longest and iteration == 1:
        return (case.budget // _LONGEST if case.budget else 4), _LONGEST
    if case.budget:
        return _within(case.budget, rng)
    length = _length(rng)
    return int(rng.integers(1, 5)) if case.rows else 4, length


def _within(budget: int, rng: np.random.Generator) -> tuple[int, int]:
    """Rows are added as long as all together, as long as the longest, stay within the budget."""
    rows = longest = 0
    while True:
        length = max(longest, int(np.clip(rng.lognormal(5.8, 0.8), 64, _LONGEST)))
        if rows and length * (rows + 1) > budget:
            return rows, longest
        rows, longest = rows + 1, length


class _Moment:
    """The iteration and microbatch. A recomputed layer routes as it did before."""

    at = (0, 0)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH, bias=False)
        self.out = nn.Linear(_WIDTH, _WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        heads = self.qkv(self.norm(x)).view(rows, length, 3, _HEADS, -1)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return x + out


class _Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(_WIDTH, 2 * _EXPERT_WIDTH, bias=False)
        self.down = nn.Linear(_EXPERT_WIDTH, _WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.up(x).chunk(2, -1)
        out: Tensor = self.down(functional.silu(gate) * up)
        return out


class _Mixture(nn.Module):
    def __init__(self, case: Case, rng: np.random.Generator, moment: _Moment) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.gate = nn.Linear(_WIDTH, _EXPERTS, bias=False)
        self.experts = nn.ModuleList(_Expert() for _ in range(_EXPERTS))
        self._case, self._rng, self._moment = case, rng, moment
        self._from, self._to = rng.normal(size=(2, _EXPERTS))
        self._routed: tuple[tuple[int, int] | None, list[int]] = (None, [])

    def _route(self, tokens: int) -> list[int]:
        """The tokens of each expert."""
        if self._routed[0] != self._moment.at:
            way = self._case.drift * self._moment.at[0] / 50
            logits = self._case.skew * (self._from + way * (self._to - self._from))
            odds = np.exp(logits) / np.exp(logits).sum()
            counts = self._rng.multinomial(tokens * _TOP_K, odds)
            self._routed = (self._moment.at, counts.tolist())
        return self._routed[1]

    def forward(self, x: Tensor) -> Tensor:
        flat = self.norm(x).flatten(0, 1)
        weights = self.gate(flat).softmax(-1).topk(_TOP_K, -1).values.flatten()
        out = torch.zeros_like(flat)
        for expert, count in zip(self.experts, self._route(len(flat)), strict=True):
            if count == 0:
                continue
            chosen = torch.empty(count, dtype=torch.long)
            y = expert(flat[chosen]) * weights[:count, None]
            out = out.index_add(0, chosen, y)
        return x + out.view_as(x)


class _Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(_WIDTH),
            nn.Linear(_WIDTH, 4 * _WIDTH),
            nn.GELU(),
            nn.Linear(4 * _WIDTH, _WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return x + out


class _Model(nn.Module):
    def __init__(self, case: Case, rng: np.random.Generator, moment: _Moment) -> None:
        super().__init__()
        self._case = case
        self.embed = nn.Embedding(_VOCABULARY, _WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(_Attention(), _Mlp() if case.dense else _Mixture(case, rng, moment))
            for _ in range(case.layers)
        )
        self.head = nn.Linear(_WIDTH, _VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        if self._case.padding > 1:
            ids = functional.pad(ids, (0, -length % self._case.padding))
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self._case.recompute else block(x)
        scores: Tensor = self.head(x)
        return scores[:, :length]
