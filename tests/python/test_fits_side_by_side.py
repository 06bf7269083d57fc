"""Ranks of a pipeline that run side by side, and the mail between them."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
import torch.distributed as dist
from isolation import isolated
from test_fits_stages import STAGES, WIDTHS, scheduled, written
from torch import nn

import stalloc
from stalloc._estimate.post import Post
from stalloc._estimate.processes import Line, Ranks
from stalloc._estimate.recording import made
from stalloc._estimate.stages import Stages, walk_side_by_side
from stalloc._estimate.world import World
from stalloc.errors import StallocError

_distributed: Any = dist


def side_by_side(build: Any, cores: int, gpu: Any = None) -> Stages:
    def run(world: World) -> Any:
        recording = made(build, gpu, 3, world)
        return recording.answer(plan=False), "", recording.peers

    return walk_side_by_side(STAGES, run, cores)[0]


@isolated
@pytest.mark.parametrize("cores", [1, 2, 8])
@pytest.mark.parametrize("kind", ["objects", "gpu", "host", "Schedule1F1B"])
def test_stages_side_by_side_are_those_one_after_another(kind: str, cores: int) -> None:
    build = scheduled(kind, examples=False) if kind == "Schedule1F1B" else written(kind)
    found = side_by_side(build, cores)
    assert [stage.reason for stage in found.stages] == [""] * STAGES
    serial = stalloc.estimate_stages(build, world=STAGES, plan=False)
    assert found.stages == serial.stages
    for one, other in zip(found.stages, serial.stages, strict=True):
        assert one.estimate is not None
        assert other.estimate is not None
        assert one.estimate.trace.fingerprint == other.estimate.trace.fingerprint


@isolated
def test_a_rank_knows_what_a_later_one_sends() -> None:
    def build() -> Any:
        _distributed.init_process_group("nccl")
        rank, last = _distributed.get_rank(), STAGES - 1
        layer = nn.Linear(64, 64, device="cuda")

        def step() -> None:
            width = torch.tensor([WIDTHS[rank]], device="cuda")
            asked = torch.zeros(1, dtype=torch.long, device="cuda")
            if rank > 0:
                _distributed.send(width, rank - 1)
            if rank < last:
                _distributed.recv(asked, rank + 1)
            kept = torch.zeros(2**20, int(asked), device="cuda")
            layer(torch.zeros(8, 64, device="cuda")).sum().backward()
            del kept

        return step

    found = side_by_side(build, 2)
    for n, stage in enumerate(found.stages[:-1]):
        assert stage.estimate is not None
        held = stage.estimate.load - 2**22 * WIDTHS[n + 1]
        assert 0 < held < 2**26, held


@isolated
def test_a_rank_whose_process_ends_leaves_the_others_their_answers() -> None:
    def build() -> Any:
        step = scheduled("Schedule1F1B", examples=False)()
        if _distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return step

    found = side_by_side(build, 2)
    assert [(stage.rank, stage.reason) for stage in found.stages] == [
        (0, ""),
        (1, "its process was ended by signal 9"),
    ]


@isolated
@pytest.mark.parametrize("cores", [1, 3])
def test_a_message_that_never_comes_is_not_known(cores: int) -> None:
    def route(source: int, target: int) -> Any:
        return ((0, 1, 2), source, target)

    def work(rank: int, line: Line) -> Any:
        post = Post(line.tell, line.ask)
        if rank == 0:
            post.meet(2)
            post.meet(1)
        if rank == 2:
            return [post.receive(route(1, 2)) for _ in range(3)]
        # Each waits for the other. The smaller one goes on.
        got = post.receive(route(1 - rank, rank))
        post.send(route(rank, 1 - rank), [rank, torch.tensor([rank, 7])])
        if rank == 1:
            post.send(route(1, 2), "first")
            post.send(route(1, 2), lambda: None)
        return got and [got[0], got[1].tolist()]

    ranks = Ranks(work, cores)
    ranks.run(0)
    assert ranks.failures == {}
    assert ranks.results[0] is None
    assert ranks.results[1] == [0, [0, 7]]
    assert ranks.results[2] == ["first", None, None]


@isolated
def test_errors_of_ranks_are_theirs_and_no_process_is_left() -> None:
    def work(rank: int, line: Line) -> int:
        Post(line.tell, line.ask).meet(min(rank + 1, 4))
        if rank == 1:
            raise StallocError("no such stage")
        if rank == 2:
            raise ValueError
        if rank == 3:
            os._exit(7)
        return rank

    ranks = Ranks(work, 1)
    ranks.run(0)
    assert ranks.results.keys() == {0, 4}
    assert ranks.failures == {
        1: "no such stage",
        2: "its process was ended by exit code 1",
        3: "its process was ended by exit code 7",
    }
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
