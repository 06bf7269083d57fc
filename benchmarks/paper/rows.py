"""The results of the evaluation: a row for each workload and allocator."""

from __future__ import annotations

from dataclasses import dataclass

TORCH = "torch"
EXPANDABLE = "torch, expandable segments"
GMLAKE = "GMLake"
STALLOC = "stalloc"
NO_REUSE = "stalloc, no dynamic reuse"
AUTHORS = "STAlloc's planner"
ALLOCATORS = (TORCH, EXPANDABLE, GMLAKE, STALLOC)
TIMED = (TORCH, EXPANDABLE, STALLOC)
"""The allocators whose time is taken. Table 1 compares the same."""
SETTINGS = (
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:8",
    "garbage_collection_threshold:0.8",
    "expandable_segments:True,garbage_collection_threshold:0.8",
)
"""torch's settings (PYTORCH_ALLOC_CONF) beside the default and expandable segments."""


def with_setting(setting: str) -> str:
    """The name of torch's allocator with one of `SETTINGS`."""
    return f"{TORCH}, {setting}"


@dataclass(frozen=True)
class Row:
    """One allocator under one workload.

    Attributes:
        workload: The model.
        config: Its optimizations, in the paper's letters, and what else differs.
        stage: "first" or "last" of the pipeline.
        microbatch: Sequences.
        allocator: The allocator.
        load: The most bytes live at once, as asked.
        reserved: The most bytes held of the device. Both over the whole trace: start-up, warm-up,
            and iterations that the plan of a mixture of experts has not seen.
        efficiency: `load / reserved`.
        native_calls: Over the whole trace: cudaMalloc, cudaFree, chunks mapped and unmapped.
        seconds_per_request: CPU time of an allocation and its free, median of iterations after the
            warm-up; None where it was not measured.
        plan_seconds: CPU time of planning, on one core.
        requests: Requests of an iteration.
        by: The source of the figures: a version of torch or GMLake, or a model of its policy.
        model_reserved: The result of that model, beside the allocator itself.
        capacity: Bytes of the GPU that the workload is for.
        fits: True if the trace runs to its end on it.
        needs: The smallest capacity at which it does, where that was looked for.
        pool: Bytes of a plan's pool.
        resident: Bytes of a plan's resident region.
        optimal: True if the plan is proven to be the smallest.
        commit: The commit at which it was measured.
    """

    workload: str
    config: str
    stage: str
    microbatch: int
    allocator: str
    load: int
    reserved: int
    efficiency: float
    native_calls: int
    seconds_per_request: float | None
    plan_seconds: float | None
    requests: int
    by: str
    model_reserved: int | None
    capacity: int
    fits: bool
    needs: int | None
    pool: int | None
    resident: int | None
    optimal: bool | None = None
    commit: str = ""

    @property
    def name(self) -> str:
        """Names the workload with its configuration."""
        return f"{self.workload}-{self.config}-mb{self.microbatch}-{self.stage}"
