"""Extra work of some runs: parts of a step whose results depend on memory.

On a GPU work goes on after the host has let go of its memory. So kernels are held up here: where an
address is given away too early, it is written to before it has been read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

import stalloc
from stalloc.session import current_session

FLOATS = 1 << 20
CYCLES = 20_000_000  # some 10 ms
SHARED_IN = 1003  # a step that is measured: by then the plan is followed


@cache
def _side() -> torch.cuda.Stream:
    return torch.cuda.Stream()


def _take(value: float) -> list[Tensor]:
    return [torch.full((FLOATS,), value, device="cuda") for _ in range(3)]


def _sums(tensors: list[Tensor]) -> list[float]:
    return [t.sum().item() for t in tensors]


def recorded_stream(step: int) -> list[float]:
    """A side stream still has to read a tensor when it is freed; record_stream() has said so."""
    x = torch.full((FLOATS,), float(step), device="cuda")
    _side().wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(_side()):
        torch.cuda._sleep(CYCLES)
        y = x.sum()
    x.record_stream(_side())
    del x
    taken = _take(-1)
    torch.cuda.current_stream().wait_stream(_side())
    return _sums([y, *taken])


def side_stream(step: int) -> list[float]:
    """A side stream still has to write to its tensor when that is freed."""
    with torch.cuda.stream(_side()):
        torch.cuda._sleep(CYCLES)
        x = torch.full((FLOATS,), float(step), device="cuda")
        y = x.sum()
        del x
    taken = _take(-2)
    torch.cuda.current_stream().wait_stream(_side())
    return _sums([y, *taken])


@cache
def _captured() -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
    x = torch.ones(FLOATS, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 3).cos() + x
    return graph, x, y


def graph(step: int) -> list[float]:
    """A graph uses its memory in every replay: nobody else may."""
    captured, x, y = _captured()
    x.fill_(step)
    taken = _take(-3)
    captured.replay()
    return _sums([y, *taken])


def out_of_memory(step: int) -> list[float]:
    """Asks for more than there is, and goes on."""
    x = torch.full((FLOATS,), float(step), device="cuda")
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        return _sums([x])
    raise AssertionError("no GPU has a petabyte")


def _read(tensors: Any, results: Any) -> None:
    x = tensors.get()
    results.put(x.sum().item())


def shared(step: int) -> list[float]:
    """Another process reads a tensor of this one."""
    x = torch.full((FLOATS,), float(step), device="cuda")
    if step != SHARED_IN:
        return _sums([x])
    context = torch.multiprocessing.get_context("spawn")
    tensors, results = context.SimpleQueue(), context.SimpleQueue()
    child = context.Process(target=_read, args=(tensors, results))
    child.start()
    tensors.put(x)
    child.join(timeout=100)
    if child.exitcode != 0 or results.empty():
        child.kill()
        raise RuntimeError(f"the other process could not read it: exit code {child.exitcode}")
    return [float(results.get())]


# By the names that `--extras` takes.
EXTRAS: dict[str, list[Callable[[int], list[float]]]] = {
    "streams": [recorded_stream, side_stream],
    "graph": [graph],
    "memory": [out_of_memory],
    "shared": [shared],
}


def release_pool_for_a_while() -> None:
    """The work of `--release` between two steps, as for inference."""
    if current_session() is None:
        return
    stalloc.release_pool()
    torch.full((64 * FLOATS,), 1.0, device="cuda")
    torch.cuda.empty_cache()
    stalloc.acquire_pool()
