"""Profiles on the meta device request what the kernels of CUDA do, request by request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import stalloc
from stalloc import _gpu_reductions

Kernel = Callable[[str], Any]


@pytest.fixture(autouse=True)
def _same_gpu() -> Iterator[None]:
    """On the meta device, sums are divided as on the pretended GPU; cuDNN is left out."""
    found = torch.cuda.get_device_properties(0)
    enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        with _gpu_reductions.on(found.multi_processor_count, (found.major, found.minor)):
            yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)


def check(kernel: Kernel) -> list[int]:
    """Asserts that both devices have the same requests, and returns their sizes."""
    cuda, meta = requests("cuda", kernel), requests("meta", kernel)
    assert meta == cuda
    return [size for size, *_ in meta]


def requests(device: str, kernel: Kernel) -> list[tuple[int, int]]:
    """The size of each request, and how many of the others are made or freed until it is freed."""
    inputs = kernel(device)
    with stalloc.profile(device=device, layers=False) as prof:
        kept = inputs()
    table, end = prof.trace.requests, prof.trace.end
    del kept
    lives = table.upper.clip(max=end) - table.lower
    return list(zip(table.size.tolist(), lives.tolist(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["sum", "mean"])
@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((2048, 512), (0,)),
        ((8, 197, 384), (0, 1)),
        ((2048, 8000), (0,)),
        ((4096, 50), (0,)),
        ((400_001,), (0,)),
        ((3, 500_000), (1,)),
        ((64, 32, 28, 28), (0, 2, 3)),
        ((64, 100), (1,)),
    ],
)
def test_sums_are_divided_among_blocks(
    shape: tuple[int, ...], dims: tuple[int, ...], name: str, dtype: torch.dtype
) -> None:
    def kernel(device: str) -> Callable[[], Tensor]:
        x = torch.empty(shape, dtype=dtype, device=device)
        return lambda: getattr(x, name)(dims)

    check(kernel)


def test_counts_are_cast_first() -> None:
    def kernel(device: str) -> Callable[[], Tensor]:
        mask = torch.empty(300, 1000, dtype=torch.bool, device=device)
        return mask.sum

    check(kernel)


def attending(
    heads: tuple[int, int] = (4, 4),
    length: int = 256,
    size: int = 64,
    dtype: torch.dtype = torch.float32,
    mask: torch.dtype | None = None,
    **options: Any,
) -> Kernel:
    """Attention and its backward for tensors as projections give them."""

    def kernel(device: str) -> Callable[[], Any]:
        def made(number: int) -> Tensor:
            return torch.empty(2, length, number, size, dtype=dtype, device=device).transpose(1, 2)

        query, key, value = (made(n).requires_grad_() for n in (heads[0], heads[1], heads[1]))
        gradient, bias = made(heads[0]), None
        if mask is not None:
            bias = torch.empty(2, 1, length, length, dtype=mask, device=device)

        def run() -> Any:
            y = F.scaled_dot_product_attention(query, key, value, bias, **options)
            return y, torch.autograd.grad(y, (query, key, value), gradient)

        return run

    return kernel


@pytest.mark.parametrize("drop", [0.0, 0.1])
@pytest.mark.parametrize("size", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("length", [64, 197, 256])
def test_memory_efficient_attention(length: int, size: int, drop: float) -> None:
    check(attending(length=length, size=size, dropout_p=drop))


@pytest.mark.parametrize("size", [32, 64, 128, 256])
@pytest.mark.parametrize("length", [64, 197, 256])
@pytest.mark.parametrize("mask", [torch.bool, torch.bfloat16])
def test_masked_attention_of_16_bits(length: int, size: int, mask: torch.dtype) -> None:
    check(attending(length=length, size=size, dtype=torch.bfloat16, mask=mask))


@pytest.mark.parametrize("drop", [0.0, 0.1])
@pytest.mark.parametrize("size", [32, 64, 96, 128, 192])
@pytest.mark.parametrize("length", [256, 1000, 2048, 4096])
def test_flash_attention(length: int, size: int, drop: float) -> None:
    options = {"dropout_p": drop, "is_causal": True}
    check(attending(length=length, size=size, dtype=torch.bfloat16, **options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_that_may_share_keys_hold_no_scores(dtype: torch.dtype) -> None:
    sizes = check(attending(dtype=dtype, is_causal=True, enable_gqa=True))
    assert 2 * 4 * 256 * 256 * dtype.itemsize not in sizes


def test_dropout_makes_its_mask_first() -> None:
    def kernel(device: str) -> Callable[[], Tensor]:
        x = torch.empty(64, 100, device=device, requires_grad=True)
        return lambda: F.dropout(x, 0.1)

    assert check(kernel) == [6400, 25600]


def test_a_softmax_has_a_product_in_its_backward() -> None:
    def kernel(device: str) -> Callable[[], Any]:
        x = torch.empty(64, 100, device=device, requires_grad=True)
        y, gradient = torch.softmax(x, -1), torch.empty(64, 100, device=device)
        return lambda: torch.autograd.grad(y, x, gradient)

    assert check(kernel) == [25600, 25600]
