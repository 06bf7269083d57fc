"""Trainers of Hugging Face and others, and loops like them, whose batches change while they train.

Each program trains a small model twice on the same batches, with and without stalloc. The plan is
made of the first iterations. Later ones have lengths that these lack, a short last batch, an
accumulation that is cut short, or an evaluation in between.
"""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from trainers import Run, prepare

import stalloc

VOCABULARY = 1024
LONGEST = 96
ROWS = 8
IGNORED = -100  # label of padding

Program = Callable[[Path, bool], Run]


def program(name: str) -> Program:
    """One of `NAMES`."""
    return _PROGRAMS[name]


def samples(count: int, seed: int, shortest: int = 4) -> list[Tensor]:
    """Token sequences of different lengths. One of the longest is among the first."""
    draw = random.Random(seed)
    lengths = [draw.randint(shortest, LONGEST) for _ in range(count)]
    lengths[2] = LONGEST
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCABULARY, (length,), generator=generator) for length in lengths]


def padded(rows: list[Tensor]) -> dict[str, Tensor]:
    """A batch as long as its longest sequence."""
    sequence = nn.utils.rnn.pad_sequence
    return {
        "input_ids": sequence(rows, batch_first=True),
        "labels": sequence(rows, batch_first=True, padding_value=IGNORED),
        "attention_mask": sequence([torch.ones_like(row) for row in rows], batch_first=True),
    }


def language_model() -> nn.Module:
    """A small Llama of Hugging Face."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2 * LONGEST,
    )
    return LlamaForCausalLM(config)


class Reader(nn.Module):
    """Reads sequences of any length: no Hugging Face in it."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.TransformerEncoderLayer(128, 4, 256, batch_first=True) for _ in range(3)]
        self.embed = nn.Embedding(VOCABULARY, 128)
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(128, VOCABULARY)

    def forward(self, input_ids: Tensor) -> Tensor:
        scores: Tensor = self.head(self.layers(self.embed(input_ids)))
        return scores


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The loss of a `Reader`."""
    scores = model(batch["input_ids"]).flatten(0, 1)
    return functional.cross_entropy(scores, batch["labels"].flatten(), ignore_index=IGNORED)


# Arguments of all trainers of Hugging Face.
_TRAINING: dict[str, Any] = {
    "num_train_epochs": 4,
    "per_device_train_batch_size": ROWS,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "save_strategy": "no",
    "disable_tqdm": True,
    "report_to": [],
    "use_cpu": True,
}


def _transformers(**arguments: Any) -> Program:
    def train(folder: Path, planned: bool) -> Run:
        from transformers import Trainer, TrainingArguments

        from stalloc.integrations.transformers import StallocCallback

        prepare()
        logging.disable(logging.WARNING)
        trainer = Trainer(
            model=language_model(),
            args=TrainingArguments(
                output_dir=str(folder / "output"),
                per_device_eval_batch_size=2 * ROWS,
                remove_unused_columns=False,
                **_TRAINING,
                **arguments,
            ),
            train_dataset=[{"input_ids": row} for row in samples(131, 1)],
            eval_dataset=[{"input_ids": row} for row in samples(40, 2)],
            data_collator=lambda rows: padded([row["input_ids"] for row in rows]),
            callbacks=[StallocCallback(warmup=1)] if planned else [],
        )
        trainer.train()
        log = trainer.state.log_history
        losses = [entry[key] for entry in log for key in ("loss", "eval_loss") if key in entry]
        return Run(losses).keep(trainer.model)

    return train


def _sft(count: int, packing: bool) -> Program:
    """TRL's supervised fine-tuning: padded batches, or several sequences packed into a row."""

    def train(folder: Path, planned: bool) -> Run:
        from datasets import Dataset
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel
        from transformers import PreTrainedTokenizerFast
        from trl import SFTConfig, SFTTrainer

        from stalloc.integrations.transformers import StallocCallback

        prepare()
        logging.disable(logging.WARNING)
        words = {f"w{i}": i for i in range(VOCABULARY)}
        trainer = SFTTrainer(
            model=language_model(),
            args=SFTConfig(
                output_dir=str(folder / "output"),
                max_length=LONGEST,
                packing=packing,
                gradient_checkpointing=False,
                bf16=False,
                **_TRAINING,
            ),
            train_dataset=Dataset.from_list([{"input_ids": r.tolist()} for r in samples(count, 1)]),
            processing_class=PreTrainedTokenizerFast(
                tokenizer_object=Tokenizer(WordLevel(words, unk_token="w2")),
                eos_token="w0",
                pad_token="w1",
                unk_token="w2",
            ),
            callbacks=[StallocCallback(warmup=1)] if planned else [],
        )
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return Run(losses).keep(trainer.model)

    return train


