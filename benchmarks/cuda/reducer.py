"""Measures the memory of a gradient reduce and a parameter gather that overlap with computation.

    make bench-cuda

As distributed optimizers do it: one side stream gathers the parameters of the next layer, another
one reduces the gradients of the last one. Whatever a second stream uses is handed to it with
record_stream and freed at once, so no stream waits before it reuses memory. On the pretended GPU
(tests/standin), whose order detector follows each use. Each allocator has a process of its own,
from its start on. Prints a table; with `--output NAME` writes NAME.json.
"""

from __future__ import annotations

import comparison
import torch
from comparison import use

import stalloc

LAYERS, RANKS, PARAMETERS, SAVED = 12, 8, 48 << 20, 40 << 20
STEPS = 128  # enough to use up the moves of a run whose memory moves in each one


def _make(size: int, stream: torch.cuda.Stream) -> torch.Tensor:
    with torch.cuda.stream(stream):
        buffer = torch.empty(size, dtype=torch.uint8, device="cuda")
    use(buffer, stream)
    return buffer


def _share(buffer: torch.Tensor, before: torch.cuda.Stream, user: torch.cuda.Stream) -> None:
    """Lets `user` work on the buffer after `before`, whose memory it is."""
    user.wait_stream(before)
    use(buffer, user)
    buffer.record_stream(user)


def train(steps: int) -> None:
    """Runs forwards and backwards with gathered parameters and reduced gradients."""
    main, gathers, reduces = (torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(2)))
    weight = torch.nn.Parameter(torch.zeros(1 << 20, device="cuda"))
    optimizer = torch.optim.SGD([weight])
    for _ in range(steps):
        loss = (weight * 2).sum()
        saved = []
        upcoming = _make(PARAMETERS, gathers)
        for layer in range(2 * LAYERS):
            parameters = upcoming
            if layer + 1 < 2 * LAYERS:
                upcoming = _make(PARAMETERS, gathers)
            _share(parameters, gathers, main)
            del parameters
            if layer < LAYERS:
                saved.append(_make(SAVED, main))
                _make(2 * SAVED, main)
                continue
            gradients = _make(PARAMETERS, main)
            use(saved.pop(), main)
            _share(gradients, main, reduces)
            del gradients
            _make(PARAMETERS // RANKS, reduces)
        main.wait_stream(reduces)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        stalloc.step()


if __name__ == "__main__":
    about = {"layers": LAYERS, "ranks": RANKS, "parameters": PARAMETERS, "saved": SAVED}
    comparison.main(__file__, __doc__, train, STEPS, about)
