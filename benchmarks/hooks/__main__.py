"""Measures the cost of stalloc's hooks: a step of a model with 100 M parameters.

The same model trains the same batches alternately with all hooks of a plan (phases, the engine, the
optimizer, patterns of dynamic modules) and without, and the medians are compared. The allocator is
the same in both, so this is the cost of the Python part. The cost of one event is measured, too.

    python benchmarks/hooks [--steps 12]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from stalloc import hooks
from stalloc._frameworks.positions import Positions
from stalloc.dynamic import DEFAULT_DYNAMIC
from stalloc.hooks import PhaseKind, TrainingHooks

LAYERS, WIDTH, VOCABULARY, LENGTH, MICROBATCHES = 12, 768, 16_000, 128, 4


class Sink:
    """Hears everything and does nothing: the runtime's part is measured elsewhere."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return _nothing


def _nothing(*_: object) -> int:
    return 0


class Model(nn.Module):
    """A GPT, near enough."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, 0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next token."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, positions: Positions | None) -> float:
    """One iteration, with what a schedule's integration does where `positions` are given."""
    begin = time.process_time()
    if positions is not None:
        positions.restart()
    for i in range(MICROBATCHES):
        tokens = torch.randint(VOCABULARY, (1, LENGTH))
        if positions is None:
            loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            continue
        position = positions.forward(0, i)
        with hooks.phase(PhaseKind.FORWARD, *position):
            loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        positions.forwarded(position, [loss])
        with hooks.phase(PhaseKind.BACKWARD, *positions.backward([loss])):
            loss.backward()
    with hooks.phase(PhaseKind.OPTIMIZER):
        optimizer.step()
    optimizer.zero_grad()
    return time.process_time() - begin


def event_seconds(count: int = 20_000) -> float:
    """The cost of entering and leaving a phase."""
    begin = time.process_time()
    for i in range(count):
        with hooks.phase(PhaseKind.FORWARD, i):
            pass
    return (time.process_time() - begin) / count


def main() -> None:
    """Prints one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12, help="of each kind (default: 12)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    attached = TrainingHooks(Sink(), model, dynamic=DEFAULT_DYNAMIC)
    step(model, optimizer, None)
    without, hooked = [], []
    for _ in range(args.steps):
        without.append(step(model, optimizer, None))
        with attached:
            hooked.append(step(model, optimizer, Positions()))
            attached.end_iteration()
    with attached:
        event = event_seconds()
    base = statistics.median(without)
    pairs = [h / w - 1 for w, h in zip(without, hooked, strict=True)]
    # Those of a step: forward, backward and optimizer, each entered and left.
    events = 2 * MICROBATCHES + 1
    print(
        json.dumps(
            {
                "parameters": sum(p.numel() for p in model.parameters()),
                "microbatches": MICROBATCHES,
                "steps": args.steps,
                "seconds_without": base,
                "seconds_with": statistics.median(hooked),
                "overhead_of_medians": statistics.median(hooked) / base - 1,
                "median_of_paired_overheads": statistics.median(pairs),
                "microseconds_a_phase": 1e6 * event,
                "overhead_by_events": events * event / base,
                "machine": platform.machine(),
                "torch": torch.__version__,
            }
        )
    )


if __name__ == "__main__":
    main()
