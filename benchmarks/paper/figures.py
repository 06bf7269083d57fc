"""The workloads of each of the paper's figures and tables."""

from __future__ import annotations

from dataclasses import dataclass

from configs import (
    Config,
    all_configs,
    fitting_configs,
    microbatch_configs,
    paper_configs,
    published_configs,
    scale_configs,
    stream_configs,
)

A800 = 7933 * 2**30 // 100
H200 = 1398 * 2**30 // 10
"""Bytes that a GPU of "80 GB" and one of "141 GB" have for CUDA, which torch's message on running
out of memory names as their total capacity: 79.33 GiB (an A800 in
github.com/hahnyuan/PB-LLM/issues/3) and 139.8 GiB. Requests that are not modelled (CUDA's own
context, workspaces, NCCL) take some of it, so a load close to it would not fit a real one."""


@dataclass(frozen=True)
class Figure:
    """A figure or table.

    Attributes:
        name: As in the paper.
        title: Its title.
        configs: Its workloads.
    """

    name: str
    title: str
    configs: tuple[Config, ...]


def figures() -> dict[str, Figure]:
    """All of them, by name."""
    paper = paper_configs()
    planned = [c for c in paper if c.optimizations in ("n", "r") and not c.last]
    experts = [c for c in paper if c.model.experts]
    return {
        name: Figure(name, title, tuple(configs))
        for name, title, configs in (
            ("Figure 8", "Memory efficiency by model and optimization", paper),
            ("Published runs", "The layers of the authors' scripts", published_configs()),
            ("Settings", "torch's other settings", [*paper, *published_configs()]),
            ("Figure 9", "Memory efficiency by scale", scale_configs()),
            ("Figure 10", "Memory efficiency by microbatch", microbatch_configs()),
            ("Table 1", "Which configuration fits", fitting_configs()),
            ("Table 2", "Time of planning by number of requests", planned),
            ("Figure 13 and Table 3", "Contribution of each part", experts),
        )
    }


def used_configs() -> list[Config]:
    """One rank of each model of Figure 8, on which the ways to use stalloc are compared."""
    names = ("gpt2-345m-n-last", "llama2-7b-n-first", "qwen1.5-moe-a2.7b-n-first")
    known = all_configs()
    return [known[name] for name in names]


def native_configs() -> list[Config]:
    """All that is run in native mode, the longest first."""
    return [*reversed(used_configs()), *stream_configs().values()]


def compares_settings(config: Config) -> bool:
    """True if it is measured under torch's other settings, too: Figure 8 and the published runs."""
    return config in paper_configs() or config in published_configs()


def compares_planner(config: Config) -> bool:
    """True if the authors' planner plans it, too: dense ones of Table 2 and the published runs."""
    compared = (*figures()["Table 2"].configs, *published_configs())
    return config in compared and not config.model.experts


def workloads() -> list[Config]:
    """Everything that is recorded and replayed, the longest first."""
    configs = all_configs().values()
    return sorted(configs, key=lambda c: c.parallelism.microbatches * c.model.layers, reverse=True)


def config_label(config: Config) -> str:
    """The configuration without its microbatch and stage: "vr", "v-tp4"."""
    named = config.workload.removeprefix(f"{config.model.name}-")
    return named.replace(f"-mb{config.parallelism.microbatch}", "")


def row_name(config: Config) -> str:
    """The name that its rows have."""
    stage = "last" if config.last else "first"
    return f"{config.model.name}-{config_label(config)}-mb{config.parallelism.microbatch}-{stage}"


def capacity(config: Config) -> int:
    """Bytes of the GPU that the paper uses for it."""
    return H200 if config.model.name.startswith("qwen2.5") else A800
