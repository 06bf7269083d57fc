"""xMem's training runs, rebuilt: the models and the loop of its `exp/trainer/train_loop.py`.

Weights are random, as there. Images have 86 x 86 pixels. Sentences are padded to 128 tokens, the
most that the tokenizer lets through: one of a batch is nearly always that long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Step = Callable[[], None]

_PIXELS = 86
_TOKENS = 128


def image_model(name: str) -> nn.Module:
    """A model of torchvision with the arguments that xMem gives it."""
    from torchvision import models
    from torchvision.models.mobilenetv3 import _mobilenet_v3_conf

    if name == "MnasNet":
        return models.MNASNet(alpha=1.0, num_classes=10)
    if name == "MobeNetV3Large":  # its name there
        settings, _ = _mobilenet_v3_conf("mobilenet_v3_large")
        return models.MobileNetV3(settings, last_channel=1280, num_classes=10)
    functions = {"ConvNeXtBase": models.convnext_base, "ConvNeXtTiny": models.convnext_tiny}
    return functions[name](weights=None)


def language_model(name: str) -> nn.Module:
    """A model of transformers with the published configuration of that name."""
    import transformers as hf

    if name == "EleutherAI/gpt-neo-125M":
        layers = [[["global", "local"], 6]]
        config = hf.GPTNeoConfig(
            hidden_size=768, num_layers=12, num_heads=12, attention_types=layers
        )
        return hf.GPTNeoForCausalLM(config)
    if name == "T5-small":
        return hf.T5ForConditionalGeneration(hf.T5Config(decoder_start_token_id=0))
    if name == "cerebras/Cerebras-GPT-111M":
        config = hf.GPT2Config(
            n_embd=768,
            n_layer=10,
            n_head=12,
            n_inner=3072,
            n_positions=2048,
            activation_function="gelu",
            attn_pdrop=0.0,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
        )
        return hf.GPT2LMHeadModel(config)
    if name == "distilbert/distilgpt2":
        return hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=6))
    raise KeyError(name)


def training(name: str, optimizer: str, batch: int) -> Callable[[], Step]:
    """A function for `stalloc.estimate`. What the loop's variables hold stays alive, as there."""
    make = getattr(torch.optim, optimizer)

    def images() -> Step:
        model = image_model(name)
        model.to("cuda:0")
        model.train()
        steps = make(params=model.parameters(), lr=0.001)
        criterion = nn.CrossEntropyLoss()
        held: dict[str, Any] = {}

        def step() -> None:
            steps.zero_grad()
            held["inputs"] = torch.empty(batch, 3, _PIXELS, _PIXELS).to("cuda:0")
            held["labels"] = torch.zeros(batch, dtype=torch.int64).to("cuda:0")
            held["outputs"] = model(held["inputs"])
            held["loss"] = criterion(held["outputs"], held["labels"])
            held["loss"].backward()
            steps.step()
            held["best"], held["predictions"] = torch.max(held["outputs"], 1)

        return step

    def sentences() -> Step:
        model = language_model(name)
        model.train()
        steps = make(params=model.parameters(), lr=0.001)
        model.to("cuda:0")
        held: dict[str, Any] = {}

        def step() -> None:
            steps.zero_grad()
            ids = torch.ones(batch, _TOKENS, dtype=torch.int64)
            held["batch"] = {
                key: ids.to("cuda:0") for key in ("input_ids", "attention_mask", "labels")
            }
            held["outputs"] = model(**held["batch"])
            held["loss"] = held["outputs"].loss
            held["loss"].backward()
            steps.step()

        return step

    return sentences if "/" in name or name == "T5-small" else images
