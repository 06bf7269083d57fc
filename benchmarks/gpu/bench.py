"""Measures the memory of training under each allocator.

`compare` trains each case under all of them; then once more on a GPU that is made to hold no more
than stalloc needed for it. `search` looks for the largest batch of each. Runs go on side by side
where the GPU has room: memory does not depend on how fast a run is.

A search begins where memory should end, as two runs tell: what a batch takes grows evenly. Each try
is a process or two of some ten seconds, so it ends at a twenty-fifth of the batch.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from cases import PLANNED_BY, Case
from report import Report
from runs import Result, planned, start
from training import GIB, Run

MIB = 1 << 20
SLACK = 64 * MIB  # beyond the memory that stalloc needed: both divide memory by 2 MiB
OWN = 1.0  # GiB that a process takes of the GPU besides: its context


class Room:
    """The GPU's memory, of which each process takes a part as long as it runs."""

    def __init__(self, gib: float) -> None:
        self._gib = gib
        self._free = gib
        self._changed = threading.Condition()

    @contextmanager
    def take(self, gib: float) -> Iterator[None]:
        """Waits until there is so much room; what is larger than the GPU runs alone."""
        gib = min(gib + OWN, self._gib)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= gib)
            self._free -= gib
        try:
            yield
        finally:
            with self._changed:
                self._free += gib
                self._changed.notify_all()


