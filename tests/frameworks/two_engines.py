"""TRL's GRPO, the real one, with an engine that stands in for vLLM, on the CPU."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from changing_trainers import VOCABULARY, language_model
from torch import nn
from trainers import Run, prepare

import stalloc

MIB = 1 << 20
LONGEST = 32  # tokens of a completion


class Engine:
    """Stands in for TRL's `VLLMGeneration`: weights of its own, and a cache while it samples.

    Attributes:
        stranded: The most bytes that were reserved while it sampled and in which nothing lay.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._weights: list[torch.Tensor] = []
        self._calls = 0
        self.stranded = 0

    def sync_weights(self) -> None:
        self._weights = [p.detach().clone() for p in self._model.parameters()]

    def generate(
        self, prompts: list[list[int]], images: Any, num_generations: int, profiler: Any
    ) -> tuple[None, list[list[int]], list[list[list[float]]], None]:
        cache = [torch.zeros(MIB) for _ in range(6)]
        stats = stalloc.memory_stats("cpu")
        self.stranded = max(self.stranded, stats["reserved"] - stats["allocated"])
        self._calls += 1
        seed = self._calls + int(1000 * self._weights[0].sum().item()) % 1000
        generator = torch.Generator().manual_seed(seed)
        ids = []
        for _ in prompts:
            length = int(torch.randint(8, LONGEST, (1,), generator=generator))
            ids.append(torch.randint(3, VOCABULARY, (length,), generator=generator).tolist())
        del cache
        self._weights.clear()
        return None, ids, [[[-1.0] for _ in row] for row in ids], None


def _rewards(completions: list[str], **_: Any) -> list[float]:
    return [float(len(text)) for text in completions]


def train(
    folder: Path, steps: int, planned: bool, has_engine: bool = True
) -> tuple[Run, dict[str, int]]:
    """Trains; then the bytes and phases of the run. Without an engine, the model generates."""
    from datasets import Dataset
    from datasets.table import InMemoryTable
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    import stalloc.integrations.trl
    from stalloc.integrations.transformers import StallocCallback

    prepare()
    warnings.filterwarnings("ignore", "stalloc: phase .* begins while tensors lie in")
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    words = {f"w{i}": i for i in range(VOCABULARY)}
    prompts = InMemoryTable.from_pydict({"prompt": [f"w{3 + i}" for i in range(32)]})
    trainer = GRPOTrainer(
        model=language_model(),
        reward_funcs=_rewards,
        args=GRPOConfig(
            output_dir=str(folder / "output"),
            max_steps=steps,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=LONGEST,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            disable_tqdm=True,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            vllm_importance_sampling_correction=False,
        ),
        train_dataset=Dataset(prompts, fingerprint="prompts"),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(WordLevel(words, unk_token="w2")),
            eos_token="w0",
            pad_token="w1",
            unk_token="w2",
        ),
        callbacks=[StallocCallback(warmup=1)] if planned else [],
    )
    engine = Engine(trainer.model)
    if has_engine:  # TRL makes its own only if vLLM is installed
        trainer.use_vllm, trainer.vllm_mode, trainer._last_loaded_step = True, "colocate", -1
        trainer.vllm_generation = engine
    if planned:
        stalloc.integrations.trl.share(trainer)
        stalloc.integrations.trl.share(trainer)  # again is nothing
    trainer.train()
    run = Run([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    stats = stalloc.memory_stats("cpu")
    rollouts = stalloc.phase_stats().get("rollout")
    figures = {
        "load": stats["run_peak_allocated"],
        "reserved": stats["run_peak_reserved"],
        "pool": stats["pool"],
        "stranded": engine.stranded,
        "rollouts": rollouts["entered"] if rollouts else 0,
        "released": rollouts["released"] if rollouts else 0,
        "kept": rollouts["kept"] if rollouts else 0,
    }
    return run.keep(trainer.model), figures
