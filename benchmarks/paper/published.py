"""Figures of the paper and of its authors' published runs, for comparison.

The paper's source has no data behind its figures, so a bar is known only where the text has its
number; of most, the text gives the range or the mean over a model's bars. Reserved memory by
pipeline stage comes from the authors' own runs with ZeRO, recomputation and offload.
"""

from __future__ import annotations

from dataclasses import dataclass

from paper.rows import EXPANDABLE, GMLAKE, STALLOC, TORCH, Row

DENSE = ("gpt2-345m", "llama2-7b")
MOE = "qwen1.5-moe-a2.7b"
_LAYERS = ("legacy-", "engine-")  # of the authors' scripts; before the name of a model


@dataclass(frozen=True)
class Published:
    """The published figures of one row.

    Attributes:
        text: As a reader wants to see it.
        efficiency: The efficiency of exactly this row, if the text has it.
        reserved_gb: Likewise.
    """

    text: str
    efficiency: float | None = None
    reserved_gb: float | None = None

    @property
    def load_gb(self) -> float | None:
        """The most GB live at once."""
        if self.reserved_gb is None or self.efficiency is None:
            return None
        return self.reserved_gb * self.efficiency


_RANGES = {  # section 6.2, over the bars of Figure 8
    ("dense", TORCH): "57.1 to 90.6 %",
    ("dense", EXPANDABLE): "62.4 to 93.2 %",
    ("dense", GMLAKE): "45.1 to 88.1 %",
    ("dense", STALLOC): "95 to 100 %",
    ("moe", TORCH): "82.3 % on average",
    ("moe", EXPANDABLE): "93.1 % on average",
    ("moe", GMLAKE): "79.7 % on average",
    ("moe", STALLOC): "93.7 to 97.8 %",
}

_GPT2_TORCH = {  # section 2.2: memory efficiency, and GB reserved
    "n": Published("90 %, 52.1 GB", 0.90, 52.1),
    # The text calls it 80 %, and gives both sizes.
    "v": Published("51.8 of 59.9 GB, 86.5 %", 51.8 / 59.9, 59.9),
    "r": Published("around 60 %", 0.60),
}

_OFFLOAD = {  # the authors' runs, first and last stage: GB reserved, and efficiency
    ("gpt2-345m", TORCH): ((18.30, 0.5071), (25.43, 0.5943)),
    ("gpt2-345m", EXPANDABLE): ((17.32, 0.5358), (19.12, 0.7876)),
    ("gpt2-345m", GMLAKE): ((25.45, 0.3847), (29.25, 0.5238)),
    ("gpt2-345m", STALLOC): ((9.53, 0.9475), (14.81, 1.0000)),
    ("llama2-7b", TORCH): ((21.05, 0.6618), (20.29, 0.6343)),
    ("llama2-7b", EXPANDABLE): ((18.18, 0.7662), (17.02, 0.7561)),
    ("llama2-7b", GMLAKE): ((25.09, 0.5659), (23.95, 0.5482)),
    ("llama2-7b", STALLOC): ((14.10, 0.9794), (13.93, 0.9145)),
    (MOE, TORCH): ((50.56, 0.6331), (54.75, 0.8188)),
    (MOE, EXPANDABLE): ((26.97, 0.9573), (49.92, 0.8980)),
    (MOE, GMLAKE): ((46.25, 0.5662), (43.97, 0.5806)),
    (MOE, STALLOC): ((31.88, 0.8047), (47.65, 0.9381)),
}

_SCALE = {
    ("r", STALLOC): "99.1 %",
    ("v", STALLOC): "over 99 %",
}

_OUT_OF_MEMORY = {  # Figure 9: model, optimizations, allocator
    ("qwen2.5-72b", "r", TORCH),
    ("qwen2.5-14b", "v", TORCH),
    ("qwen2.5-14b", "v", EXPANDABLE),
}