def _batches(count: int, seed: int) -> torch.utils.data.DataLoader[Any]:
    data: Any = samples(count, seed)
    order = torch.Generator().manual_seed(seed)
    return torch.utils.data.DataLoader(data, ROWS, shuffle=True, collate_fn=padded, generator=order)


def _lightning(count: int) -> Program:
    """An epoch has an odd number of batches, so its last accumulation has one instead of two."""

    def train(folder: Path, planned: bool) -> Run:
        import lightning.pytorch as pl

        from stalloc.integrations.lightning import StallocCallback

        prepare()
        warnings.filterwarnings("ignore", module="lightning")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        run = Run()

        class Module(pl.LightningModule):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(0)
                self.reader = Reader()

            def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
                loss = loss_of(self.reader, batch)
                run.losses.append(loss.item())
                return loss

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.AdamW(self.reader.parameters(), lr=1e-3)

        module = Module()
        trainer = pl.Trainer(
            max_epochs=6,
            accelerator="cpu",
            accumulate_grad_batches=2,
            callbacks=[StallocCallback(warmup=1)] if planned else [],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, _batches(count, 1))
        return run.keep(module)

    return train


def _accelerate(folder: Path, planned: bool) -> Run:
    from accelerate import Accelerator

    import stalloc.integrations.accelerate

    prepare()
    torch.manual_seed(0)
    reader = Reader()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, loader = accelerator.prepare(
        reader, torch.optim.AdamW(reader.parameters(), lr=1e-3), _batches(131, 1)
    )
    mode = "auto" if planned else "off"
    stalloc.integrations.accelerate.install(accelerator, mode, warmup=1)
    run = Run()
    for _ in range(6):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = loss_of(model, batch)
                run.losses.append(loss.item())
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    stalloc.integrations.accelerate.uninstall()
    return run.keep(reader)


def _critic_and_generator() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    generator = nn.Sequential(
        *(nn.Linear(32, 256), nn.LeakyReLU(), nn.Linear(256, 512), nn.LeakyReLU()),
        *(nn.Linear(512, 1024), nn.Tanh()),
    )
    critic = nn.Sequential(
        *(nn.Linear(1024, 512), nn.LeakyReLU(), nn.Linear(512, 256), nn.LeakyReLU()),
        nn.Linear(256, 1),
    )
    return critic, generator


def _wasserstein(_: Path, planned: bool) -> Run:
    """A WGAN: the generator steps with every fifth step of the critic."""
    prepare()
    critic, generator = _critic_and_generator()
    slow = torch.optim.RMSprop(generator.parameters(), lr=1e-4)
    fast = torch.optim.RMSprop(critic.parameters(), lr=1e-4)
    run = Run()
    for step in _scheduled(planned, profiled=15, steps=80):
        real = torch.randn(256, 1024, generator=torch.Generator().manual_seed(step))
        noise = torch.randn(256, 32, generator=torch.Generator().manual_seed(1000 + step))
        fast.zero_grad()
        loss = critic(generator(noise).detach()).mean() - critic(real).mean()
        loss.backward()
        fast.step()
        for parameter in critic.parameters():
            parameter.data.clamp_(-0.01, 0.01)
        run.losses.append(loss.item())
        if step % 5 == 4:
            slow.zero_grad()
            loss = -critic(generator(noise)).mean()
            loss.backward()
            slow.step()
            run.losses.append(loss.item())
    stalloc.disable()
    return run.keep(nn.ModuleList([critic, generator]))


def _scheduled(planned: bool, profiled: int, steps: int) -> Iterator[int]:
    """Counts steps. The first ones are profiled if `planned`, and their plan serves the others."""
    if not planned:
        yield from range(steps)
        return
    with stalloc.profile() as profile:
        yield from range(profiled)
    stalloc.enable(profile.plan())
    yield from range(profiled, steps)


_PROGRAMS: dict[str, Program] = {
    "transformers-padding": _transformers(),
    "transformers-grouped": _transformers(train_sampling_strategy="group_by_length"),
    "transformers-accumulation": _transformers(gradient_accumulation_steps=2),
    "transformers-evaluation": _transformers(eval_strategy="steps", eval_steps=10),
    "trl-padding": _sft(131, packing=False),
    "trl-packing": _sft(140, packing=True),
    "lightning-accumulation": _lightning(131),
    "lightning-short-epochs": _lightning(5 * ROWS),
    "accelerate-accumulation": _accelerate,
    "wasserstein": _wasserstein,
}

NAMES = tuple(_PROGRAMS)
