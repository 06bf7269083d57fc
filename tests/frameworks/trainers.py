"""Shared by the tests of trainers: a small model, its data, and the criteria."""

from __future__ import annotations

import hashlib
import multiprocessing
import sys
import warnings
from dataclasses import dataclass, field

import torch
from criteria import static_hits
from packages import folders
from torch import Tensor, nn
from torch.nn import functional

import stalloc
from stalloc import _core

# Behind everything else: what the environment has already comes from there.
sys.path.extend(folders("trainers"))

# They take seconds to import, so the server that tests are forked from has done it.
_PRELOADED = ["transformers.trainer", "lightning.pytorch", "accelerate", "torch.distributed"]
multiprocessing.get_context("forkserver").set_forkserver_preload(
    ["torch", "torch._dynamo", "numpy", "stalloc", *_PRELOADED]
)

VOCABULARY = 64
LENGTH = 24


@dataclass
class Run:
    """The result of a training: equal for equal trainings."""

    losses: list[float] = field(default_factory=list)
    weights: str = ""

    def keep(self, model: nn.Module) -> Run:
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        self.weights = digest.hexdigest()
        return self

    def assert_same(self, other: Run) -> None:
        assert len(self.losses) > 0
        assert self == other


def prepare() -> None:
    """In each process that trains: one thread, and no warning of ours passes by."""
    torch.set_num_threads(1)
    warnings.simplefilter("error", stalloc.StallocWarning)


def network(layers: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [nn.TransformerEncoderLayer(32, 2, 64, batch_first=True) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(VOCABULARY, 32), *blocks, nn.Linear(32, VOCABULARY))


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def tokens(rows: int = 256) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(VOCABULARY, (rows, LENGTH + 1), generator=generator)


def assert_served(iterations: int, least: float = 0.99) -> None:
    """So many were completed under a plan, which served what it had planned."""
    _core.runtime("cpu").check()
    stats = stalloc.memory_stats()
    assert stats["iterations"] == iterations
    assert stats["planned"] > 100
    assert static_hits(stats) >= least, static_hits(stats)


def phases_of(path: str) -> set[tuple[str, int, int]]:
    """Kind, microbatch and chunk of every phase of a trace."""
    phases = stalloc.Trace.load(path).phases
    kinds = [stalloc.tables.PHASE_KINDS[kind] for kind in phases.kind]
    return set(zip(kinds, phases.microbatch.tolist(), phases.chunk.tolist(), strict=True))
