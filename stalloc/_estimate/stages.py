"""One rank of each stage of a pipeline.

Rank 0 runs first. A rank that it sends tensors of the GPU to, or receives them from, one to one,
is of another stage of its pipeline: that one runs next, and tells of its own neighbours. So a
program of 8 stages, each of 8 ranks that share or copy it, is run 8 times, as the ranks of the one
pipeline that rank 0 is in. All other ranks hold what one of these holds.

In one process, ranks run one after another, the smallest first, so that each knows what the stage
before it sends. In processes of their own they run side by side (`stalloc._estimate.processes`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from stalloc import replaying
from stalloc._estimate.answer import DOES_NOT_FIT, FITS, MAY_NOT_FIT, Estimate, packed, unpacked
from stalloc._estimate.cards import Card, card_of
from stalloc._estimate.post import Post, PostedShapes
from stalloc._estimate.processes import Line, Ranks, usable_cores
from stalloc._estimate.recording import ITERATIONS, made
from stalloc._estimate.world import World, world_of
from stalloc.errors import StallocError

_SEVERITY = {None: 0, FITS: 0, MAY_NOT_FIT: 1, DOES_NOT_FIT: 2}


@dataclass(frozen=True, slots=True)
class Stage:
    """A rank that stands for the others of its stage.

    Attributes:
        rank: Its number.
        estimate: The memory that it needs; None if it has no answer.
        reason: The reason why it has none, or why it ended early; empty otherwise.
    """

    rank: int
    estimate: Estimate | None
    reason: str = ""

    def to_json(self, allocator: str = replaying.TORCH) -> dict[str, Any]:
        """The stage as plain values, with the verdict of an allocator."""
        answer: dict[str, Any] = {"rank": self.rank, "verdict": None, "reason": self.reason}
        if self.estimate is not None:
            whole = self.estimate.to_json()
            names = ("load", "needs", "parts", "peak", "extras", "iterations", "requests")
            answer |= {name: whole[name] for name in names}
            answer["verdict"] = self.estimate.need(allocator).verdict
        return answer


@dataclass(frozen=True, slots=True)
class Stages:
    """The memory that each stage of a pipeline needs of its GPU.

    Attributes:
        world: The number of processes.
        stages: One rank of each stage, by rank; only rank 0 for a program without a pipeline.
    """

    world: int
    stages: tuple[Stage, ...]

    @property
    def failed(self) -> tuple[Stage, ...]:
        """The stages that have no answer."""
        return tuple(stage for stage in self.stages if stage.estimate is None)

    @property
    def fits(self) -> bool | None:
        """True if each stage fits under torch's allocator at the upper end of its range.

        None without a GPU to compare with, or if a stage has no answer and all others fit.
        """
        verdicts = [stage.estimate.fits for stage in self.stages if stage.estimate is not None]
        if None in verdicts or (self.failed and all(verdicts)):
            return None
        return all(verdicts)

    def largest(self, allocator: str = replaying.TORCH) -> Stage:
        """The stage that needs the most of its GPU, among those that have an answer."""

        def need(stage: Stage) -> tuple[int, int]:
            assert stage.estimate is not None
            one = stage.estimate.need(allocator)
            return _SEVERITY[one.verdict], one.high

        return max((stage for stage in self.stages if stage.estimate is not None), key=need)


Run = Callable[[World], tuple[Estimate, str, set[int]]]
"""Records a rank: what it needs, why it ended early, and the ranks that it exchanges tensors with.
"""


def walk(size: int | None, run: Run) -> Stages:
    """Runs one rank of each stage.

    Args:
        size: The number of processes.
        run: Called with each rank.

    Raises:
        StallocError: There is no world; or rank 0, which tells of the others, has no answer.
    """
    first = _first(size)
    stages: dict[int, Stage] = {}
    waiting = {0}
    while waiting:
        rank = min(waiting)
        try:
            estimate, ended, peers = run(first.other(rank))
        except StallocError as error:
            if rank == 0:
                raise
            stages[rank] = Stage(rank, None, str(error))
        else:
            stages[rank] = Stage(rank, estimate, ended)
            waiting |= peers
        waiting -= stages.keys()
    return Stages(first.size, tuple(stages[rank] for rank in sorted(stages)))


def walk_side_by_side(
    size: int | None, run: Run, cores: int | None = None
) -> tuple[Stages, Callable[[int], World]]:
    """Runs one rank of each stage, each in a process of its own.

    Args:
        size: The number of processes.
        run: Called with each rank, in its process.
        cores: How many run at once; None: as many as there are cores.

    Returns:
        The stages, and a function that gives a rank with the mail of all others.

    Raises:
        StallocError: As for `walk`.
    """
    first = _first(size)

    def world(rank: int, post: Post) -> World:
        return replace(first, rank=rank, mail=post, shapes=PostedShapes(post))

    def work(rank: int, line: Line) -> tuple[bytes, str]:
        answer, ended, _ = run(world(rank, Post(line.tell, line.ask)))
        return packed(answer), ended

    def answered(rank: int) -> World:
        post = Post(lambda *_: None, lambda key, number: ranks.message(key, number) or b"")
        return world(rank, post)

    ranks = Ranks(work, cores or usable_cores())
    ranks.run(0)
    if 0 in ranks.failures:
        raise StallocError(ranks.failures[0])
    stages = [Stage(rank, unpacked(one), ended) for rank, (one, ended) in ranks.results.items()]
    stages += [Stage(rank, None, reason) for rank, reason in ranks.failures.items()]
    return Stages(first.size, tuple(sorted(stages, key=lambda stage: stage.rank))), answered


def _first(size: int | None) -> World:
    if size is None:
        raise StallocError("the stages of a pipeline are ranks of several processes: give --world")
    first = world_of(size, 0)
    assert first is not None
    return first


def estimate_stages(
    function: Callable[[], Any],
    *,
    world: int,
    gpu: str | Card | None = None,
    iterations: int = ITERATIONS,
    plan: bool = True,
) -> Stages:
    """Estimates what each stage of a pipeline needs of its GPU, on a machine without one.

    The function is called as rank 0, then as each rank that this one exchanges tensors with, one
    to one, and so on. A function without a pipeline is called as rank 0 only.

    Example::

        stages = stalloc.estimate_stages(build, world=64, gpu="H100")
        print(stages.fits, stages.largest().rank)

    Args:
        function: As for `estimate`; called once for each stage.
        world: Processes that the function finds itself among.
        gpu: A card's name, or a size; None compares with none.
        iterations: How many to record, at least 2.
        plan: Solve a plan for each stage, for stalloc's row of the answer.

    Raises:
        TypeError: `function` cannot be called.
        StallocError: As for `estimate`, for rank 0. Another stage that has no answer is in
            `failed`.
    """
    card = card_of(gpu) if isinstance(gpu, str) else gpu

    def run(one: World) -> tuple[Estimate, str, set[int]]:
        recording = made(function, card, iterations, one)
        return recording.answer(plan=plan), "", recording.peers

    return walk(world, run)