class Bench:
    """Measures cases; what is in the report already is not measured again."""

    def __init__(
        self,
        report: Report,
        allocators: list[str],
        minutes: float,
        patience: float,
        jobs: int,
        room: Room,
    ) -> None:
        self.report = report
        self.allocators = allocators
        self.end = time.monotonic() + 60 * minutes
        self.patience = 60 * patience
        self.jobs = jobs
        self.room = room

    def run(self, run: Run, room: float) -> Result:
        """One run, while there is time."""
        with self.room.take(room):
            left = self.end - time.monotonic()
            seconds = min(self.patience, left / 2 if run.allocator == "stalloc" else left)
            if seconds < 10:
                return {"failed": "no time was left"}
            result = (planned if run.allocator == "stalloc" else start)(run, seconds)
        result.pop("losses", None)
        return result

    def compare(self, cases: dict[str, Case]) -> bool:
        """Trains the cases under each allocator; whether all of that came to something."""
        with ThreadPoolExecutor(self.jobs) as pool:
            tasks = [(name, case, a) for a in self.allocators for name, case in cases.items()]
            done = list(pool.map(lambda task: self._measure(*task), tasks))
            done += pool.map(lambda item: self._squeeze(*item), cases.items())
        return all(done)

    def _measure(self, name: str, case: Case, allocator: str, memory: float = 0) -> bool:
        runs = "runs" if not memory else f"runs in {memory:.3f} GiB"
        known = self.report.find("name", name) or {}
        if "failed" not in known.get(runs, {}).get(allocator, {"failed": ""}):
            return True
        run = dataclasses.replace(case.run, allocator=allocator, memory=memory)
        if allocator == "auto":
            run = dataclasses.replace(run, warmup=max(run.warmup, PLANNED_BY))
        result = self.run(run, memory or case.room)
        room = f" in {memory:.2f} GiB" if memory else ""
        print(f"{name}{room}, {allocator}: {summary(result)}", flush=True)
        self.report.update("name", name, runs, {allocator: result})
        return "failed" not in result

    def _squeeze(self, name: str, case: Case) -> bool:
        """As if the GPU held no more than stalloc has needed, where others need more."""
        runs = (self.report.find("name", name) or {}).get("runs", {})
        needed = {a: r["peak_reserved"] for a, r in runs.items() if "peak_reserved" in r}
        if "stalloc" not in needed:
            return True
        memory = needed["stalloc"] + SLACK
        who = [a for a in self.allocators if a == "stalloc" or needed.get(a, 0) > memory]
        if len(who) == 1:
            return True
        done = [self._measure(name, case, a, memory / GIB) for a in who]
        return all(done)

    def search(self, name: str, run: Run, memory: float, limit: int) -> bool:
        """Finds the largest batch of each allocator in so many GiB; whether that could be done."""
        run = dataclasses.replace(run, memory=memory)
        name = f"{name} in {memory:g} GiB"
        try:
            guess = min(self._guess(name, run), limit)
        except TimeoutError as error:
            print(f"{name}: {error}", flush=True)
            return False
        with ThreadPoolExecutor(len(self.allocators)) as pool:
            done = pool.map(
                lambda a: self._search(name, dataclasses.replace(run, allocator=a), guess, limit),
                self.allocators,
            )
            return all(list(done))

    def _search(self, name: str, run: Run, guess: int, limit: int) -> bool:
        known = (self.report.find("name", name) or {}).get("largest_batch", {})
        if run.allocator in known:
            return True
        try:
            largest = self._largest(name, run, guess, limit)
        except TimeoutError as error:
            print(f"{name}, {run.allocator}: {error}", flush=True)
            return False
        print(f"{name}, {run.allocator}: trains batches up to {largest}", flush=True)
        self.report.update("name", name, "largest_batch", {run.allocator: largest})
        return True

    def _largest(self, name: str, run: Run, guess: int, limit: int) -> int:
        """The largest batch that trains, to a twenty-fifth of it; 0 when none does."""
        low, high, step = 0, limit + 1, max(1, guess // 25)
        resolution, batch = step, guess
        while high - low > resolution:
            if self._trains(name, dataclasses.replace(run, batch=batch)):
                low, batch = batch, batch + step
            else:
                high, batch = batch, batch - step
            step *= 2
            if not low < batch < high:
                batch = (low + high) // 2
        return low

    def _trains(self, name: str, run: Run) -> bool:
        """True if a batch trains: known already, or tried now."""
        tried = f"tried, {run.allocator}"
        known = (self.report.find("name", name) or {}).get(tried, {})
        key = str(run.batch)
        if key not in known:
            r = self.run(run, run.memory)
            if "failed" in r:
                raise TimeoutError(f"batch {run.batch}: {r['failed']}")
            known = {key: "out_of_memory" not in r}
            print(f"{name}, {run.allocator}, batch {key}: {summary(r)}", flush=True)
            self.report.update("name", name, tried, known)
        return bool(known[key])

    def _guess(self, name: str, run: Run) -> int:
        """About where memory ends, from what batches of 1 and 2 take under torch's allocator."""
        growth = (self.report.find("name", name) or {}).get("growth")
        if not growth:
            small = dataclasses.replace(run, allocator="torch", steps=1, warmup=2)
            runs = [dataclasses.replace(small, batch=batch) for batch in (1, 2)]
            with ThreadPoolExecutor(2) as pool:
                one, two = pool.map(lambda r: self.run(r, r.memory), runs)
            if "load" not in one or "load" not in two:
                raise TimeoutError(f"batches of 1 and 2: {summary(one)}; {summary(two)}")
            growth = {"first": one["load"], "each": two["load"] - one["load"]}
            self.report.update("name", name, "growth", growth)
        memory = run.memory * GIB
        return max(1, int(1 + (memory - growth["first"]) / max(growth["each"], MIB)))


def gpu_room(share: float) -> Room:
    """The memory of the first GPU that is free now, or a share of it."""
    free, _ = torch.cuda.mem_get_info()
    return Room(share * free / GIB)


def summary(r: Result) -> str:
    """A run in a few words."""
    if "failed" in r:
        return f"failed: {r['failed']}"
    if "out_of_memory" in r:
        return "out of memory"
    again = f", memory ran out {r['retries']} times on the way" if r["retries"] else ""
    return (
        f"{r['load'] / GIB:.2f} GiB in {r['peak_reserved'] / GIB:.2f}, "
        f"efficiency {r['efficiency']:.4f}, {r['device_allocations']} calls of cudaMalloc{again}"
    )
