"""Models of Hugging Face and others, tiny, and batches of theirs whose shapes change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 96
WIDTH = 64


@dataclass(frozen=True)
class Kind:
    """A kind of model.

    Attributes:
        make: Makes it.
        loss: The loss of the model on a batch of so many rows and such a size.
        longest: The largest size.
    """

    make: Callable[[], nn.Module]
    loss: Callable[[nn.Module, torch.Generator, int, int], Tensor]
    longest: int


def kind(name: str) -> Kind:
    """One of `NAMES`."""
    return _KINDS[name]


def _llama(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        **more,
    }


def _make_llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_llama()))


def _make_qwen2() -> nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**_llama(tie_word_embeddings=True)))


def _make_mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(MixtralConfig(**_llama(num_local_experts=4)))


def _make_gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=3, n_head=4, n_positions=256)
    )


def _make_t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            d_kv=16,
            d_ff=2 * WIDTH,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
        )
    )


def _make_vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=WIDTH,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=2 * WIDTH,
            image_size=64,
            patch_size=8,
            num_labels=10,
        )
    )


def _make_whisper() -> nn.Module:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    return WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=2 * WIDTH,
            decoder_ffn_dim=2 * WIDTH,
            num_mel_bins=16,
            max_source_positions=64,
            max_target_positions=256,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        )
    )


class Graph(nn.Module):
    """A graph network: messages along edges, summed at nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, WIDTH)
        self.messages = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = self.embed(x)
        for layer in self.messages:
            sent = functional.relu(layer(torch.cat([h[edges[0]], h[edges[1]]], dim=-1)))
            h = h + torch.zeros_like(h).index_add(0, edges[1], sent)
        return self.head(h)


def _text_loss(model: nn.Module, random: torch.Generator, rows: int, length: int) -> Tensor:
    ids = torch.randint(3, VOCABULARY, (rows, length), generator=random)
    mask = torch.ones_like(ids)  # the rows but the longest are padded
    for row in range(1, rows):
        padding = int(torch.randint(length, (1,), generator=random))
        mask[row, length - padding :] = 0
    loss: Tensor = model(input_ids=ids, attention_mask=mask, labels=ids).loss
    return loss


def _pairs_loss(model: nn.Module, random: torch.Generator, rows: int, length: int) -> Tensor:
    target = int(torch.randint(max(1, length // 2), length + 1, (1,), generator=random))
    ids = torch.randint(3, VOCABULARY, (rows, length), generator=random)
    labels = torch.randint(3, VOCABULARY, (rows, target), generator=random)
    loss: Tensor = model(input_ids=ids, labels=labels).loss
    return loss


def _image_loss(model: nn.Module, random: torch.Generator, rows: int, size: int) -> Tensor:
    side = max(1, size // 8) * 8
    pixels = torch.randn(rows, 3, side, side, generator=random)
    labels = torch.randint(10, (rows,), generator=random)
    loss: Tensor = model(pixel_values=pixels, labels=labels, interpolate_pos_encoding=True).loss
    return loss


def _speech_loss(model: nn.Module, random: torch.Generator, rows: int, length: int) -> Tensor:
    features = torch.randn(rows, 16, 128, generator=random)  # of one length, as Whisper has it
    labels = torch.randint(3, VOCABULARY, (rows, length), generator=random)
    loss: Tensor = model(input_features=features, labels=labels).loss
    return loss


def _graph_loss(model: nn.Module, random: torch.Generator, rows: int, size: int) -> Tensor:
    nodes = rows * size
    edges = nodes * 3 + int(torch.randint(nodes, (1,), generator=random))
    ends = torch.randint(nodes, (2, edges), generator=random)
    x = torch.randn(nodes, 8, generator=random)
    return functional.mse_loss(model(x, ends), x[:, :1])


_KINDS = {
    "llama": Kind(_make_llama, _text_loss, 96),
    "gpt2": Kind(_make_gpt2, _text_loss, 96),
    "qwen2": Kind(_make_qwen2, _text_loss, 96),
    "mixtral": Kind(_make_mixtral, _text_loss, 96),
    "t5": Kind(_make_t5, _pairs_loss, 96),
    "vit": Kind(_make_vit, _image_loss, 96),
    "whisper": Kind(_make_whisper, _speech_loss, 96),
    "graph": Kind(Graph, _graph_loss, 96),
}

NAMES = tuple(_KINDS)
