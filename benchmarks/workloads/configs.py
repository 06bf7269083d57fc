"""The configurations of the paper's evaluation: models, parallelism, optimizations.

A configuration is named `MODEL-OPTIMIZATIONS[-mbN][-tpN]-STAGE`, such as `llama2-7b-vr-first`. The
letters are the paper's: N none, R recomputation of every layer, V virtual pipeline, Z distributed
optimizer (ZeRO-1), O optimizer states offloaded to the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from models import (
    ENGINE_QWEN15_MOE,
    GPT2_345M,
    LEGACY_GPT2_345M,
    LEGACY_LLAMA2_7B,
    LLAMA2_7B,
    QWEN15_MOE,
    QWEN25_7B,
    QWEN25_14B,
    QWEN25_32B,
    QWEN25_72B,
    Model,
)
from router_drift import NONE, Drift


@dataclass(frozen=True)
class Parallelism:
    """The distribution of a model over ranks, and of a batch over microbatches.

    Attributes:
        tensor: Tensor-parallel ranks; activations outside the matrix products are split along the
            sequence over the same ranks.
        pipeline: Pipeline stages.
        data: Data-parallel ranks.
        expert: Expert-parallel ranks. Experts are not split further.
        microbatch: Sequences a microbatch.
        microbatches: Microbatches an iteration.
        chunks: Model chunks a rank (virtual pipeline); 1 for plain 1F1B.
    """

    tensor: int
    pipeline: int
    data: int
    microbatch: int
    microbatches: int
    expert: int = 1
    chunks: int = 1


class Overlap(Enum):
    """Work on other streams than that of the kernels, each with `record_stream`.

    Attributes:
        NONE: None, as in the paper's workloads.
        TRANSFERS: Sends and receives between pipeline stages (`streams.py`).
        OFFLOAD: Activations go to the host and come back (`streams.py`).
        SHARDED: Parameters are gathered and gradients reduced (`sharded.py`).
    """

    NONE = ""
    TRANSFERS = "transfers"
    OFFLOAD = "offload"
    SHARDED = "sharded"


@dataclass(frozen=True)
class Config:
    """One rank of one training run.

    Attributes:
        model: The model.
        parallelism: Its distribution.
        optimizations: The letters.
        last: It is the last pipeline stage, else the first.
        skew: Of the routing.
        seed: Of the routing.
        drift: Of the routing.
        overlap: Work on other streams. Needs a CUDA build of torch.
        behind: The device completes work where the next microbatch begins, else at once.
    """

    model: Model
    parallelism: Parallelism
    optimizations: str = "n"
    last: bool = False
    skew: float = 0.5
    seed: int = 1
    drift: Drift = NONE
    overlap: Overlap = Overlap.NONE
    behind: bool = False

    @property
    def recompute(self) -> bool:
        """True if every layer keeps only its input."""
        return "r" in self.optimizations

    @property
    def zero(self) -> bool:
        """True if the data-parallel ranks split the optimizer states."""
        return "z" in self.optimizations

    @property
    def offload(self) -> bool:
        """True if optimizer states live on the host."""
        return "o" in self.optimizations

    @property
    def stage(self) -> int:
        """The pipeline rank, from 0."""
        return self.parallelism.pipeline - 1 if self.last else 0

    @property
    def name(self) -> str:
        """As on the command line."""
        return f"{self.workload}-{'last' if self.last else 'first'}"

    @property
    def workload(self) -> str:
        """The name without the stage."""
        default = PAPER_MICROBATCH.get(self.model.name)
        odd = "" if self.parallelism.microbatch == default else f"-mb{self.parallelism.microbatch}"
        if self.parallelism.tensor != PAPER_TENSOR.get(self.model.name, self.parallelism.tensor):
            odd += f"-tp{self.parallelism.tensor}"
        if self.overlap is not Overlap.NONE:
            odd += f"-{self.overlap.value}"
        if self.behind:
            odd += "-behind"
        return f"{self.model.name}-{self.optimizations}{odd}"


# The settings of the paper's published experiment scripts.
_SPLIT = {  # tensor, pipeline, microbatch, microbatches, chunks when virtual
    GPT2_345M: (Parallelism(4, 2, 1, 128, 8), Parallelism(2, 2, 2, 128, 4), 6),
    LLAMA2_7B: (Parallelism(4, 2, 1, 4, 32), Parallelism(2, 2, 2, 4, 16), 8),
    QWEN15_MOE: (Parallelism(4, 2, 1, 8, 16, expert=4), Parallelism(2, 2, 2, 8, 8, expert=2), 6),
}
_SPLIT |= {
    LEGACY_GPT2_345M: _SPLIT[GPT2_345M],
    LEGACY_LLAMA2_7B: _SPLIT[LLAMA2_7B],
    ENGINE_QWEN15_MOE: _SPLIT[QWEN15_MOE],
}
PAPER_MICROBATCH = {model.name: plain.microbatch for model, (plain, _, _) in _SPLIT.items()}
# The authors ran offload in another framework, with the tokens of Llama2 and of Qwen1.5: it is what
# the loads of their last stages are explained by.
_OFFLOAD_VOCABULARY = {
    LEGACY_GPT2_345M: 32_000,
    LEGACY_LLAMA2_7B: 32_000,
    ENGINE_QWEN15_MOE: 151_936,
}
OPTIMIZATIONS = ("n", "r", "v", "vr", "zr", "zor")

# Qwen2.5, whose parallel settings the paper gives for 14B on 16 GPUs only; the others follow it.
# Microbatches are the largest powers of two whose load fits a GPU of 141 GB, which is how the paper
# chose them: with virtual pipeline, and with recomputation.
_SCALE = {
    QWEN25_7B: (Parallelism(2, 2, 2, 8, 16, chunks=7), 16),
    QWEN25_14B: (Parallelism(2, 2, 4, 4, 16, chunks=6), 16),
    QWEN25_32B: (Parallelism(4, 4, 2, 4, 16, chunks=4), 32),
    QWEN25_72B: (Parallelism(8, 4, 2, 4, 16, chunks=5), 64),
}
PAPER_MICROBATCH |= {
    model.name: parallelism.microbatch for model, (parallelism, _) in _SCALE.items()
}
PAPER_TENSOR = {model.name: parallelism.tensor for model, (parallelism, _) in _SCALE.items()}
MICROBATCHES = (1, 2, 4, 8, 16, 32, 64)
MICROBATCH_BATCH = 128  # sequences an iteration, whatever the microbatch


def paper_configs() -> list[Config]:
    """Models and optimizations: the paper's Figure 8."""
    models = (GPT2_345M, LLAMA2_7B, QWEN15_MOE)
    return [config for model in models for config in _of_model(model)]


