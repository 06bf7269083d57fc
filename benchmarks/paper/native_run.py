"""One run of a workload on the pretended GPU: a CUDA build of torch, stalloc in native mode.

    python benchmarks/paper/native_run.py NAME WAY --iterations N [--plan FILE]

`paper.native` calls it, in a process of its own for each way of use. The workload's operators are
called as on a GPU, forward and backward, and request memory of torch's allocator or stalloc's pool.
Kernels compute nothing. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import sys
from enum import Enum
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workloads"))

import torch
from configs import Config, Overlap, all_configs, stream_configs
from fixed import take_buffers
from rank import ROUTED, Rank
from sharded import ShardedRank
from streams import complete_work

import stalloc

_PROFILED = 3  # iterations, as in the README
_SERVED = 2  # iterations that a run of `auto` goes on for once it has a plan
_MOST = 30  # iterations of such a run


class Way(Enum):
    """How stalloc is used.

    Attributes:
        TORCH: Not at all.
        PROFILE: The whole run is recorded, and a plan of it is written.
        WHOLE: A plan of an earlier run is in force from the start of the process.
        MIDDLE: A plan of an earlier run is enabled after the warm-up iteration.
        PROFILED: Three iterations are profiled, the warm-up first; then their plan is enabled.
        AUTO: `stalloc.auto()` is the only call but `stalloc.step()`.
    """

    TORCH = "torch"
    PROFILE = "profile"
    WHOLE = "whole"
    MIDDLE = "middle"
    PROFILED = "profiled"
    AUTO = "auto"


class Run:
    """A run on a device.

    Args:
        config: The workload.
        way: How stalloc is used.
        device: "cuda" or "cpu".
        plan: The plan's file: written by PROFILE, read by WHOLE and MIDDLE.

    Attributes:
        requests: Of each iteration, on a GPU.
        in_force: The first iteration under a plan; None: there is none.
        served: Share of the requests under a plan that were served at their planned place.
    """

    def __init__(
        self, config: Config, way: Way, device: str = "cuda", plan: Path | None = None
    ) -> None:
        self._config = config
        self._way = way
        self._device = device
        self._plan = plan or Path()
        self._profile: stalloc.Profile | None = None
        self.requests: list[int] = []
        self.in_force: int | None = None
        self.served: float | None = None

    def train(self, iterations: int) -> None:
        """Makes the model and trains it for so many iterations, of which the first warms up.

        A run of `auto` goes on until it has served some under a plan, or rests. On a GPU, the
        search for the plan takes a small part of an iteration; here it may take several.
        """
        if self._way is Way.PROFILE:
            self._begin_profile(None)
        elif self._way is Way.WHOLE:
            stalloc.enable(stalloc.Plan.load(self._plan), startup=True)
            self.in_force = 0
        elif self._way is Way.AUTO:
            stalloc.auto(device=self._device)
        rank = self._rank()
        for iteration in itertools.count():
            if iteration >= iterations and not self._goes_on(iteration):
                break
            self._before(iteration, rank)
            before = self._count()
            rank.iterate(iteration)
            self.requests.append(self._count() - before)
            if self._profile is not None:
                self._profile.step()
            else:
                stalloc.step()
        self._finish()

    def _goes_on(self, iteration: int) -> bool:
        if self._way is not Way.AUTO or iteration >= _MOST:
            return False
        status = stalloc.status()
        return status["stage"] != "resting" and status["served"] < _SERVED

    def _rank(self) -> Rank | ShardedRank:
        between = complete_work if self._config.behind else lambda: None
        if self._config.overlap is Overlap.SHARDED:
            return ShardedRank(self._config, between)
        return Rank(self._config, self._device, between)

    def _before(self, iteration: int, rank: Rank | ShardedRank) -> None:
        if self._way is Way.MIDDLE and iteration == 1:
            self._enable(stalloc.Plan.load(self._plan), rank, iteration)
        elif self._way is Way.PROFILED and iteration == 0:
            self._begin_profile(rank.stage)
        elif self._way is Way.PROFILED and iteration == _PROFILED:
            self._enable(self._end_profile(), rank, iteration)

    def _begin_profile(self, model: torch.nn.Module | None) -> None:
        self._profile = stalloc.profile(model, device=self._device, dynamic=(ROUTED,))
        self._profile.__enter__()

    def _end_profile(self) -> stalloc.Plan:
        assert self._profile is not None
        profile, self._profile = self._profile, None
        profile.stop()
        return profile.plan()

    def _enable(self, plan: stalloc.Plan, rank: Rank | ShardedRank, iteration: int) -> None:
        stalloc.enable(plan, model=rank.stage)
        self.in_force = iteration

    def _finish(self) -> None:
        if self._way is Way.PROFILE:
            self._end_profile().save(self._plan, overwrite=True)
        elif self._way is Way.AUTO:
            status = stalloc.status()
            self.in_force = next((c["iteration"] for c in status["changes"]), None)
            self.served = status["served_as_planned"] / max(1, status["requests"])
        elif self.in_force is not None:
            self.served = stalloc.memory_stats(self._device)["hit_rate"]

    def _count(self) -> int:
        """Requests so far, of torch's allocator on a GPU."""
        if self._device != "cuda":
            return 0
        return int(torch.cuda.memory_stats()["allocation.all.allocated"])


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="the workload")
    parser.add_argument("way", choices=[way.value for way in Way])
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--plan", type=Path)
    args = parser.parse_args()
    known = all_configs() | stream_configs()
    fixed = take_buffers(known[args.name])
    run = Run(known[args.name], Way(args.way), plan=args.plan)
    run.train(args.iterations)
    device = ctypes.CDLL(None)  # the stand-in for the CUDA runtime, which is preloaded
    device.standin_peak.restype = ctypes.c_uint64
    figures = {
        "load": torch.cuda.memory_stats()["requested_bytes.all.peak"] + fixed,
        "reserved": device.standin_peak(0),
        "requests": run.requests[-1],
        "in_force": run.in_force,
        "served": run.served,
    }
    print(json.dumps(figures), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
