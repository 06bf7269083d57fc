"""The line that each program prints last."""

from __future__ import annotations

import json

import torch


def print_memory(loss: float) -> None:
    """Prints the last loss, and the peaks of the whole run in bytes, as a line of JSON."""
    facts: dict[str, float] = {"loss": loss}
    if torch.cuda.is_available():
        stats = torch.cuda.memory_stats()
        facts["load"] = stats["requested_bytes.all.peak"]
        facts["reserved"] = stats["reserved_bytes.all.peak"]
        facts["retries"] = stats["num_alloc_retries"]
    print(json.dumps(facts))
