"""Measures how long steps take under `stalloc.auto()`, beside torch alone, on the CPU.

Two processes train the same program and take turns, step by step, so that both meet the same load
of the machine. One has called `stalloc.auto()`. Their losses must be the same to the bit.

    python benchmarks/steps [--steps 400] [-o FILE]

The ratio is that of the medians: of the steps once the plan is in force, and of all steps of the
first run, which holds the recording and the planning. A ratio of one pair of steps is noisy, so the
quartiles of these are given, too. One thread each: the turns leave the other core idle.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from commit import last_change
from torch import nn
from torch.nn import functional

Step = Callable[[int], torch.Tensor]
SIDES = ("torch", "auto")
_AT_FIRST = 20  # steps that are left out where a plan has been in force from the start


class Transformer(nn.Module):
    """A small GPT."""

    def __init__(self, layers: int, width: int, vocabulary: int = 1000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, [rows, length, vocabulary]."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]


def language(layers: int, width: int, lengths: tuple[int, ...]) -> Step:
    """Trains a GPT on batches of four rows; their length changes from step to step."""
    model = Transformer(layers, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(number: int) -> torch.Tensor:
        tokens = torch.randint(1000, (4, lengths[number % len(lengths)]))
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def vision() -> Step:
    """Trains a residual network on images of 64 x 64."""

    def block(channels: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()
        )

    model = nn.Sequential(
        nn.Conv2d(3, 32, 7, 2, 3),
        *(block(32) for _ in range(4)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step(_: int) -> torch.Tensor:
        images, labels = torch.randn(16, 3, 64, 64), torch.randint(10, (16,))
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


PROGRAMS: dict[str, Callable[[], Step]] = {
    "gpt": lambda: language(6, 256, (128,)),
    "gpt, lengths": lambda: language(6, 256, (96, 128, 64, 112, 80)),
    "gpt, tiny": lambda: language(2, 64, (32,)),
    "convolutions": vision,
}


def worker(program: str, side: str) -> None:
    """Makes one step for each line of its input, and prints its seconds, its loss and the state."""
    import stalloc

    if side == "auto":
        stalloc.auto()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    step = PROGRAMS[program]()
    for number, _ in enumerate(sys.stdin):
        begin = time.perf_counter()
        loss = step(number)
        seconds = time.perf_counter() - begin
        enabled = side == "auto" and stalloc.status()["stage"] == "serving"
        print(json.dumps([seconds, loss.item().hex(), enabled]), flush=True)


def measure(program: str, steps: int, cache: Path) -> dict[str, Any]:
    """One run of both sides.

    Raises:
        RuntimeError: A side failed, or the losses differ.
    """
    environment = {**os.environ, "STALLOC_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__)), "--worker", program]
    sides = [
        subprocess.Popen(
            [*command, side],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        for side in SIDES
    ]
    seconds: list[list[float]] = [[], []]
    since = None  # the step from which the plan has been in force
    for number in range(steps):
        losses = ["", ""]
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            took, losses[side], enabled = _turn(sides[side].stdin, sides[side].stdout)
            seconds[side].append(took)
            if enabled and since is None:
                since = number
        if losses[0] != losses[1]:
            raise RuntimeError(f"{program}: the losses of step {number} differ: {losses}")
    for process in sides:
        process.communicate()
    return {"since": since, "whole": _compared(*seconds, 1)} | (
        {"in force": _compared(*seconds, max(since, _AT_FIRST))} if since is not None else {}
    )


def _turn(requests: IO[str] | None, answers: IO[str] | None) -> tuple[float, str, bool]:
    assert requests is not None
    assert answers is not None
    requests.write("step\n")
    requests.flush()
    line = answers.readline()
    if not line:
        raise RuntimeError("a side ended early")
    took, loss, enabled = json.loads(line)
    return took, loss, enabled


def _compared(torch_: list[float], auto: list[float], begin: int) -> dict[str, float]:
    """Milliseconds of the median step from `begin` on, and their ratio."""
    first, second = torch_[begin:], auto[begin:]
    low, _, high = statistics.quantiles([b / a for a, b in zip(first, second, strict=True)], n=4)
    return {
        "steps": len(first),
        "torch_ms": round(1e3 * statistics.median(first), 3),
        "auto_ms": round(1e3 * statistics.median(second), 3),
        "ratio": round(statistics.median(second) / statistics.median(first), 4),
        "quartiles": [round(low, 4), round(high, 4)],
        "total_ratio": round(sum(second) / sum(first), 4),
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks/steps", description=__doc__)
    parser.add_argument("--steps", type=int, default=400, help="of each run (default: 400)")
    parser.add_argument("--only", choices=PROGRAMS, nargs="+", default=list(PROGRAMS))
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(*args.worker)
        return 0
    found: dict[str, dict[str, Any]] = {}
    for name in args.only:
        with tempfile.TemporaryDirectory() as cache:
            for run in ("first run", "second run"):
                result = measure(name, args.steps, Path(cache))
                found.setdefault(name, {})[run] = result
                print(f"{name}, {run}: {json.dumps(result)}", flush=True)
    if args.output:
        document = {
            "commit": last_change("csrc", "stalloc", "benchmarks/steps"),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "programs": found,
        }
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
