"""Fine-tunes a language model with transformers' Trainer: padded batches, evaluations between.

    python finetune.py [--adapters]

Weights and texts are random, so it needs no download. `--adapters` trains LoRA's of peft.
"""

from __future__ import annotations

import argparse

import torch
from memory import print_memory
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainingArguments

VOCABULARY, LONGEST, SHORTEST = 32_000, 1_024, 48


class Texts(torch.utils.data.Dataset[dict[str, list[int]]]):
    """Texts of random lengths, most of them short."""

    def __init__(self, count: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        share = torch.rand(count, generator=random) ** 2
        lengths = (SHORTEST + share * (LONGEST - SHORTEST)).long().tolist()
        self._texts = [torch.randint(VOCABULARY, (n,), generator=random).tolist() for n in lengths]

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {"input_ids": self._texts[index]}


def pad(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """A batch, as long as its longest text."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
        mask[i, : len(row["input_ids"])] = 1
    labels = ids.masked_fill(mask == 0, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--adapters", action="store_true")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--attention", default="sdpa", help="one of transformers' kinds")
    args = parser.parse_args()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=1_024,
        intermediate_size=4_096,
        num_hidden_layers=args.layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        attn_implementation=args.attention,
    )
    model: torch.nn.Module = Qwen2ForCausalLM(config)
    if args.adapters:
        from peft import LoraConfig, get_peft_model

        names = ["q_proj", "k_proj", "v_proj", "o_proj"]
        model = get_peft_model(model, LoraConfig(r=16, target_modules=names))
    settings = TrainingArguments(
        output_dir="/tmp/finetune",
        max_steps=args.steps,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=10,
        prediction_loss_only=True,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        bf16=torch.cuda.is_available(),
        dataloader_num_workers=0,
        seed=0,
    )
    trainer = Trainer(
        model=model,
        args=settings,
        data_collator=pad,
        train_dataset=Texts(16 * args.steps, seed=1),
        eval_dataset=Texts(64, seed=2),
    )
    loss = trainer.train().training_loss
    print_memory(loss)


if __name__ == "__main__":
    main()
