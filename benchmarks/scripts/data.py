"""The data sets and models that scripts would download: the same files, with random content."""

from __future__ import annotations

import csv
import json
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

_METRIC = '''"""Stands for a metric that `evaluate` would download: the share of right answers."""

import datasets
import evaluate


class {name}(evaluate.Metric):
    def _info(self):
        value = datasets.Value("int64")
        return evaluate.MetricInfo(
            description="accuracy",
            citation="",
            inputs_description="",
            features=datasets.Features({{"predictions": value, "references": value}}),
        )

    def _compute(self, predictions, references):
        right = sum(int(a == b) for a, b in zip(predictions, references))
        return {{"accuracy": right / max(len(references), 1)}}
'''
_IDENTIFIERS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<|endoftext|>")

Maker = Callable[[Path, str, Path], None]


def make(name: str, copy: Path, machine: str, kept: Path) -> None:
    """Makes the files of a data set.

    Args:
        name: The data set; empty for none.
        copy: The repository's copy.
        machine: cpu or gpu: models and sets are larger on the latter.
        kept: A folder for files that several runs share.
    """
    if name:
        DATA[name](copy, machine, kept)


def _words(count: int, vocabulary: int, seed: int = 0) -> list[str]:
    """Random words, few of which are frequent, as in text. All of the vocabulary occurs."""
    generator = np.random.default_rng(seed)
    drawn = np.minimum(generator.zipf(1.2, count), vocabulary) - 1
    drawn[: min(vocabulary, count)] = np.arange(min(vocabulary, count))
    return [f"w{index}" for index in drawn]


def _sentences(count: int, least: int, most: int, vocabulary: int, seed: int) -> list[str]:
    """Random sentences whose lengths differ."""
    lengths = np.random.default_rng(seed).integers(least, most + 1, count)
    words = _words(int(lengths.sum()), vocabulary, seed)
    ends = np.cumsum(lengths)
    return [" ".join(words[end - n : end]) for end, n in zip(ends, lengths, strict=True)]


def _nanogpt(copy: Path, machine: str, kept: Path) -> None:
    generator = np.random.default_rng(0)
    for name, size in (("shakespeare_char", 65), ("openwebtext", 50257)):
        folder = copy / "data" / name
        folder.mkdir(parents=True, exist_ok=True)
        for part in ("train", "val"):
            generator.integers(0, size, 300_000, dtype=np.uint16).tofile(folder / f"{part}.bin")
    meta = {"vocab_size": 65, "itos": {}, "stoi": {}}
    (copy / "data" / "shakespeare_char" / "meta.pkl").write_bytes(pickle.dumps(meta))


def _characters(copy: Path, machine: str, kept: Path) -> None:
    letters = "O God! abcdefghijklmnpqrstuvwxyz,.\n"
    text = "".join(random.Random(0).choices(letters, k=100_000))
    (copy / "projects" / "chargpt" / "input.txt").write_text("O God, O God!" + text)


def _mnist(copy: Path, machine: str, kept: Path) -> None:
    """The four files in MNIST's format. The last batch of an epoch is smaller, as there."""
    _write_mnist(copy / "data", 25 * 64 + 16 if machine == "cpu" else 25 * 512 + 128)


def _lightning_mnist(copy: Path, machine: str, kept: Path) -> None:
    """The same with 60,000 images, since the script splits that number."""
    examples = copy / "examples"
    for folder in (examples / "Datasets", examples / "pytorch" / "basics" / "data"):
        _write_mnist(folder, 60_000)


