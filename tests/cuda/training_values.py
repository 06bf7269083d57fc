"""Training whose results count, on the computing pretended GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

import stalloc

WORDS, WIDTH, LENGTH, BATCH = 64, 64, 32, 32


class Block(nn.Module):
    """Attention of one head, by plain operators, and a network of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.network = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.attention(self.norms[0](x)).chunk(3, dim=-1)
        scores = (q @ k.transpose(1, 2)) / WIDTH**0.5
        future = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        x = x + self.output(nn.functional.dropout(weights, 0.1, self.training) @ v)
        return x + self.network(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.position = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@dataclass
class Training:
    """A run from one seed, and what it gives."""

    model: GPT = field(init=False)
    losses: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(1)
        self.model = GPT().cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def step(self) -> None:
        words = torch.randint(WORDS, (BATCH, LENGTH + 1)).sort().values.cuda()
        logits = self.model(words[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item().hex())
        stalloc.step()

    def results(self) -> list[str]:
        """The losses and a digest of the weights, to the bit."""
        weights = hashlib.sha256()
        for weight in self.model.parameters():
            weights.update(weight.detach().cpu().numpy().tobytes())
        return [*self.losses, weights.hexdigest()]


def train(steps: int, between: Callable[[GPT], object] = lambda model: None) -> list[str]:
    """The results without a plan; calls `between` before each step from the fourth on."""
    training = Training()
    for step in range(steps):
        if step >= 3:
            between(training.model)
        training.step()
    return training.results()


def train_under_a_plan(steps: int, planned: Callable[[], None] = lambda: None) -> list[str]:
    """The results of three profiled steps and of others under a plan; calls `planned` between."""
    training = Training()
    with stalloc.profile(training.model) as profile:
        for _ in range(3):
            training.step()
    with stalloc.enable(profile.plan(), model=training.model):
        planned()
        for _ in range(steps - 4):
            training.step()
        before = stalloc.memory_stats("cuda")
        training.step()
        after = stalloc.memory_stats("cuda")
        assert after["hits"] - before["hits"] == after["planned"] > 0, "the plan is not in force"
        return training.results()


def train_automatically() -> list[str]:
    """The results of steps that `stalloc.auto()` follows: until a plan is in force, and three."""
    stalloc.auto(device="cuda")
    training, left = Training(), 3
    while left > 0:
        assert len(training.losses) < 100, stalloc.status()
        training.step()
        left -= stalloc.status()["stage"] == "serving"
    assert stalloc.memory_stats("cuda")["hits"] > 0
    stalloc.disable()
    return training.results()
