"""The models that the paper trains: shapes only, from their public configurations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Implementation(Enum):
    """Megatron-LM's layers.

    Attributes:
        CORE: Those of its core, with fused kernels and without dropout.
        LEGACY: Its legacy layers with the default dropout. The paper's published scripts train the
            dense models with them.
        ENGINE: Those of Transformer Engine with LayerNorm and without fused SwiGLU, biases and a
            gate of the shared expert. The published scripts train the mixture of experts with them.
    """

    CORE = "core"
    LEGACY = "legacy"
    ENGINE = "engine"


@dataclass(frozen=True)
class Experts:
    """The routed part of a mixture-of-experts model.

    Attributes:
        count: Experts in all.
        top_k: The number of experts of each token.
        ffn: Inner width of one expert.
        shared_ffn: Inner width of the expert that sees every token; 0 for none.
    """

    count: int
    top_k: int
    ffn: int
    shared_ffn: int = 0


@dataclass(frozen=True)
class Model:
    """A decoder with rotary embeddings, SwiGLU and untied embeddings."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    sequence: int
    vocabulary: int
    qkv_bias: bool = False
    experts: Experts | None = None
    implementation: Implementation = Implementation.CORE

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    def padded_vocabulary(self, tensor: int) -> int:
        """As Megatron-LM pads it: each tensor-parallel shard is a multiple of 128."""
        multiple = 128 * tensor
        return -(-self.vocabulary // multiple) * multiple


GPT2_VOCABULARY = 50257  # the paper's scripts train everything but Qwen2.5 on GPT-2's tokens

GPT2_345M = Model("gpt2-345m", 24, 1024, 16, 16, 4096, 1024, GPT2_VOCABULARY)
LLAMA2_7B = Model("llama2-7b", 32, 4096, 32, 32, 11008, 4096, GPT2_VOCABULARY)
QWEN25_7B = Model("qwen2.5-7b", 28, 3584, 28, 4, 18944, 4096, 152064, qkv_bias=True)
QWEN25_14B = Model("qwen2.5-14b", 48, 5120, 40, 8, 13824, 4096, 152064, qkv_bias=True)
QWEN25_32B = Model("qwen2.5-32b", 64, 5120, 40, 8, 27648, 4096, 152064, qkv_bias=True)
QWEN25_72B = Model("qwen2.5-72b", 80, 8192, 64, 8, 29568, 4096, 152064, qkv_bias=True)
QWEN15_MOE = Model(
    "qwen1.5-moe-a2.7b",
    24,
    2048,
    16,
    16,
    5632,
    4096,
    GPT2_VOCABULARY,
    qkv_bias=True,
    experts=Experts(count=60, top_k=4, ffn=1408, shared_ffn=5632),
)

# With the layers of the authors' published scripts.
LEGACY_GPT2_345M = replace(GPT2_345M, name="legacy-gpt2-345m", implementation=Implementation.LEGACY)
LEGACY_LLAMA2_7B = replace(LLAMA2_7B, name="legacy-llama2-7b", implementation=Implementation.LEGACY)
ENGINE_QWEN15_MOE = replace(
    QWEN15_MOE,
    name="engine-qwen1.5-moe-a2.7b",
    qkv_bias=False,
    implementation=Implementation.ENGINE,
)
