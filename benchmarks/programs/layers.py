"""Small layers and steps that several programs share."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Past = list[Tensor]
"""Keys and values of the tokens so far; empty before the first."""

_Module = TypeVar("_Module", bound=nn.Module)


class Attention(nn.Module):
    """Self-attention, or attention to a context."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.pair = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.heads = heads
        self.causal = causal

    def _split(self, x: Tensor) -> Tensor:
        y: Tensor = x.unflatten(-1, (self.heads, -1))
        return y.transpose(1, 2)

    def forward(self, x: Tensor, context: Tensor | None = None, past: Past | None = None) -> Tensor:
        """The sum of the input and what it attends to."""
        y = self.norm(x)
        q = self._split(self.query(y))
        k, v = map(self._split, self.pair(y if context is None else context).chunk(2, -1))
        if past is not None:
            if past:
                k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
            past[:] = [k, v]
        causal = self.causal and context is None and q.shape[2] > 1
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return x + out


class Mlp(nn.Module):
    """Two layers, with a residual connection."""

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The sum of the input and the layers' output."""
        out: Tensor = self.layers(x)
        return x + out


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(
        self, width: int, *, causal: bool = False, cross: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        heads = max(1, width // 64)
        self.attention = Attention(width, heads, causal=causal)
        self.cross = Attention(width, heads, causal=False) if cross else None
        self.mlp = Mlp(width, dropout)

    def forward(self, x: Tensor, context: Tensor | None = None, past: Past | None = None) -> Tensor:
        """Tokens to tokens."""
        x = self.attention(x, None, past)
        if self.cross is not None:
            x = self.cross(x, context)
        y: Tensor = self.mlp(x)
        return y


class Transformer(nn.Module):
    """A stack of layers over tokens that have vectors already."""

    def __init__(
        self,
        width: int,
        depth: int,
        *,
        causal: bool = False,
        cross: bool = False,
        dropout: float = 0.0,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            Block(width, causal=causal, cross=cross, dropout=dropout) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.recompute = recompute

    def forward(
        self, x: Tensor, context: Tensor | None = None, pasts: Sequence[Past] | None = None
    ) -> Tensor:
        """Tokens to tokens."""
        for i, block in enumerate(self.blocks):
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(block, x, context, use_reentrant=False)
            else:
                x = block(x, context, pasts[i] if pasts is not None else None)
        y: Tensor = self.norm(x)
        return y


class Language(nn.Module):
    """A language model, or the decoder of one that translates or transcribes."""

    def __init__(
        self,
        vocabulary: int,
        width: int,
        depth: int,
        *,
        causal: bool = True,
        cross: bool = False,
        dropout: float = 0.0,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.body = Transformer(
            width, depth, causal=causal, cross=cross, dropout=dropout, recompute=recompute
        )
        self.head = nn.Linear(width, vocabulary, bias=False)

    def hidden(
        self, ids: Tensor, context: Tensor | None = None, pasts: Sequence[Past] | None = None
    ) -> Tensor:
        """The vectors before the head."""
        y: Tensor = self.body(self.embed(ids), context, pasts)
        return y

    def forward(
        self, ids: Tensor, context: Tensor | None = None, pasts: Sequence[Past] | None = None
    ) -> Tensor:
        """The scores of the next tokens."""
        y: Tensor = self.head(self.hidden(ids, context, pasts))
        return y

    @torch.no_grad()
    def generate(self, prompt: Tensor, steps: int, context: Tensor | None = None) -> Tensor:
        """Samples tokens, with keys and values that grow by concatenation."""
        pasts: list[Past] = [[] for _ in self.body.blocks]
        ids = new = prompt
        for _ in range(steps):
            scores = self(new, context, pasts)[:, -1].float()
            new = torch.multinomial(scores.softmax(-1), 1)
            ids = torch.cat((ids, new), 1)
        return ids


class Residual(nn.Module):
    """Two convolutions with a residual connection; the first may halve the sides."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Images to images."""
        y: Tensor = functional.relu(self.layers(x) + self.skip(x))
        return y


def convolutions(channels: int, stages: int = 4, inputs: int = 3) -> nn.Sequential:
    """A convolutional network whose images are 2 ** (stages + 1) times smaller than its input."""
    widths = [channels * 2**i for i in range(stages)]
    stem = (nn.Conv2d(inputs, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
    pairs = zip([channels, *widths[:-1]], widths, strict=True)
    return nn.Sequential(*stem, *(Residual(low, high, 2) for low, high in pairs))


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers of these widths, with SiLU in between."""
    layers: list[nn.Module] = []
    for low, high in pairwise(widths):
        layers += [nn.Linear(low, high), nn.SiLU()]
    return nn.Sequential(*layers[:-1])


def patches(images: Tensor, side: int) -> Tensor:
    """The squares of images as tokens."""
    return functional.unfold(images, side, stride=side).transpose(1, 2)


def tokens(*shape: int) -> Tensor:
    """Numbers of tokens, or other indices."""
    return torch.zeros(*shape, dtype=torch.long)


def token_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy in single precision, as most trainers compute it."""
    return functional.cross_entropy(scores.flatten(0, -2).float(), targets.flatten())


def log_likelihood(scores: Tensor, ids: Tensor) -> Tensor:
    """The logarithm of the probability of each token."""
    chosen = scores.float().log_softmax(-1).gather(-1, ids[..., None])
    return chosen.squeeze(-1)


def descend(loss: Tensor, optimizer: torch.optim.Optimizer, clip: float = 0.0) -> None:
    """Backward, clipping, and the optimizer's step. The gradients are gone after it."""
    loss.backward()
    if clip:
        nn.utils.clip_grad_norm_(parameters_of(optimizer), clip)
    optimizer.step()
    optimizer.zero_grad()


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """All that it updates."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def frozen(model: _Module) -> _Module:
    """A copy that does not train."""
    return copy.deepcopy(model).requires_grad_(False).eval()


@torch.no_grad()
def average(mean: nn.Module, model: nn.Module, share: float = 0.01) -> None:
    """Moves the weights of one model towards those of another, tensor by tensor."""
    for kept, current in zip(mean.parameters(), model.parameters(), strict=True):
        kept.lerp_(current, share)


def ceil(value: float, multiple: int) -> int:
    """The next multiple."""
    return math.ceil(value / multiple) * multiple


def total(losses: Iterable[Tensor]) -> Tensor:
    """The sum of losses."""
    return torch.stack(list(losses)).sum()
