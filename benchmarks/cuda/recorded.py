"""Measures the memory of a producer that is far ahead of its consumer on another stream.

    make bench-cuda

The pattern of lhb8125/cross-stream-gpu-memory-reuse: each step makes buffers, hands them to a
second stream with record_stream, and frees them, while that stream is up to 32 steps behind. On the
pretended GPU (tests/standin), which completes the second stream's work every 32 steps. Each
allocator has a process of its own, from its start on. Prints a table; with `--output NAME` writes
NAME.json.
"""

from __future__ import annotations

import ctypes
import itertools

import comparison
import torch
from comparison import PRETENDED

import stalloc

BUFFERS, BYTES, STEPS, BEHIND = 8, 20 << 20, 128, 32


def _use(buffer: torch.Tensor, stream: torch.cuda.Stream, owner: int) -> None:
    """Work on the buffer, which the order detector follows: a number for each use."""
    error = PRETENDED.standin_use(
        ctypes.c_void_p(stream.cuda_stream),
        ctypes.c_void_p(buffer.data_ptr()),
        ctypes.c_uint64(BYTES),
        ctypes.c_uint64(owner),
    )
    if error != 0:
        raise RuntimeError(f"the pretended GPU reports error {error}")


def train(steps: int) -> None:
    """Makes, hands over and frees buffers, a step at a time."""
    PRETENDED.standin_set_manual(1)  # new streams complete nothing by themselves
    consumer = torch.cuda.Stream()
    producer = torch.cuda.current_stream()
    weight = torch.nn.Parameter(torch.zeros(BYTES // 4, device="cuda"))
    optimizer = torch.optim.SGD([weight])
    owners = itertools.count(1)
    for step in range(steps):
        (weight * 2).sum().backward()
        for _ in range(BUFFERS):
            buffer = torch.empty(BYTES, dtype=torch.uint8, device="cuda")
            _use(buffer, producer, next(owners))
            consumer.wait_stream(producer)
            _use(buffer, consumer, next(owners))
            buffer.record_stream(consumer)
        del buffer
        optimizer.step()
        optimizer.zero_grad()
        stalloc.step()
        if step % BEHIND == BEHIND - 1:
            PRETENDED.standin_drain_all()


if __name__ == "__main__":
    about = {"buffers": BUFFERS, "bytes": BYTES, "behind": BEHIND}
    comparison.main(__file__, __doc__, train, STEPS, about)
