"""The models that the paper trains: shapes only, from their public configurations."""

from __future__ import annotations

from dataclasses import dataclass


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
    """A decoder with RMSNorm, rotary embeddings, SwiGLU and untied embeddings."""

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
