"""GRPO in small: a trainer and an engine that take turns on one device, as in TRL.

Each step samples groups of answers whose lengths vary, and learns from them with the
log-probabilities of two models: the reference, and the one that is trained. The engine has a copy
of the weights and a cache while it samples. The last loss and the last samples live on while the
next ones are sampled, as they do in TRL.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, LAYERS = 2048, 192, 4
PROMPTS, GROUP, LONGEST = 2, 4, 96
CACHE_PIECES, CACHE_BYTES = 8, 4 << 20


class _Block(nn.Module):
    """Attention and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = [
            p.unflatten(-1, (4, -1)).transpose(1, 2) for p in self.mix(self.norm(x)).chunk(3, -1)
        ]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    """Returns the log-probability of each token after the first."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(_Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        """Shape (rows, tokens - 1), for token numbers of shape (rows, tokens)."""
        scores = self.head(self.blocks(self.embed(ids)))[:, :-1].log_softmax(-1)
        return scores.gather(-1, ids[:, 1:, None]).squeeze(-1)


class Engine:
    """Stands in for vLLM in sleep mode: its documented methods, weights and a cache of its own.

    Attributes:
        observe: Called while the engine is awake.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._held: list[Tensor] = []
        self._calls = 0
        self.observe: Callable[[], None] = lambda: None

    def wake_up(self) -> None:
        """Takes memory for the weights and the cache."""
        weights = [p.detach().clone() for p in self._model.parameters()]
        self._held = weights + [torch.zeros(CACHE_BYTES // 4) for _ in range(CACHE_PIECES)]

    def sleep(self) -> None:
        """Gives it back."""
        self._held.clear()

    def generate(self) -> Tensor:
        """Answers of varying lengths, as long as the longest of them."""
        self._calls += 1
        self.observe()
        generator = torch.Generator().manual_seed(self._calls)
        lengths = torch.randint(16, LONGEST + 1, (PROMPTS * GROUP,), generator=generator)
        shape = (PROMPTS * GROUP, int(lengths.max()))
        return torch.randint(3, VOCABULARY, shape, generator=generator)


class Job:
    """A trainer and its engine."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = LanguageModel()
        self._reference = copy.deepcopy(self.model).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.engine = Engine(self.model)
        self.losses: list[float] = []
        self._kept: tuple[Tensor, ...] = ()  # until the next samples are there

    def step(self, rollout: Callable[[], AbstractContextManager[object]]) -> None:
        """Samples in `rollout`, and learns from the samples."""
        with rollout():
            ids = self.engine.generate()
        rewards = ids.float().mean(-1).view(PROMPTS, GROUP)
        advantages = (rewards - rewards.mean(-1, keepdim=True)).view(-1, 1)
        with torch.no_grad():
            reference = self._reference(ids)
        logp = self.model(ids)
        ratio = (logp - logp.detach()).exp()
        apart = (reference - logp).exp() - (reference - logp) - 1
        loss = -(ratio * advantages - 0.04 * apart).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())
        self._kept = (ids, advantages, loss.detach(), logp.detach())

    @contextlib.contextmanager
    def taking_turns(self) -> Iterator[None]:
        """A rollout without stalloc."""
        self.engine.wake_up()
        yield
        self.engine.sleep()
