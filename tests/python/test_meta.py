"""Profiles on the meta device request what kernels that compute do, request by request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from isolation import isolated
from torch import Tensor
from torch.nn import functional as F

import stalloc

SCALAR = 32
"""Bytes: the CPU's operators put numbers into tensors, which a GPU's read from the host."""


def requests(device: str, run: Callable[[], object]) -> list[int]:
    """Sizes of what `run` requests, in their order."""
    with stalloc.profile(device=device, layers=False) as prof:
        run()
    return [size for size in prof.trace.requests.size.tolist() if size > SCALAR]


def lives(device: str, run: Callable[[], object]) -> list[tuple[int, bool]]:
    """The same with whether each is freed before the end."""
    with stalloc.profile(device=device, layers=False) as prof:
        kept = run()
    table = prof.trace.requests
    del kept
    return [
        (size, upper < prof.trace.end)
        for size, upper in zip(table.size.tolist(), table.upper.tolist(), strict=True)
        if size > SCALAR
    ]


def floats(*shape: int) -> Tensor:
    return torch.ones(*shape, requires_grad=True)


def rows() -> tuple[Tensor, ...]:
    return (floats(64, 100),)


def pair() -> tuple[Tensor, ...]:
    return floats(64, 100), floats(64, 100)


def labelled() -> tuple[Tensor, ...]:
    return floats(64, 100), torch.zeros(64, dtype=torch.int64)


Make = Callable[[], tuple[Any, ...]]
OPERATORS: dict[str, tuple[Make, Callable[..., Any]]] = {
    "exp out": (rows, lambda x: torch.exp(x.detach(), out=x.detach())),
    "exp_": (rows, lambda x: x.detach().exp_()),
    "pow out": (rows, lambda x: torch.pow(x.detach(), 2, out=x.detach())),
    "sum out": (rows, lambda x: torch.sum(x.detach(), 1, out=x.new_empty(64))),
    "sum into nothing": (rows, lambda x: torch.sum(x.detach(), 1, out=x.new_empty(0))),
    "clamp_": (rows, lambda x: x.detach().clamp_(0, 1)),
    "lerp_": (pair, lambda x, y: x.detach().lerp_(y.detach(), 0.1)),
    "addcmul_": (pair, lambda x, y: x.detach().addcmul_(y.detach(), y.detach())),
    "addcdiv_": (pair, lambda x, y: x.detach().addcdiv_(y.detach(), y.detach())),
    "foreach lerp": (pair, lambda x, y: torch._foreach_lerp_([x.detach()], [y.detach()], 0.1)),
    "gelu": (rows, F.gelu),
    "gelu tanh": (rows, lambda x: F.gelu(x, approximate="tanh")),
    "silu": (rows, F.silu),
    "softplus": (rows, F.softplus),
    "elu": (rows, F.elu),
    "logsigmoid": (rows, F.logsigmoid),
    "tanh": (rows, torch.tanh),
    "sigmoid": (rows, torch.sigmoid),
    "glu": (rows, F.glu),
    "log softmax": (rows, lambda x: torch.log_softmax(x, -1)),
    "masked fill": (rows, lambda x: x.masked_fill(x > 0, 0.0)),
    "where": (rows, lambda x: torch.where(x > 0, x, 0)),
    "square": (rows, lambda x: x.pow(2)),
    "rsqrt": (rows, torch.rsqrt),
    "mean": (rows, lambda x: x.mean(-1, keepdim=True)),
    "var": (rows, lambda x: x.var(0)),
    "cat": (pair, lambda x, y: torch.cat((x, y), 1)),
    "stack": (pair, lambda x, y: torch.stack((x, y), 1)),
    "repeat": (rows, lambda x: x.repeat(2, 2)),
    "tril": (rows, torch.tril),
    "roll": (rows, lambda x: x.roll(1, 0)),
    "pad": (rows, lambda x: F.pad(x, (1, 1))),
    "permute": (rows, lambda x: x.view(4, 16, 100).permute(2, 0, 1).reshape(100, -1)),
    "to bfloat16": (rows, lambda x: x.bfloat16()),
    "addmm": (lambda: (floats(50), floats(64, 100), floats(100, 50)), torch.addmm),
    "baddbmm": (lambda: (floats(4, 9, 7), floats(4, 9, 8), floats(4, 8, 7)), torch.baddbmm),
    "linear": (lambda: (floats(4, 9, 100), floats(50, 100), floats(50)), F.linear),
    "layer norm": (
        lambda: (floats(64, 100), floats(100)),
        lambda x, w: F.layer_norm(x.detach(), (100,), w.detach()),
    ),
    "embedding": (
        lambda: (floats(1000, 64), torch.zeros(4, 80, dtype=torch.int64)),
        lambda w, i: F.embedding(i, w),
    ),
    "cross entropy": (labelled, F.cross_entropy),
    "cross entropy, each": (labelled, lambda x, y: F.cross_entropy(x, y, reduction="none")),
    "squared error": (pair, F.mse_loss),
    "squared error, each": (pair, lambda x, y: F.mse_loss(x, y, reduction="none")),
    "absolute error": (pair, F.l1_loss),
    "smooth error": (pair, F.smooth_l1_loss),
    "Huber": (pair, F.huber_loss),
    "binary cross entropy": (
        lambda: (torch.full((64, 100), 0.5, requires_grad=True), torch.ones(64, 100)),
        F.binary_cross_entropy,
    ),
    "max pool": (lambda: (floats(4, 8, 16, 16),), lambda x: F.max_pool2d(x, 2)),
    "average pool": (lambda: (floats(4, 8, 16, 16),), lambda x: F.avg_pool2d(x, 2)),
}


def forward_and_backward(run: Callable[..., Any], inputs: tuple[Any, ...]) -> object:
    result = run(*inputs)
    if isinstance(result, Tensor) and result.requires_grad:
        result.backward(torch.ones_like(result))
    return result


@isolated
def test_operators_request_on_meta_what_they_do_on_the_cpu() -> None:
    differ = {}
    for name, (make, run) in OPERATORS.items():
        seen = {}
        for device in ("cpu", "meta"):
            with torch.device(device):
                inputs = make()
            seen[device] = lives(device, partial(forward_and_backward, run, inputs))
        if seen["cpu"] != seen["meta"]:
            differ[name] = seen
    assert not differ


@isolated
def test_long_sums_are_divided_among_thread_blocks() -> None:
    x = torch.ones(2048, 512, device="meta")
    blocks, columns = 2048 // 4 // 16, 32 * 4  # rows of a thread; of a block's 128 threads
    with stalloc.profile(device="meta", layers=False) as prof:
        x.sum(0)
    parts, counters = 4 * 512 * blocks * columns, 4 * 512 // columns
    assert prof.trace.requests.size.tolist() == [4 * 512, parts, counters]
    assert requests("meta", lambda: x[:500].sum(0)) == [4 * 512]


@isolated
def test_shared_keys_hold_no_scores_if_each_head_has_its_own() -> None:
    x = torch.ones(2, 4, 512, 32, device="meta")
    attend = partial(F.scaled_dot_product_attention, x, x, x, is_causal=True, enable_gqa=True)
    assert 4 * 2 * 4 * 512 * 512 not in requests("meta", attend)


@isolated
def test_operators_of_several_kernels_keep_their_temporaries() -> None:
    def scored(device: str) -> list[int]:
        x = torch.ones(64, 100, device=device)
        return requests(device, lambda: ((x * 2 + 1).exp() / 3).sum(0))

    assert scored("meta") == scored("cpu")
    x = torch.ones(64, 100, device="meta")
    whole = x.untyped_storage().nbytes()
    assert requests("meta", lambda: torch.logsumexp(x, 1)).count(whole) == 1
    assert requests("meta", lambda: F.mse_loss(x, x)) == [whole, whole]


@isolated
def test_dropout_keeps_a_mask_of_bytes() -> None:
    x = torch.ones(64, 100, device="meta", requires_grad=True)
    assert requests("meta", lambda: F.dropout(x, 0.1)) == [6400, 4 * 6400]
    assert requests("meta", lambda: F.dropout(x, 0.1, training=False)) == []
    assert requests("meta", lambda: F.dropout(x, 0.0)) == []
    assert requests("meta", lambda: F.dropout(x, 1.0)) == [4 * 6400]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
@isolated
def test_attention_holds_no_scores(dtype: torch.dtype, masked: bool) -> None:
    batch, heads, length, size = 2, 4, 512, 36
    inputs = [
        torch.ones(batch, heads, length, size, dtype=dtype, device="meta", requires_grad=True)
        for _ in range(3)
    ]
    mask = torch.ones(length, length, dtype=torch.bool, device="meta") if masked else None

    def run() -> None:
        result = F.scaled_dot_product_attention(*inputs, attn_mask=mask, is_causal=not masked)
        assert result.shape == inputs[0].shape
        result.backward(torch.ones_like(result))
        assert all(x.grad is not None and x.grad.shape == x.shape for x in inputs)

    scores = batch * heads * length * length * dtype.itemsize
    assert 0 < max(requests("meta", run)) < scores
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert max(requests("meta", run)) >= scores


@isolated
def test_torch_has_its_own_kernels_back_after_a_profile() -> None:
    def kernels() -> list[str]:
        return [
            torch._C._dispatch_dump(f"aten::{name}")
            for name in ("exp_", "gelu", "dropout", "scaled_dot_product_attention")
        ]

    before = kernels()
    for _ in range(2):
        with stalloc.profile(device="meta"):
            assert kernels() != before
        assert kernels() == before
    with pytest.raises(ZeroDivisionError), stalloc.profile(device="meta"):
        raise ZeroDivisionError
    assert kernels() == before
    x = torch.ones(3, device="meta")
    assert F.gelu(x.exp_()).shape == (3,)


@isolated
def test_a_kernel_that_fails_leaves_the_recording_going() -> None:
    x = torch.ones(64, 100, device="meta")

    def run() -> None:
        with pytest.raises(RuntimeError):
            torch.addmm(x, x, x)
        torch.exp(x)

    assert requests("meta", run) == [4 * 6400]


def test_threads_lose_and_gain_no_requests() -> None:
    count = 500

    def softplus() -> None:
        x = torch.empty(777, device="meta")
        for _ in range(count):
            torch.nn.functional.softplus(x)

    with stalloc.profile(device="meta") as prof:
        threads = [threading.Thread(target=softplus) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        prof.step()
    sizes = prof.trace.requests.size
    assert (sizes == 777 * 4).sum() == 4 * (count + 1)
    assert len(sizes) == 4 * (count + 1)


def test_edge_cases_are_as_without_a_profile() -> None:
    with stalloc.profile(device="meta") as prof, torch.device("meta"):
        assert torch.logsumexp(torch.empty(3, 0), 1).shape == (3,)
        assert torch.logsumexp(torch.empty(3, 4, dtype=torch.complex64), 1).dtype == torch.complex64
        x = torch.empty(4, 5).t()
        loss = torch.nn.functional.mse_loss(x, torch.empty(4, 5).t(), reduction="none")
        assert loss.stride() == (1, 5)
        assert torch.nn.functional.dropout(x, 0.0) is x
        with pytest.raises(RuntimeError, match="between 0 and 1"):
            torch.dropout(x, 2.0, train=True)
        q = torch.empty(1, 2, 8, 16)
        with pytest.raises(RuntimeError, match="is_causal"):
            torch.nn.functional.scaled_dot_product_attention(
                q, q, q, attn_mask=torch.empty(8, 8), is_causal=True
            )
        prof.step()


# Measured on an H200 under torch 2.11: benchmarks/traces/real.


def of_training(make: Make, run: Callable[..., Tensor]) -> list[int]:
    """Requests of an operator on the meta device, forward and backward."""
    with torch.device("meta"):
        inputs = make()
    return requests("meta", lambda: run(*inputs).sum().backward())


def test_rms_norm_is_one_kernel_forward_and_one_backward() -> None:
    x, weight = (64, 100), (100,)
    made = of_training(
        lambda: (floats(*x), floats(*weight)), lambda x, w: F.rms_norm(x, (100,), w, 1e-6)
    )
    assert made == [64 * 400, 64 * 4, 64 * 400, 400]
    composed = of_training(lambda: (floats(*x),), lambda x: F.rms_norm(x.bfloat16(), (100,)))
    assert composed[:3] == [64 * 200, 64 * 200, 64 * 4]


@pytest.mark.parametrize("operator", [F.silu, F.mish], ids=["silu", "mish"])
def test_gradients_of_activations_are_one_kernel(operator: Callable[[Tensor], Tensor]) -> None:
    assert of_training(rows, operator) == [64 * 400, 64 * 400]


def test_an_embedding_reads_contiguous_indices() -> None:
    def make() -> tuple[Tensor, ...]:
        return floats(50, 16), torch.zeros(4, 9, dtype=torch.int64)

    made = of_training(make, lambda w, i: F.embedding(i[:, :-1], w))
    assert made == [4 * 8 * 8, 4 * 8 * 64, 4 * 8 * 8, 4 * 8 * 64, 50 * 64]
    made = of_training(make, lambda w, i: F.embedding(i, w))
    assert made == [4 * 9 * 64, 4 * 9 * 64, 50 * 64]


def test_gradients_of_an_embedding_with_many_indices_are_sorted_and_added_in_parts() -> None:
    made = of_training(
        lambda: (floats(50304, 1024), torch.zeros(8192, dtype=torch.int64)),
        lambda w, i: F.embedding(i, w),
    )
    index, sums = 8192 * 8, (8192 // 10 + 8192) * 1024 * 4
    assert made[-9:] == [*[index] * 3, 206045184, *[index] * 3, 72088, sums]
    assert sums == 36909056


def test_flash_attention_adds_up_gradients_in_high_precision() -> None:
    def heads(length: int, size: int) -> Tensor:
        return torch.ones(2, 4, length, size, dtype=torch.bfloat16, requires_grad=True)

    def gradients(length: int, size: int) -> list[int]:
        return of_training(
            lambda: tuple(heads(length, size) for _ in range(3)),
            partial(F.scaled_dot_product_attention, is_causal=True),
        )[-5:]

    assert gradients(100, 64) == [
        *[2 * 4 * 100 * 64 * 2] * 3,
        2 * 4 * 128 * 4,
        2 * 4 * 128 * 64 * 4,
    ]
    assert gradients(128, 72)[-1] == 2 * 4 * 128 * 96 * 4
    assert gradients(128, 136)[-1] == 2 * 4 * 128 * 192 * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@isolated
def test_arguments_that_look_the_same_have_results_that_do(dtype: torch.dtype) -> None:
    """The shapes are kept, the memory is requested each time."""

    def made(device: str) -> list[tuple[object, ...]]:
        x = torch.ones(8, 6, 4, dtype=dtype, device=device)
        turned = x.transpose(0, 1)
        results = [
            x * 2,
            x * 2.5,
            turned * 2,
            torch.where(x > 1, x, 0.0),
            x + torch.ones(4, device=device),
            torch.cat([x, turned.transpose(0, 1)]),
            x.to(torch.float64),
            x.view(-1, 4).softmax(-1, dtype=torch.float32),
            F.layer_norm(x, (4,)),
            F.gelu(turned),
        ]
        assert len({t.untyped_storage()._cdata for t in results}) == len(results)
        return [(t.shape, t.stride(), t.dtype) for t in results]

    looks = []
    sizes = requests("meta", lambda: looks.extend(made("meta") for _ in range(2)))
    assert looks == [made("cpu")] * 2
    assert sizes[: len(sizes) // 2] == sizes[len(sizes) // 2 :]


@isolated
def test_a_python_kernel_runs_once_for_arguments_that_look_the_same() -> None:
    calls: list[torch.Size] = []
    shape = torch._refs.native_layer_norm

    def counted(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        calls.append(x.shape)
        return shape(x, *args, **kwargs)

    operator = torch.ops.aten.native_layer_norm.default
    kept = operator.py_kernels[torch._C.DispatchKey.Meta]
    operator.py_kernels[torch._C.DispatchKey.Meta] = counted
    try:
        with stalloc.profile(device="meta", layers=False):
            for length in (8, 8, 9, 8, 9):
                F.layer_norm(torch.ones(length, 4, device="meta"), (4,))
    finally:
        operator.py_kernels[torch._C.DispatchKey.Meta] = kept
    assert [length for length, _ in calls] == [8, 9]
