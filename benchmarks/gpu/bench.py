"""Measures memory and time of training under each allocator.

`compare` trains one batch under all of them; then once more on a GPU that is made to hold no more
than stalloc needed for it. `search` looks for the largest batch of each.

A search begins where memory should end, as two runs tell: what a batch takes grows evenly. Each try
is a process or two of some ten seconds, so it ends at a twenty-fifth of the batch.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch
from report import Report
from runs import Result, planned, start
from training import GIB, Run

MIB = 1 << 20
SLACK = 64 * MIB  # beyond the memory that stalloc needed: both divide memory by 2 MiB
# These batches fill about two thirds of 139 GiB.
BATCHES = {"gpt2-345m": 32, "llama-1.3b": 10, "moe-8x": 16}
CARD = 139 * GIB
TRIAL = {"steps": 2, "warmup": 3}


class Bench:
    """Measures models one by one; what is in the report already is not measured again."""

    def __init__(
        self,
        report: Report,
        allocators: list[str],
        minutes: float,
        patience: float,
        memory: float,
        cached: bool,
    ) -> None:
        self.report = report
        self.allocators = allocators
        self.end = time.monotonic() + 60 * minutes
        self.patience = 60 * patience
        self.memory = memory
        self.cached = cached

    def result_of(self, model: str) -> dict[str, Any]:
        """The results of a model so far."""
        name = f"{model} in {self.memory:g} GiB" if self.memory else model
        return self.report.find("name", name) or {"name": name, "model": model}

    def run(self, run: Run) -> Result:
        """One run, while there is time."""
        run = dataclasses.replace(run, memory=run.memory or self.memory, cached=self.cached)
        left = self.end - time.monotonic()
        seconds = min(self.patience, left / 2 if run.allocator == "stalloc" else left)
        if seconds < 10:
            return {"failed": "no time was left"}
        result = (planned if run.allocator == "stalloc" else start)(run, seconds)
        result.pop("losses", None)
        return result

    def compare(self, model: str, batch: int) -> bool:
        """Trains a batch under each allocator; whether all of that came to something."""
        available = self.memory * GIB or torch.cuda.get_device_properties(0).total_memory
        batch = batch or max(1, round(BATCHES[model] * available / CARD))
        result = self.result_of(model)
        if result.get("batch") != batch:
            result |= {"batch": batch, "runs": {}, "squeezed": {}}
        self.fill(result, result["runs"], Run(model, "", batch=batch, steps=10))
        needed = result["runs"].get("stalloc", {}).get("needed")
        if needed:
            # As if the GPU held no more than stalloc has needed.
            memory = (needed + SLACK) / GIB
            if result["squeezed"].get("memory") != memory:
                result["squeezed"] = {"memory": memory, "runs": {}}
            squeezed = Run(model, "", batch=batch, steps=10, memory=memory)
            self.fill(result, result["squeezed"]["runs"], squeezed)
        runs = [*result["runs"].values(), *result["squeezed"].get("runs", {}).values()]
        return not any("failed" in r for r in runs)

    def fill(self, result: dict[str, Any], runs: dict[str, Result], run: Run) -> None:
        """Adds to `runs` those of the allocators that are missing."""
        for allocator in self.allocators:
            if "failed" in runs.get(allocator, {"failed": ""}):
                runs[allocator] = r = self.run(dataclasses.replace(run, allocator=allocator))
                room = f" in {run.memory:.2f} GiB" if run.memory else ""
                print(f"{run.model} batch {run.batch}{room}, {allocator}: {summary(r)}", flush=True)
                self.report.put("name", result)

    def search(self, model: str, limit: int) -> bool:
        """Finds the largest batch of each allocator; whether that could be done."""
        result = self.result_of(model)
        largest = result.setdefault("largest_batch", {})
        for allocator in self.allocators:
            if allocator in largest:
                continue
            tried = result.setdefault("tried", {}).setdefault(allocator, {})
            try:
                largest[allocator] = self.largest(result, Run(model, allocator, **TRIAL), limit)
            except TimeoutError as error:
                print(f"{model}, {allocator}: {error}; tried {tried}", flush=True)
                return False
            print(f"{model}, {allocator}: trains batches up to {largest[allocator]}", flush=True)
            self.report.put("name", result)
        return True

    def largest(self, result: dict[str, Any], run: Run, limit: int) -> int:
        """The largest batch that trains, to a twenty-fifth of it; 0 when none does."""
        guess = min(self.guess(result, run), limit)
        low, high, step = 0, limit + 1, max(1, guess // 25)
        resolution, batch = step, guess
        while high - low > resolution:
            if self.trains(result, dataclasses.replace(run, batch=batch)):
                low, batch = batch, batch + step
            else:
                high, batch = batch, batch - step
            step *= 2
            if not low < batch < high:
                batch = (low + high) // 2
        return low

    def trains(self, result: dict[str, Any], run: Run) -> bool:
        """True if a batch trains: known already, or tried now."""
        tried = result["tried"][run.allocator]
        key = str(run.batch)
        if key not in tried:
            r = self.run(run)
            if "failed" in r:
                raise TimeoutError(r["failed"])
            tried[key] = "out_of_memory" not in r
            self.report.put("name", result)
        return bool(tried[key])

    def guess(self, result: dict[str, Any], run: Run) -> int:
        """About where memory ends, from what batches of 1 and 2 take under torch's allocator."""
        if "growth" not in result:
            small = Run(run.model, "torch", steps=1, warmup=2)
            one, two = (self.run(dataclasses.replace(small, batch=b)) for b in (1, 2))
            if "load" not in one or "load" not in two:
                raise TimeoutError(f"batches of 1 and 2: {summary(one)}; {summary(two)}")
            memory = self.memory * GIB or (
                torch.cuda.get_device_properties(0).total_memory - one["outside"]
            )
            result["growth"] = {"first": one["load"], "each": two["load"] - one["load"]}
            result["growth"]["memory"] = memory
        growth = result["growth"]
        return max(1, int(1 + (growth["memory"] - growth["first"]) / max(growth["each"], MIB)))


def summary(r: Result) -> str:
    """A run in a few words."""
    if "failed" in r:
        return f"failed: {r['failed']}"
    if "out_of_memory" in r:
        return "out of memory"
    again = f", memory ran out {r['retries']} times on the way" if r["retries"] else ""
    return (
        f"{r['needed'] / GIB:.2f} GiB, efficiency {r['efficiency']:.4f}, "
        f"{r['tokens_per_second']:.0f} tokens/s{again}"
    )
