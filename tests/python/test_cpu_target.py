"""Profiles on the meta device for the CPU request what the CPU does, and their plans serve it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from isolation import isolated, run_isolated
from processes import python
from torch import Tensor, nn
from torch.nn import functional as F

import stalloc
from stalloc import _core
from stalloc.correction import RECORDED

SMALL = 64
"""Bytes: requests of fewer are left to the CPU."""

Inputs = tuple[Any, ...]
Operator = tuple[Callable[[], Inputs], Callable[..., Tensor]]


def profiled(pretended: bool) -> stalloc.profiling.Profile:
    """A profile of the CPU, or of one that only pretends."""
    if pretended:
        return stalloc.profile(device="meta", target="cpu", layers=False)
    return stalloc.profile(device="cpu", layers=False)


def requests(pretended: bool, make: Callable[[], Inputs], run: Callable[..., Tensor]) -> list[Any]:
    """The size of each request, and how many others come or go until it is freed."""
    with profiled(pretended) as prof:
        inputs = make()
        result = run(*inputs)
        if result.requires_grad:
            result.backward(torch.rand(result.shape))
    del inputs, result
    table, end = prof.trace.requests, prof.trace.end
    rows = [
        (size, lower, min(upper, end))
        for size, lower, upper in zip(
            table.size.tolist(), table.lower.tolist(), table.upper.tolist(), strict=True
        )
        if size >= SMALL
    ]
    events = sorted({tick for _, *ticks in rows for tick in ticks})
    place = {tick: number for number, tick in enumerate(events)}
    return [(size, place[upper] - place[lower]) for size, lower, upper in rows]


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def indices(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.int64)


def attention(
    length: int,
    keys: int | None = None,
    *,
    heads: tuple[int, int] = (4, 4),
    size: int = 64,
    dtype: torch.dtype = torch.float32,
    mask: torch.dtype | None = None,
    **options: Any,
) -> Operator:
    def make() -> Inputs:
        def made(count: int, rows: int) -> Tensor:
            return torch.randn(2, rows, count, size, dtype=dtype).transpose(1, 2).requires_grad_()

        bias = None if mask is None else torch.ones(2, 1, length, keys or length, dtype=mask)
        query = made(heads[0], length)
        return query, *(made(heads[1], keys or length) for _ in range(2)), bias

    return make, lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, **options)


def rows() -> Inputs:
    return (floats(64, 100),)


def pair() -> Inputs:
    return floats(64, 100), floats(64, 100)


def shares() -> Inputs:
    return torch.full((64, 100), 0.5, requires_grad=True), torch.ones(64, 100)


def normed(dtype: torch.dtype = torch.float32) -> Inputs:
    return floats(64, 100, dtype=dtype), floats(100, dtype=dtype), floats(100, dtype=dtype)


def image() -> Inputs:
    return floats(4, 32, 10, 10), floats(32), floats(32)


def labelled() -> Inputs:
    return floats(64, 100), indices(64)


OPERATORS: dict[str, Operator] = {
    "attention": attention(64),
    "attention, causal": attention(256, is_causal=True),
    "attention, long": attention(800, is_causal=True),
    "attention, other keys": attention(64, 1100),
    "attention, odd": attention(65, size=33),
    "attention, shared keys": attention(64, heads=(4, 2), enable_gqa=True),
    "attention, a float mask": attention(200, mask=torch.float32),
    "attention, a mask": attention(64, mask=torch.bool),
    "attention, dropout": attention(64, dropout_p=0.1),
    "attention, causal, dropout": attention(64, dropout_p=0.1, is_causal=True),
    "attention, a mask, dropout": attention(64, dropout_p=0.1, mask=torch.bool),
    "attention, 64 bits": attention(64, dtype=torch.float64),
    "softmax of masked rows": (rows, lambda x: torch._safe_softmax(x, -1)),
    "dropout": (rows, lambda x: F.dropout(x, 0.1)),
    "dropout of channels": (image, lambda x, *_: F.dropout2d(x, 0.1)),
    "layer norm": (normed, lambda x, w, b: F.layer_norm(x, (100,), w, b)),
    "layer norm, no bias": (normed, lambda x, w, _: F.layer_norm(x, (100,), w)),
    "layer norm, no weight": (rows, lambda x: F.layer_norm(x, (100,))),
    "layer norm, 16 bits": (
        lambda: normed(torch.bfloat16),
        lambda x, w, b: F.layer_norm(x, (100,), w, b),
    ),
    "layer norm of columns": (
        lambda: (floats(4, 100, 16), floats(100), floats(100)),
        lambda x, w, b: F.layer_norm(x.transpose(1, 2), (100,), w, b),
    ),
    "RMS norm": (normed, lambda x, w, _: F.rms_norm(x, (100,), w, 1e-6)),
    "group norm": (image, lambda x, w, b: F.group_norm(x, 8, w, b)),
    "batch norm": (
        image,
        lambda x, w, b: F.batch_norm(x, torch.zeros(32), torch.ones(32), w, b, training=True),
    ),
    "batch norm, evaluated": (
        image,
        lambda x, w, b: F.batch_norm(x, torch.zeros(32), torch.ones(32), w, b),
    ),
    "embedding": (lambda: (floats(1000, 64), indices(4, 80)), lambda w, i: F.embedding(i, w)),
    "embedding, a part": (
        lambda: (floats(1000, 64), indices(4, 80)),
        lambda w, i: F.embedding(i[:, :-1], w),
    ),
    "embedding, the same row": (
        lambda: (floats(1000, 64), indices(1, 80)),
        lambda w, i: F.embedding(i.expand(4, 80), w),
    ),
    "embedding, turned": (
        lambda: (floats(32, 64), indices(40, 40)),
        lambda w, i: F.embedding(i, w).permute(2, 0, 1).contiguous(),
    ),
    "cross entropy": (labelled, F.cross_entropy),
    "cross entropy, smoothed": (labelled, lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1)),
    "squared error": (pair, F.mse_loss),
    "absolute error": (pair, F.l1_loss),
    "smooth error": (pair, F.smooth_l1_loss),
    "Huber": (pair, F.huber_loss),
    "binary cross entropy": (shares, F.binary_cross_entropy),
    "linear": (lambda: (floats(4, 9, 100), floats(50, 100), floats(50)), F.linear),
    "linear, turned": (
        lambda: (floats(9, 4, 100), floats(50, 100), floats(50)),
        lambda x, w, b: F.linear(x.transpose(0, 1), w, b),
    ),
    "gelu": (rows, F.gelu),
    "silu": (rows, F.silu),
    "softmax": (rows, lambda x: torch.softmax(x, -1)),
    "masked fill": (rows, lambda x: x.masked_fill(x > 0, 0.0)),
    "norm": (rows, lambda x: x.norm()),
    "largest": (rows, lambda x: x.max(-1)[0]),
    "some rows": (lambda: (floats(64, 100), torch.arange(50)), lambda x, i: x[i]),
    "replaced rows": (
        lambda: (floats(64, 100), torch.arange(50), floats(50, 100)),
        lambda x, i, y: x.index_put((i,), y),
    ),
    "gathered": (lambda: (floats(64, 100), indices(64, 5)), lambda x, i: x.gather(1, i)),
    "pad": (rows, lambda x: F.pad(x, (1, 1))),
    "stack": (pair, lambda x, y: torch.stack((x, y), 1)),
    "kaiming": (lambda: (torch.empty(64, 100),), nn.init.kaiming_uniform_),
}


def sizes(requested: list[Any]) -> list[int]:
    return [size for size, _ in requested]


@pytest.mark.parametrize("threads", [1, 2])
@isolated
def test_operators_request_what_they_do_on_the_cpu(threads: int) -> None:
    torch.set_num_threads(threads)
    differ = {}
    for name, (make, run) in OPERATORS.items():
        cpu, pretended = (requests(pretended, make, run) for pretended in (False, True))
        if threads > 1 and name.startswith("attention"):
            # Each thread frees a sum for each query when it is done.
            cpu, pretended = sizes(cpu), sizes(pretended)
        if cpu != pretended:
            differ[name] = {"cpu": cpu, "meta": pretended}
    assert not differ


@isolated
def test_convolutions_request_their_tensors_in_blocks() -> None:
    """oneDNN has scratch memory besides, and sometimes another layout."""

    def make() -> Inputs:
        return floats(8, 3, 32, 32), floats(64, 3, 8, 8), floats(64)

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(x.detach(), weight, bias, stride=8)

    cpu, pretended = (sizes(requests(pretended, make, run)) for pretended in (False, True))
    result, weights = 4 * 8 * 64 * 16, 4 * 64 * 3 * 64
    assert pretended[3:6] == cpu[3:6] == [weights, result, result]
    left = iter(cpu)
    assert all(size in left for size in pretended)


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int, heads: int, drop: float, causal: bool) -> None:
        super().__init__()
        self.heads, self.drop, self.causal = heads, drop, causal
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        drop = self.drop
        parts = self.inner(self.norms[0](x)).chunk(3, -1)
        heads = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts]
        y = F.scaled_dot_product_attention(*heads, dropout_p=drop, is_causal=self.causal)
        x = x + F.dropout(self.outer(y.transpose(1, 2).flatten(2)), drop)
        return x + F.dropout(self.narrow(F.gelu(self.wide(self.norms[1](x)))), drop)


class Gated(nn.Module):
    """A block of a Llama, whose positions are real."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.inner = nn.Linear(width, 3 * width, bias=False)
        self.outer = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inner(self.norms[0](x)).chunk(3, -1)
        heads = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts]
        half = heads[0].shape[-1] // 2
        angles = torch.outer(torch.arange(x.shape[1]), 10000.0 ** (-torch.arange(half) / half))
        sine, cosine = angles.sin().repeat(1, 2), angles.cos().repeat(1, 2)

        def turned(y: Tensor) -> Tensor:
            return y * cosine + torch.cat((-y[..., half:], y[..., :half]), -1) * sine

        y = F.scaled_dot_product_attention(*map(turned, heads[:2]), heads[2], is_causal=True)
        x = x + self.outer(y.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Language(nn.Module):
    """A model of the next token."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(500, 128), nn.Embedding(64, 128)
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(128, 500, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        y = self.head(self.blocks(y))
        return F.cross_entropy(y[:, :-1].flatten(0, 1), x[:, 1:].flatten())


class Vision(nn.Module):
    """A vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 128, 16, 16)
        self.first, self.places = (nn.Parameter(torch.zeros(1, n, 128)) for n in (1, 17))
        self.blocks = nn.Sequential(*(Block(128, 2, 0.0, causal=False) for _ in range(3)))
        self.head = nn.Linear(128, 100)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat((self.first.expand(len(y), -1, -1), y), 1) + self.places
        return F.cross_entropy(self.head(self.blocks(y)[:, 0]), torch.arange(len(x)))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt": lambda: Language(*(Block(128, 2, 0.1, causal=True) for _ in range(3))),
    "llama": lambda: Language(*(Gated(128, 2) for _ in range(3))),
    "vit": Vision,
}


