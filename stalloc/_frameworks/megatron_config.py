"""Megatron's configuration: version, parallelism, and features that cannot be planned."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from torch import nn

COMBINED = (
    "overlap_moe_expert_parallel_comm runs the forward of one microbatch inside the backward of "
    "another (combined 1F1B), which has no phases of one microbatch to plan; switch it off to "
    "train under a plan"
)
FULL_GRAPHS = (
    "CUDA graphs of whole iterations replay without any request to serve; capture layers instead "
    "to train under a plan"
)

# Function of megatron.core.parallel_state that returns the size -> short name.
_SIZES = {
    "tp": "get_tensor_model_parallel_world_size",
    "pp": "get_pipeline_model_parallel_world_size",
    "dp": "get_data_parallel_world_size",
    "cp": "get_context_parallel_world_size",
    "ep": "get_expert_model_parallel_world_size",
    "etp": "get_expert_tensor_parallel_world_size",
}
# Argument of the schedule that holds the size -> short name.
_BATCH = {"seq": "seq_length", "mbs": "micro_batch_size", "mb": "num_microbatches"}


def version() -> str:
    """The version of megatron-core; empty if the package is not installed."""
    try:
        return metadata.version("megatron-core")
    except metadata.PackageNotFoundError:
        return ""


def parallelism(chunks: int, batch: Mapping[str, Any]) -> dict[str, int]:
    """Parallel sizes, chunks of the model on this rank, and the schedule's batch."""
    sizes = {}
    state = sys.modules.get("megatron.core.parallel_state")
    if state is not None and state.model_parallel_is_initialized():
        for short, function in _SIZES.items():
            if hasattr(state, function):
                sizes[short] = int(getattr(state, function)() or 1)
    sizes["vp"] = max(chunks, 1)
    for short, argument in _BATCH.items():
        if isinstance(batch.get(argument), int):
            sizes[short] = batch[argument]
    return sizes


def config_of(chunks: Sequence[nn.Module]) -> Any:
    """The TransformerConfig of a model, through all wrappers; None if there is none."""
    module: Any = chunks[0] if chunks else None
    while module is not None and not hasattr(module, "config"):
        module = getattr(module, "module", None)
    return getattr(module, "config", None)


def unplannable(config: Any) -> str | None:
    """The reason why a model of this configuration cannot be planned; None if it can."""
    if getattr(config, "overlap_moe_expert_parallel_comm", False):
        return COMBINED
    kind = str(getattr(config, "cuda_graph_impl", "") or "none")
    graphs = kind != "none" or getattr(config, "enable_cuda_graph", False)
    scope = getattr(config, "cuda_graph_scope", None)
    scopes = scope if isinstance(scope, (list, tuple, set)) else [scope]
    full = any(getattr(s, "name", s) == "full_iteration" for s in scopes)
    if kind == "full_iteration" or (graphs and full):
        return FULL_GRAPHS
    return None


def ramping_up() -> bool:
    """True while the batch size ramps up."""
    module = sys.modules.get("megatron.core.num_microbatches_calculator")
    calculator = getattr(module, "_GLOBAL_NUM_MICROBATCHES_CALCULATOR", None)
    current = getattr(calculator, "current_global_batch_size", None)
    final = getattr(calculator, "global_batch_size", None)
    return isinstance(current, int) and isinstance(final, int) and current < final
