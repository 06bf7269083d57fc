"""The states in which tests run: an allocator, and a plan of stalloc that does more or less.

    idle     a plan is in force, between two iterations
    active   a plan of another program is in force, in the middle of a forward: the test's
             requests get its planned addresses, or idle space in its pool
    grown    the same in a forward of a batch larger than profiled: the pool has grown, its memory
             has moved, and torch's segments expand beside it, which `enable()` turns on
    own      the test itself is profiled, planned, and runs under its own plan
    graphs   as idle, and the graphs that the test captures share memory

Each state has a baseline: the state without stalloc that it has to equal. The other program runs
there too, and ends before the test. `own` runs a test several times in one process, and so does its
baseline; that of `grown` has expandable segments.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

import stalloc
from stalloc import _core, hooks

KIB, MIB = 1 << 10, 1 << 20
PROFILED, PLANNED = 3, 2  # runs of a test under its own plan: without one, and with it
PROFILED_MIB = (8, 12, 16)  # batches of the program whose batches vary


@dataclass(frozen=True)
class State:
    """A state. `baseline` is empty for a baseline."""

    name: str
    allocator: str  # torch, native, plain (a plain pluggable allocator) or compat
    plan: str = ""  # idle, active, grown, own, graphs
    runs: int = 1
    baseline: str = ""
    expandable: bool = False  # torch's segments, in a baseline

    @property
    def may_pass_more(self) -> bool:
        """True if more tests may pass than in the baseline: compat mode knows more than a plain
        pluggable allocator."""
        return self.allocator == "compat"


REPEATED = PROFILED + PLANNED
STATES = (
    State("torch", "torch"),
    State("native, idle", "native", "idle", baseline="torch"),
    State("native, active", "native", "active", baseline="torch"),
    State("native, graphs", "native", "graphs", baseline="torch"),
    State("torch, expandable", "torch", expandable=True),
    State("native, grown", "native", "grown", baseline="torch, expandable"),
    State("torch, repeated", "torch", runs=REPEATED),
    State("native, own", "native", "own", REPEATED, "torch, repeated"),
    State("plain", "plain"),
    State("compat", "compat", baseline="plain"),
    State("compat, idle", "compat", "idle", baseline="plain"),
    State("compat, active", "compat", "active", baseline="plain"),
    State("plain, repeated", "plain", runs=REPEATED),
    State("compat, own", "compat", "own", REPEATED, "plain, repeated"),
)
# The library of the plain pluggable allocator, which the driver compiles.
PLAIN_LIBRARY = "STALLOC_CONFORMANCE_PLAIN"


def by_name(name: str) -> State:
    """The state of that name."""
    return next(state for state in STATES if state.name == name)


class Surroundings:
    """Runs a test without stalloc."""

    def __init__(self, state: State) -> None:
        self.state = state

    def run(self, once: Callable[[], bool]) -> None:
        """Runs the test as often as the state asks, until it does not pass."""
        if torch.cuda.is_available():
            torch.cuda.init()  # type: ignore[no-untyped-call]  # as stalloc.profile() does
            if self.state.expandable:
                torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
                _Waves().iterate(PROFILED_MIB)
            else:
                for _ in range(REPEATED if self.state.runs == 1 else 0):
                    _iteration()
        for _ in range(self.state.runs):
            if not once():
                return

    def figures(self) -> dict[str, int]:
        """The requests that a pool has served, and the moves of its memory; empty without one."""
        return {}


def _iteration() -> None:
    """An iteration of another program, with sizes that torch's tests ask for, too."""

    def tensor(size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    sizes = [512, 4 * KIB, MIB, 2 * MIB, 3 * MIB, 20 * MIB]
    with hooks.phase("forward"):
        kept = [tensor(size) for size in sizes for _ in range(2)]
    with hooks.phase("backward"):
        while kept:
            gradient = tensor(kept[-1].numel())
            del kept[-1], gradient
    stalloc.step()


class _Waves(torch.nn.Module):
    """A program whose batches vary, of 24 activations each. Calls `within` before it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.within: Callable[[], object] = lambda: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(24):
            x = x.tanh()
        self.within()
        return x

    def iterate(self, sizes: Iterable[int]) -> None:
        """An iteration for each size of a batch, in MiB."""
        for mib in sizes:
            x = torch.empty(mib * MIB, dtype=torch.uint8, device="cuda").view(torch.float32)
            self(x.requires_grad_()).sum().backward()
            stalloc.step()


class _Planned(Surroundings):
    """Runs a test under a plan."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._served = self._moves = 0

    def run(self, once: Callable[[], bool]) -> None:
        if self.state.plan == "own":
            self._run_own(once)
        elif self.state.plan == "grown":
            self._run_grown(once)
        else:
            self._run_beside(once)
        for name in _core.runtimes():
            _core.runtime(name).check()  # the invariants of stalloc's tables

    def figures(self) -> dict[str, int]:
        return {"served": self._served, "moves": self._moves}

    def _run_beside(self, once: Callable[[], bool]) -> None:
        """Runs the test between two iterations of another program, or within one."""
        with stalloc.profile(device="cuda") as profile:
            for _ in range(PROFILED):
                _iteration()
        with stalloc.enable(profile.plan()):
            for _ in range(PLANNED):
                _iteration()
            with self._around():
                self._count(once)
            stalloc.step()
            _iteration()

    def _around(self) -> AbstractContextManager[object]:
        """The surroundings of the test, beside the plan of the other program."""
        if self.state.plan == "active":
            return hooks.phase("forward")
        return stalloc.share_graphs() if self.state.plan == "graphs" else nullcontext()

    def _run_grown(self, once: Callable[[], bool]) -> None:
        """Runs the test within a batch for which the pool has grown."""
        model = _Waves()
        with stalloc.profile(model, device="cuda") as profile:
            model.iterate(PROFILED_MIB)
        plan = profile.plan()
        with stalloc.enable(plan, model=model):
            model.iterate(PROFILED_MIB)

            def within() -> None:
                stats = stalloc.memory_stats("cuda")
                assert stats["pool"] > plan.pool, "the pool has not grown"
                assert stats["moves"] > 0, "its memory has not moved"
                self._count(once)

            model.within = within
            model.iterate([2 * max(PROFILED_MIB)])
            model.within = lambda: None
            model.iterate(PROFILED_MIB)

    def _count(self, once: Callable[[], bool]) -> None:
        """Runs the test, and counts what the pool does."""
        before, moves = _pool_requests(), stalloc.memory_stats("cuda")["moves"]
        assert before > 0, "the plan is not in force"
        once()
        self._served = _pool_requests() - before
        self._moves = stalloc.memory_stats("cuda")["moves"] - moves

    def _run_own(self, once: Callable[[], bool]) -> None:
        with stalloc.profile(device="cuda") as profile:
            passed = self._iterate(once, PROFILED)
        if passed:
            with stalloc.enable(profile.plan()):
                self._iterate(once, PLANNED)
                self._served = _pool_requests()
                self._moves = stalloc.memory_stats("cuda")["moves"]

    @staticmethod
    def _iterate(once: Callable[[], bool], times: int) -> bool:
        for _ in range(times):
            with hooks.phase("forward"):
                if not once():
                    return False
            stalloc.step()
        return True


def _pool_requests() -> int:
    stats = stalloc.memory_stats("cuda")
    return stats["requests"] - stats["fallback_requests"]


def _install_plain() -> None:
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        os.environ[PLAIN_LIBRARY], "plain_malloc", "plain_free"
    )
    torch.cuda.memory.change_current_allocator(allocator)


def enter(state: State) -> Surroundings:
    """Puts the state's allocator in place, before the GPU is used."""
    if state.allocator == "plain":
        _install_plain()
    elif state.allocator == "compat":
        stalloc.install_compat()
    return _Planned(state) if state.plan else Surroundings(state)