def training(name: str) -> Callable[[], Tensor]:
    torch.set_num_threads(2)
    torch.manual_seed(0)
    model = MODELS[name]()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> Tensor:
        x = torch.randn(8, 3, 64, 64) if name == "vit" else torch.randint(0, 500, (8, 64))
        loss: Tensor = model(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def losses(step: Callable[[], Tensor], count: int) -> list[float]:
    found = []
    for _ in range(count):
        found.append(step().item())
        stalloc.step()
    return found


def save_plan(name: str, path: Path) -> None:
    """A process of its own, as of another machine."""
    torch.set_num_threads(2)
    with stalloc.profile(device="meta", target="cpu") as prof:
        step = training(name)
        for _ in range(3):
            step()
            prof.step()
    plan = prof.plan()
    assert (plan.info["device"], plan.info["target"]) == ("meta", "cpu")
    plan.save(path)


def train_under_plan(path: Path, name: str) -> None:
    expected = losses(training(name), RECORDED + 6)
    with stalloc.enable(path, startup=True) as session:
        step = training(name)
        found = losses(step, 1)
        first = stalloc.memory_stats()
        found += losses(step, RECORDED)
        assert session.correction is not None
        before = stalloc.memory_stats()
        found += losses(step, 5)
        stats = stalloc.memory_stats()
        _core.runtime("cpu").check()
    assert found == expected
    assert first["hits"] >= 0.95 * first["planned"]
    assert first["startup_requests"] == first["startup"]
    requests = stats["requests"] - before["requests"]
    assert stats["served_as_planned"] - before["served_as_planned"] >= 0.99 * requests
    assert stats["efficiency"] >= 0.98


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_without_values_serves_the_cpu_from_its_first_request(
    name: str, tmp_path: Path
) -> None:
    run_isolated(save_plan, name, tmp_path / "plan.json")
    run_isolated(train_under_plan, tmp_path / "plan.json", name)


@isolated
def test_nothing_is_computed_and_large_models_take_no_memory() -> None:
    with stalloc.profile(device="meta", target="cpu") as prof:
        weight = nn.Parameter(torch.empty(1 << 20, 1 << 20))
        loss = weight.sum()
        loss.backward()
        assert weight.device.type == "cpu"
        assert loss.item() == 1
    assert prof.trace.requests.size.tolist().count(4 << 40) == 2
    (guess,) = prof.guesses
    assert math.isclose(float(guess.value), 1)
    x = torch.ones(3)
    assert F.linear(x, torch.eye(3)).tolist() == [1, 1, 1]


def test_a_target_goes_with_the_meta_device() -> None:
    with pytest.raises(ValueError, match="goes with device='meta'"):
        stalloc.profile(device="cpu", target="cpu")
    with pytest.raises(ValueError, match="target is"):
        stalloc.profile(device="meta", target="tpu")


SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(2)
layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True)
model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.DataLoader(torch.randn(72, 32, 64), batch_size=8, shuffle=True)
for x in data:
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss.item():.9f}")
"""


def test_a_script_for_the_cpu_is_profiled_unchanged(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    expected = python("train.py", cwd=tmp_path).stdout
    made = ("run", "--profile", "made", "--device", "meta", "--target", "cpu", "train.py")
    done = python("-m", "stalloc", *made, cwd=tmp_path)
    assert done.stdout == ""
    assert "train.py:16: a value of a tensor was taken for 1.0" in done.stderr
    assert "Traceback" not in done.stderr
    done = python("-m", "stalloc", "run", "--plan", "made", "train.py", cwd=tmp_path)
    assert done.stdout == expected
    rate = re.search(r"hit rate ([\d.]+) %", done.stderr)
    assert rate is not None
    assert float(rate[1]) >= 99.5
    done = python("-m", "stalloc", "run", "--target", "cpu", "train.py", cwd=tmp_path, code=2)
    assert "--target needs --profile DIR --device meta" in done.stderr
