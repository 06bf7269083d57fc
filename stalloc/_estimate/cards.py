"""The memory of GPUs, by name.

`memory` is the total that CUDA and torch report (`get_device_properties(0).total_memory`, the
"total capacity" of a `torch.OutOfMemoryError`). It is less than the number on the box, since ECC
and the firmware take a part, and differs by some MiB between drivers: `uncertain` bytes up or down.
Each source is a public thread that quotes the figure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stalloc.errors import StallocError

_MIB = 1 << 20
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU, as far as memory is concerned.

    Attributes:
        name: As CUDA reports it.
        memory: Bytes that CUDA reports as total.
        capability: CUDA's compute capability.
        processors: Streaming multiprocessors.
        uncertain: Bytes by which `memory` differs between drivers, or was rounded.
        source: The thread that quotes `memory`.
    """

    name: str
    memory: int
    capability: tuple[int, int] = (8, 0)
    processors: int = 108
    uncertain: int = 0
    source: str = ""


def _gib(text: str) -> int:
    return int(float(text) * (1 << 30))


_ROUNDED = _gib("0.005") + 1

CARDS = (
    Card(
        *("NVIDIA B200", _gib("178.35"), (10, 0), 148, _ROUNDED),
        source="pytorch/ao#4002: 178.35",
    ),
    Card(
        *("NVIDIA H200", _gib("139.8"), (9, 0), 132, _gib("0.2")),
        source="141 GB on the box, 139.8 GiB as torch reports it; not to the byte",
    ),
    Card(
        *("NVIDIA H100 80GB HBM3", _gib("79.11"), (9, 0), 132, _gib("0.11")),
        source="vllm-project/vllm#27508: 79.11 GiB; aqlaboratory/openfold#481: 79.22 GiB",
    ),
    Card(
        *("NVIDIA A100 80GB PCIe", 81049 * _MIB, (8, 0), 108, 200 * _MIB),
        source="ekondis/mixbench#47: 81049 MB",
    ),
    Card(
        *("NVIDIA A100-SXM4-40GB", 42298834944, (8, 0), 108, 3 * _MIB),
        source="bottlerocket-os/bottlerocket#3873: 42298834944 bytes",
    ),
    Card(
        *("NVIDIA L40S", _gib("44.53"), (8, 9), 142, _ROUNDED),
        source="Wan-Video/Wan2.1#205: 44.53 GiB",
    ),
    Card(
        *("NVIDIA L4", 23034 * _MIB - 450 * _MIB, (8, 9), 58, 250 * _MIB),
        source="modal-labs/modal-client#2797: 23034 MiB in nvidia-smi, of which CUDA has some less",
    ),
    Card(
        *("NVIDIA A10", 23028 * _MIB - 450 * _MIB, (8, 6), 72, 250 * _MIB),
        source="modal-labs/modal-client#2797: 23028 MiB in nvidia-smi, of which CUDA has some less",
    ),
    Card(
        *("Tesla T4", _gib("14.75"), (7, 5), 40, _gib("0.17")),
        source="hpcaitech/Open-Sora#697: 14.75 GiB",
    ),
    Card(
        *("Tesla V100-SXM2-16GB", _gib("15.75"), (7, 0), 80, _gib("0.03")),
        source="Morizeyao/GPT2-Chinese#215: 15.75 GiB",
    ),
    Card(
        *("NVIDIA GeForce RTX 5090", 33677180928, (12, 0), 170, 8 * _MIB),
        source="aikitoria/open-gpu-kernel-modules#1: 33677180928 bytes",
    ),
    Card(
        *("NVIDIA GeForce RTX 4090", _gib("23.64"), (8, 9), 128, _gib("0.04")),
        source="ali-vilab/VGen#104: 23.64 GiB; zai-org/CogVideo#36: 23.68 GiB",
    ),
    Card(
        *("NVIDIA GeForce RTX 3090", _gib("23.70"), (8, 6), 82, _ROUNDED),
        source="zhang-haojie/wesam#22: 23.70 GiB",
    ),
    Card(
        *("NVIDIA GeForce RTX 3080", _gib("9.78"), (8, 6), 68, _ROUNDED),
        source="zai-org/CogVideo#34: 9.78 GiB",
    ),
    Card(
        *("NVIDIA GeForce RTX 3070", _gib("7.78"), (8, 6), 46, _ROUNDED),
        source="akshitac8/OW-DETR#46: 7.78 GiB",
    ),
    Card(
        *("NVIDIA GeForce RTX 3060", 12622168064, (8, 6), 28, 0),
        source="Stone-ResearchLife/xMem, its published runs: 12622168064 bytes",
    ),
    Card(
        *("NVIDIA GeForce RTX 2080 Ti", _gib("10.76"), (7, 5), 68, _ROUNDED),
        source="RenYurui/StructureFlow#35: 10.76 GiB",
    ),
)

_OTHER_NAMES = {"A100": "A100 80GB", "H100": "H100 80GB", "V100": "V100-SXM2-16GB"}


def card_of(text: str) -> Card:
    """A card by words of its name, as in `H100` or `rtx 3060`; or any of so many bytes: `80GiB`.

    Raises:
        StallocError: There is none, or several; the message lists them.
    """
    match = re.fullmatch(r"\s*([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*([KMGT]iB)\s*", text)
    if match:
        memory = int(float(match[1]) * _UNITS[match[2]])
        if memory == 0:
            raise StallocError(f"--gpu {text}: a GPU without memory: give a size such as 80GiB")
        return Card(text.strip(), memory)
    wanted = _OTHER_NAMES.get(text.strip().upper(), text)
    found = [card for card in CARDS if _has_words(card.name, wanted)]
    if len(found) == 1:
        return found[0]
    if re.fullmatch(r"\s*[0-9.]+\s*", text):
        raise StallocError(f"--gpu {text.strip()}: a size needs a unit, as in 80GiB")
    names = ", ".join(card.name for card in found or CARDS)
    problem = "several cards are called so" if found else "no such card is known"
    raise StallocError(f"--gpu {text}: {problem}: give a size such as 80GiB, or one of {names}")


def _has_words(name: str, text: str) -> bool:
    """True if the text is one or more whole words of the name, with or without spaces."""
    words, wanted = _words(name), "".join(_words(text))
    parts = ("".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1))
    return wanted in parts


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())