FITS = {  # Table 1: configuration to whether it ran, and its throughput in TFLOPS
    "v": ("Original", {TORCH: False, EXPANDABLE: False, STALLOC: True}, 464.3),
    "n": ("Disable VPP", {TORCH: False, EXPANDABLE: True, STALLOC: True}, 440.6),
    "vr": ("Recomputation", {TORCH: True, EXPANDABLE: True, STALLOC: True}, 350.4),
    "v-tp4": ("TP = 4", {TORCH: True, EXPANDABLE: True, STALLOC: True}, 431.5),
}

PLANNING = {  # Table 2: requests of an iteration, seconds of planning
    ("gpt2-345m", "n"): (12785, 24.36),
    ("gpt2-345m", "r"): (16569, 21.93),
    ("llama2-7b", "n"): (66529, 104.96),
    ("llama2-7b", "r"): (86721, 136.34),
    (MOE, "n"): (196759, 374.18),
    (MOE, "r"): (281669, 145.40),
}

COMPOSITION = {  # Table 3, GB: total, static, fallback without and with dynamic reuse
    "n": (59.51, 44.68, 15.19, 15.19),
    "r": (32.36, 31.39, 1.61, 1.12),
    "v": (62.78, 46.10, 17.80, 17.22),
    "vr": (33.07, 31.83, 1.78, 1.70),
    "zr": (44.65, 44.62, 2.99, 1.92),
    "zor": (44.70, 44.40, 1.95, 1.55),
}

FRAGMENTATION_REDUCED = {  # section 6.2: by how much STAlloc reduces it, on average
    ("dense", TORCH): 0.903,
    ("dense", EXPANDABLE): 0.878,
    ("moe", TORCH): 0.749,
    ("moe", EXPANDABLE): 0.340,
}
STATIC_ALONE_REDUCES = 0.702
"""Section 6.4: by how much the static plan alone reduces torch's fragmentation."""
REUSE_REDUCES_FURTHER = 0.229


def model_of(workload: str) -> str:
    """A workload's model without its layers: "gpt2-345m" of "legacy-gpt2-345m"."""
    for layers in _LAYERS:
        workload = workload.removeprefix(layers)
    return workload


def of_run(row: Row) -> Published | None:
    """The published figures of an allocator in one of the authors' runs."""
    if row.config == "zor":
        return offloaded(row.workload, row.allocator, row.stage)
    is_torch = model_of(row.workload) == "gpt2-345m" and row.allocator == TORCH
    # The paper names no stage. It is the one that reserves most, which is the first.
    return _GPT2_TORCH.get(row.config) if is_torch and row.stage == "first" else None


def of(row: Row) -> Published | None:
    """The published efficiency of a row."""
    if row.workload.startswith("qwen2.5"):
        if (row.workload, row.config, row.allocator) in _OUT_OF_MEMORY:
            return Published("out of memory")
        text = _SCALE.get((row.config, row.allocator))
        return Published(text) if text else None
    if row.workload == "llama2-7b" and row.microbatch != 4:
        return Published("around 99 %") if row.allocator == STALLOC else None
    if row.config == "zor" and (known := offloaded(row.workload, row.allocator, row.stage)):
        return known
    if row.workload == "gpt2-345m" and row.allocator == TORCH and row.config in _GPT2_TORCH:
        return _GPT2_TORCH[row.config]
    kind = "moe" if row.workload == MOE else "dense"
    text = _RANGES.get((kind, row.allocator))
    return Published(text) if text else None


def offloaded(workload: str, allocator: str, stage: str) -> Published | None:
    """One of the authors' runs with ZeRO, recomputation and offload."""
    both = _OFFLOAD.get((model_of(workload), allocator))
    if both is None:
        return None
    reserved, efficiency = both[stage == "last"]
    return Published(f"{reserved:.1f} GB, {100 * efficiency:.1f} %", efficiency, reserved)