def published_configs() -> list[Config]:
    """The runs whose load the authors have published, with the layers of their scripts.

    All models with offload; and GPT-2, of which the paper's section 2.2 has torch's efficiency.
    """
    runs = {LEGACY_GPT2_345M: ("n", "v", "zor"), LEGACY_LLAMA2_7B: ("zor",)}
    runs[ENGINE_QWEN15_MOE] = ("zor",)
    return [
        config
        for model, chosen in runs.items()
        for config in _of_model(model)
        if config.optimizations in chosen
    ]


def scale_configs() -> list[Config]:
    """Larger models on more ranks, with recomputation or virtual pipeline: the paper's Figure 9."""
    return [
        Config(model, parallelism, optimizations, last)
        for model, (virtual, largest) in _SCALE.items()
        for optimizations, parallelism in (
            ("r", replace(virtual, chunks=1, microbatch=largest)),
            ("v", virtual),
        )
        for last in (False, True)
    ]


def microbatch_configs() -> list[Config]:
    """Llama2-7B with growing microbatches under recomputation: the paper's Figure 10."""
    plain = _SPLIT[LLAMA2_7B][0]
    return [
        Config(
            LLAMA2_7B,
            replace(plain, microbatch=size, microbatches=MICROBATCH_BATCH // size),
            "r",
            last,
        )
        for size in MICROBATCHES
        for last in (False, True)
    ]


def fitting_configs() -> list[Config]:
    """Qwen2.5-14B as it was meant to run and the ways out of no memory: the paper's Table 1."""
    virtual = _SCALE[QWEN25_14B][0]
    ways = (
        ("v", virtual),
        ("n", replace(virtual, chunks=1)),
        ("vr", virtual),
        ("v", replace(virtual, tensor=2 * virtual.tensor, data=virtual.data // 2)),
    )
    return [
        Config(QWEN25_14B, parallelism, way, last)
        for way, parallelism in ways
        for last in (False, True)
    ]


def stream_configs() -> dict[str, Config]:
    """Runs with work on several streams, by name."""
    gpt2 = {c.name: c for c in _of_model(GPT2_345M)}
    sharded = Config(LLAMA2_7B, Parallelism(1, 1, 8, 2, 2), overlap=Overlap.SHARDED)
    transfers = replace(gpt2["gpt2-345m-v-first"], overlap=Overlap.TRANSFERS)
    configs = [
        sharded,
        replace(sharded, behind=True),
        transfers,
        replace(gpt2["gpt2-345m-n-first"], overlap=Overlap.OFFLOAD),
    ]
    return {config.name: config for config in configs}


def all_configs() -> dict[str, Config]:
    """Every configuration by its name."""
    configs = [
        *paper_configs(),
        *published_configs(),
        *scale_configs(),
        *microbatch_configs(),
        *fitting_configs(),
    ]
    return {config.name: config for config in configs}


def _of_model(model: Model) -> Iterator[Config]:
    plain, split, chunks = _SPLIT[model]
    for optimizations in OPTIMIZATIONS:
        parallelism = split if "z" in optimizations else plain
        if "v" in optimizations:
            parallelism = replace(parallelism, chunks=chunks)
        if model in _OFFLOAD_VOCABULARY and "o" in optimizations:
            model = replace(model, vocabulary=_OFFLOAD_VOCABULARY[model])
        for last in (False, True):
            yield Config(model, parallelism, optimizations, last)
