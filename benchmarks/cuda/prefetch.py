"""Measures the memory of weights that a side stream fetches one layer ahead.

    make bench-cuda

As with weights that are offloaded to the host: a side stream allocates and fills the weights of the
next layer while the main stream works with those of this one, in the forward and in the backward.
Before it fetches, it waits for the main stream, which is done with the layer before. On the
pretended GPU (tests/standin). Each allocator has a process of its own, from its start on. Prints a
table; with `--output NAME` writes NAME.json.
"""

from __future__ import annotations

from collections.abc import Iterator

import comparison
import torch
from comparison import use

import stalloc

LAYERS, BYTES, SAVED, STEPS = 12, 48 << 20, 20 << 20, 8


def _fetch(side: torch.cuda.Stream) -> tuple[torch.Tensor, torch.cuda.Event]:
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        weights = torch.empty(BYTES, dtype=torch.uint8, device="cuda")
        use(weights, side)
        return weights, side.record_event()


def _layers(side: torch.cuda.Stream) -> Iterator[None]:
    """Yields while the weights of each layer are there and the next ones are fetched."""
    main = torch.cuda.current_stream()
    upcoming = _fetch(side)
    for layer in range(LAYERS):
        weights, arrived = upcoming
        if layer + 1 < LAYERS:
            upcoming = _fetch(side)
        main.wait_event(arrived)
        use(weights, main)
        yield
    side.wait_stream(main)


def train(steps: int) -> None:
    """Runs forwards and backwards whose weights are fetched, and small optimizer steps."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    weight = torch.nn.Parameter(torch.zeros(1 << 20, device="cuda"))
    optimizer = torch.optim.SGD([weight])
    for _ in range(steps):
        loss = (weight * 2).sum()
        saved = []
        for _layer in _layers(side):
            saved.append(torch.empty(SAVED, dtype=torch.uint8, device="cuda"))
            temporary = torch.empty(3 * SAVED, dtype=torch.uint8, device="cuda")
            use(saved[-1], main)
            use(temporary, main)
            del temporary
        for _layer in _layers(side):
            use(saved.pop(), main)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        stalloc.step()


if __name__ == "__main__":
    about = {"layers": LAYERS, "weights": BYTES, "saved": SAVED}
    comparison.main(__file__, __doc__, train, STEPS, about)
