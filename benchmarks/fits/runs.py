"""xMem's training runs, rebuilt: the models and the loop of its `exp/trainer/train_loop.py`.

Weights are random, as there. A run has four iterations. Images have 86 x 86 pixels.

Sentences are rows of WikiText-2 in random order, cut at 128 tokens, and padded to the longest one
of their batch. The order has no seed, so nobody knows the lengths of a measured run: they are drawn
here, several times. `sentences.csv` has the numbers of GPT-2's tokens of the rows of the validation
and the test text, as `pytorch/examples` has them in `word_language_model/data/wikitext-2`. The runs
read the training text without `<unk>`, from which the tokens differ little: 37 % of the first 2,119
of its rows that are not empty have 128 tokens or more, here 36 %. Rows of T5 have 128 tokens
always, since its vocabulary is not at hand.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

Step = Callable[[], None]

ITERATIONS = 4

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


def is_language(name: str) -> bool:
    """True if the model reads sentences."""
    return "/" in name or name == "T5-small"


def lengths(name: str, batch: int, seed: str) -> tuple[int, ...]:
    """The tokens that the batches of a run are padded to."""
    if "/" not in name:
        return (_TOKENS,) * ITERATIONS
    order = random.Random(seed)
    drawn: list[int] = []
    while len(drawn) < ITERATIONS:
        longest = max(order.sample(_rows(), batch))
        if longest > 0:
            drawn.append(longest)
    return tuple(drawn)


@cache
def _rows() -> list[int]:
    """The tokens of each row."""
    with (Path(__file__).resolve().parent / "sentences.csv").open() as file:
        table = list(csv.DictReader(file))
    return [int(entry["tokens"]) for entry in table for _ in range(int(entry["rows"]))]


def training(
    name: str, optimizer: str, batch: int, padded: Sequence[int] = ()
) -> Callable[[], Step]:
    """A function for `stalloc.estimate`. What the loop's variables hold stays alive, as there.

    Args:
        name: The model.
        optimizer: Its class in `torch.optim`.
        batch: Images or sentences.
        padded: For sentences, the tokens of each iteration.
    """
    make = getattr(torch.optim, optimizer)

    def images() -> Step:
        model = image_model(name)
        model.to("cuda:0")
        model.train()
        steps = make(params=model.parameters(), lr=0.001)
        criterion = nn.CrossEntropyLoss()
        held: dict[str, Any] = {}

        def step() -> None:
            held.update(inputs=None, labels=None)  # the loop's variables get the next ones
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
        each = iter(padded)

        def step() -> None:
            held["batch"] = None  # the loop's variable gets the next one
            steps.zero_grad()
            ids = torch.ones(batch, next(each), dtype=torch.int64)
            held["batch"] = {
                key: ids.to("cuda:0") for key in ("input_ids", "attention_mask", "labels")
            }
            held["outputs"] = model(**held["batch"])
            held["loss"] = held["outputs"].loss
            held["loss"].backward()
            steps.step()

        return step

    return sentences if is_language(name) else images