def _write_mnist(folder: Path, images: int) -> None:
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for part, count in (("train", images), ("t10k", 1000)):
        pixels = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = generator.integers(0, 10, count, dtype=np.uint8)
        head = struct.pack(">4i", 2051, count, 28, 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
        head = struct.pack(">2i", 2049, count)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


def _wikitext(copy: Path, machine: str, kept: Path) -> None:
    """WikiText-2's files; on the GPU with its number of words."""
    folder = copy / "word_language_model" / "data" / "wikitext-2"
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = 2000 if machine == "cpu" else 33_278
    for part, count in (("train", 40_000), ("valid", 10_000), ("test", 10_000)):
        lines = [" ".join(_words(count, vocabulary))]
        (folder / f"{part}.txt").write_text("\n".join(lines))


def _lightning_text(copy: Path, machine: str, kept: Path) -> None:
    folder = copy / "examples" / "pytorch" / "basics" / "data"
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = 2000 if machine == "cpu" else 33_278
    words = _words((4000 + 20 * 45) * 35 + 70, vocabulary)
    (folder / "wikitext-2.txt").write_text(" ".join(words))


def _sines(copy: Path, machine: str, kept: Path) -> None:
    """The file of generate_sine_wave.py with shorter waves."""
    import torch

    generator = np.random.default_rng(2)
    x = np.arange(100) + generator.integers(-80, 80, (20, 1))
    data = np.sin(x / 20).astype("float64")
    torch.save(data, copy / "time_sequence_prediction" / "traindata.pt")


def _pictures(folder: Path, count: int, size: tuple[int, int]) -> None:
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for index in range(count):
        pixels = generator.integers(0, 256, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize(size).save(folder / f"{index}.jpg")


def _bsds(copy: Path, machine: str, kept: Path) -> None:
    """The pictures of BSDS300, fewer on the CPU."""
    images = copy / "super_resolution" / "dataset" / "BSDS300" / "images"
    train, test = (42, 10) if machine == "cpu" else (200, 100)
    _pictures(images / "train", train, (481, 321))
    _pictures(images / "test", test, (481, 321))


def _folders_of_pictures(copy: Path, machine: str, kept: Path) -> None:
    size = (96, 80) if machine == "cpu" else (320, 256)
    for part, count in (("train", 85), ("validation", 20)):
        for label in ("a", "b"):
            _pictures(copy / "pictures" / part / label, count, size)


def _cifar(copy: Path, machine: str, kept: Path) -> None:
    """CIFAR-10's files with fewer pictures."""
    folder = copy / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        pictures = generator.integers(0, 256, (256, 3 * 32 * 32), dtype=np.uint8)
        labels = generator.integers(0, 10, 256).tolist()
        (folder / name).write_bytes(pickle.dumps({"data": pictures, "labels": labels}))
    names = {"label_names": [str(i) for i in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(names))


def _tokenizer(folder: Path, vocabulary: int) -> None:
    """A tokenizer that splits at spaces, and knows w0, w1 and so on."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = [*_IDENTIFIERS, *(f"w{i}" for i in range(vocabulary - len(_IDENTIFIERS)))]
    words = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        eos_token="<|endoftext|>",
        model_max_length=1024,
    ).save_pretrained(folder)


def _model(kind: str, machine: str, kept: Path) -> Path:
    """The folder of a model with random weights; made once. Small on the CPU."""
    folder = kept / f"{kind}-{machine}"
    if (folder / "tokenizer.json").exists():
        return folder
    import torch
    import transformers

    torch.manual_seed(0)
    small = machine == "cpu"
    width, layers, vocabulary = (64, 2, 2000) if small else (768, 12, 32_000)
    shape = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 32 if small else 12,
        "vocab_size": vocabulary,
    }
    if kind == "bert":
        config = transformers.BertConfig(**shape, intermediate_size=4 * width)
        model = transformers.BertForSequenceClassification(config)
    elif kind == "gpt2":
        config = transformers.GPT2Config(
            n_embd=width, n_layer=layers, n_head=shape["num_attention_heads"], vocab_size=vocabulary
        )
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.Qwen2Config(
            **shape, intermediate_size=4 * width, num_key_value_heads=2, tie_word_embeddings=True
        )
        model = transformers.Qwen2ForCausalLM(config)
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    _tokenizer(folder, vocabulary)
    return folder


def _link(link: Path, folder: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder, target_is_directory=True)


def _metric(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{folder.name}.py").write_text(_METRIC.format(name=folder.name.title()))


def _causal(copy: Path, machine: str, kept: Path) -> None:
    _link(copy / "model", _model("gpt2", machine, kept))
    _metric(copy / "accuracy")
    vocabulary = 1900 if machine == "cpu" else 30_000
    for part, count, seed in (("train", 2000, 1), ("validation", 100, 2)):
        lines = _sentences(count, 30, 120, vocabulary, seed)
        (copy / f"{part}.txt").write_text("\n".join(lines))


def _pairs(count: int, machine: str, seed: int) -> list[tuple[str, str, int]]:
    """Pairs of sentences whose lengths are like those of MRPC."""
    vocabulary = 1900 if machine == "cpu" else 30_000
    first = _sentences(count, 8, 40, vocabulary, seed)
    second = _sentences(count, 8, 40, vocabulary, seed + 1)
    return [(a, b, i % 2) for i, (a, b) in enumerate(zip(first, second, strict=True))]


def _write_pairs(path: Path, pairs: list[tuple[str, str, int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["sentence1", "sentence2", "label", "idx"])
        table.writerows([*pair, index] for index, pair in enumerate(pairs))


def _glue(copy: Path, machine: str, kept: Path) -> None:
    _link(copy / "model", _model("bert", machine, kept))
    _metric(copy / "accuracy")
    _write_pairs(copy / "train.csv", _pairs(840, machine, 1))
    _write_pairs(copy / "validation.csv", _pairs(100, machine, 3))


def _mrpc(copy: Path, machine: str, kept: Path) -> None:
    """The names by which accelerate's example finds a model, a data set and a metric."""
    examples = copy / "examples"
    _link(examples / "bert-base-cased", _model("bert", machine, kept))
    _metric(examples / "glue")
    folder = examples / "nyu-mll" / "glue"
    _write_pairs(folder / "train.csv", _pairs(320, machine, 1))
    _write_pairs(folder / "validation.csv", _pairs(100, machine, 3))
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: mrpc\n  data_files:\n  - split: train\n"
        "    path: train.csv\n  - split: validation\n    path: validation.csv\n---\n"
    )


def _conversations(copy: Path, machine: str, kept: Path) -> None:
    _link(copy / "model", _model("qwen2", machine, kept))
    vocabulary = 1900 if machine == "cpu" else 30_000
    lengths = (10, 60) if machine == "cpu" else (100, 600)
    folder = copy / "conversations"
    folder.mkdir()
    for part, count, seed in (("train", 240, 1), ("test", 20, 2)):
        lines = _sentences(count, *lengths, vocabulary, seed)
        text = "\n".join(json.dumps({"text": line}) for line in lines)
        (folder / f"{part}.jsonl").write_text(text)


DATA: dict[str, Maker] = {
    "nanogpt": _nanogpt,
    "characters": _characters,
    "mnist": _mnist,
    "lightning-mnist": _lightning_mnist,
    "wikitext": _wikitext,
    "lightning-text": _lightning_text,
    "sines": _sines,
    "bsds": _bsds,
    "pictures": _folders_of_pictures,
    "cifar": _cifar,
    "causal": _causal,
    "glue": _glue,
    "mrpc": _mrpc,
    "conversations": _conversations,
}
