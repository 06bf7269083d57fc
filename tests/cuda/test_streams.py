"""Training on several streams: each has its own addresses, or they take turns and wait.

The tests report each use of a tensor to the stand-in, which finds races.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Literal

import pytest
import standin
import torch
from isolation import isolated
from training_cuda import Trainer

import stalloc

SIZE = 3 << 20


def use_briefly(stream: torch.cuda.Stream, owner: int) -> int:
    """Work of a stream on a tensor of `SIZE` bytes. Returns the tensor's address."""
    with torch.cuda.stream(stream):
        t = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
    standin.use(stream.cuda_stream, t.data_ptr(), SIZE, owner)
    return t.data_ptr()


def serve_in_one_place(step: Callable[[], None]) -> None:
    """Enables a plan in which all tensors of `step` have one address."""
    with stalloc.profile(device="cuda") as prof:
        for _ in range(3):
            step()
            prof.step()
    plan = prof.plan(streams="ordered")
    assert plan.pool == SIZE
    stalloc.enable(plan)


@dataclasses.dataclass
class Scratch:
    """A trainer between whose steps three streams use memory of their own and of each other."""

    trainer: Trainer = dataclasses.field(default_factory=lambda: Trainer(rows=32))
    sides: list[torch.cuda.Stream] = dataclasses.field(
        default_factory=lambda: [torch.cuda.Stream() for _ in range(2)]
    )
    owner: int = 0

    def use(
        self, stream: torch.cuda.Stream, size: int, record: torch.cuda.Stream | None = None
    ) -> None:
        self.owner += 1
        with torch.cuda.stream(stream):
            t = torch.empty(size, dtype=torch.uint8, device="cuda")
        standin.use(stream.cuda_stream, t.data_ptr(), size, self.owner)
        if record is not None:
            record.wait_stream(stream)
            standin.use(record.cuda_stream, t.data_ptr(), size, self.owner)
            t.record_stream(record)

    def step(self, noise: int) -> None:
        main, sides = torch.cuda.current_stream(), self.sides
        for i in range(6):
            self.use(main, 40000, sides[0] if i % 3 == 0 else None)
            self.use(sides[i % 2], 70000 + 512 * (noise if i == 4 else 0))
            self.use(sides[0], 40000, main)
            standin.advance(sides[i % 2].cuda_stream, noise)
            standin.advance(main.cuda_stream, 4 * noise)
        self.trainer.step()
        self.use(sides[1], 123456, main)

    def profile(self) -> stalloc.Profile:
        with stalloc.profile(self.trainer.model) as prof:
            for _ in range(3):
                self.step(0)
        standin.drain_all()
        return prof

    def run(self, plan: stalloc.Plan) -> None:
        stalloc.enable(plan, model=self.trainer.model)
        for _ in range(6):
            self.step(0)
            standin.drain_all()
        waits = standin.host_waits()
        for i in range(12):
            with stalloc.hooks.unplanned():
                for _ in range(i % 4):
                    self.use(self.sides[i % 2], 40000)
                    self.use(torch.cuda.current_stream(), 40000, self.sides[1])
            self.step(i % 3)
        assert stalloc.memory_stats()["hits"] > 2 * stalloc.memory_stats()["planned"]
        assert standin.host_waits() == waits, "the host waited for a stream"
        assert standin.hazards() == 0, standin.complaint()


@pytest.mark.parametrize("streams", ["separate", "ordered", "auto"])
@isolated
def test_no_address_is_used_without_order(streams: Literal["separate", "ordered", "auto"]) -> None:
    standin.set_manual(True)  # torch makes its streams when it needs the first
    scratch = Scratch()
    prof = scratch.profile()
    plan = prof.plan(streams=streams)
    assert len(set(plan.decisions.stream)) == 3
    if streams != "auto":
        assert plan.streams == streams
        assert (plan.pool < prof.plan(streams="separate").pool) == (streams == "ordered")
    scratch.run(plan)
    if streams == "ordered":
        assert stalloc.memory_stats()["stream_waits"] > 10


@isolated
def test_a_stream_that_cannot_be_made_to_wait_gets_another_address() -> None:
    """The program orders nothing itself: whatever waits here, the plan has asked for."""
    standin.set_manual(True)
    side = torch.cuda.Stream()
    places = []

    def step() -> None:
        for owner, stream in enumerate([torch.cuda.current_stream(), side]):
            places.append(use_briefly(stream, owner))

    serve_in_one_place(step)
    for iteration in range(4):
        if iteration == 2:
            standin.fail("cudaStreamWaitEvent", 1, 400, times=2)
        places.clear()
        step()
        assert (places[0] == places[1]) == (iteration != 2)
        stalloc.step()
    assert stalloc.memory_stats()["conflicts"] == 1
    assert standin.hazards() == 0, standin.complaint()


@isolated
def test_compat_mode_orders_streams_too() -> None:
    standin.set_manual(True)
    stalloc.install_compat()
    scratch = Scratch()
    scratch.run(scratch.profile().plan(streams="ordered"))
    assert stalloc.memory_stats()["stream_waits"] > 10


@pytest.mark.parametrize("streams", ["separate", "ordered"])
@pytest.mark.parametrize("mode", ["native", "compat"])
@isolated
def test_a_producer_far_ahead_of_its_consumer_waits_for_it(
    mode: str, streams: Literal["separate", "ordered"]
) -> None:
    """Its blocks are handed back instead of more memory being taken."""
    standin.set_manual(True)
    if mode == "compat":
        stalloc.install_compat()
    trainer = Trainer(rows=32)
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    owners = itertools.count(1)

    def step() -> None:
        for _ in range(4):
            t = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
            standin.use(main.cuda_stream, t.data_ptr(), SIZE, next(owners))
            side.wait_stream(main)
            standin.use(side.cuda_stream, t.data_ptr(), SIZE, next(owners))
            t.record_stream(side)
        del t
        trainer.step()

    with stalloc.profile(trainer.model) as prof:
        for _ in range(3):
            step()
    standin.drain_all()
    stalloc.enable(prof.plan(streams=streams), model=trainer.model)
    for _ in range(3):
        step()
        standin.drain_all()
    stalloc.reset_peak_memory_stats()
    before, waits = stalloc.memory_stats(), standin.host_waits()
    for _ in range(32):
        step()
    stats = stalloc.memory_stats()
    assert stats["handed_back"] - before["handed_back"] >= 4 * 31
    assert stats["peak_reserved"] == before["reserved"]
    assert stats["conflicts"] == before["conflicts"]
    assert standin.host_waits() == waits, "the host waited for a stream"
    assert standin.hazards() == 0, standin.complaint()


@isolated
def test_a_producer_need_not_wait_for_its_consumer() -> None:
    standin.set_manual(True)
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    owners = itertools.count(1)

    def step() -> None:
        t = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
        standin.use(main.cuda_stream, t.data_ptr(), SIZE, next(owners))
        side.wait_stream(main)
        standin.use(side.cuda_stream, t.data_ptr(), SIZE, next(owners))
        t.record_stream(side)
        stalloc.step()

    with stalloc.profile(device="cuda") as prof:
        for _ in range(3):
            step()
    standin.drain_all()
    stalloc.enable(prof.plan(), hand_back=False)
    for _ in range(8):
        step()
    stats = stalloc.memory_stats()
    assert stats["handed_back"] == stats["stream_waits"] == 0
    assert stats["conflicts"] == 7
    assert standin.hazards() == 0, standin.complaint()


@isolated
def test_a_profile_knows_the_order_of_the_programs_streams() -> None:
    """A side stream fetches what the main one then uses and frees, in turns with it."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()

    def step() -> None:
        side.wait_stream(main)
        use_briefly(side, 1)
        main.wait_stream(side)
        use_briefly(main, 2)
        stalloc.step()

    with stalloc.profile(device="cuda") as prof:
        for _ in range(3):
            step()
    orders = prof.trace.orders
    assert set(zip(orders.stream.tolist(), orders.after.tolist(), strict=True)) == {(0, 1), (1, 0)}
    assert prof.plan(streams="separate").pool == 2 * SIZE
    plan = prof.plan()
    assert plan.pool == SIZE
    stalloc.enable(plan)
    for _ in range(4):
        step()
    assert standin.hazards() == 0, standin.complaint()
    stalloc.disable()

    def careless() -> None:
        use_briefly(side, 1)
        use_briefly(main, 2)
        stalloc.step()

    with stalloc.profile(device="cuda") as prof:
        for _ in range(3):
            careless()
    assert len(prof.trace.orders) == 0
    assert prof.plan().pool == 2 * SIZE
    stalloc.enable(plan)  # whose profile had another order: a run does not trust it
    for _ in range(4):
        careless()
    assert stalloc.memory_stats()["stream_waits"] > 4
    assert standin.hazards() == 0, standin.complaint()


@pytest.mark.parametrize("mode", ["native", "compat"])
@isolated
def test_a_stream_that_is_gone_is_never_named(mode: str) -> None:
    """One that torch has not made: nothing tells when the program destroys it."""
    standin.set_manual(True)
    if mode == "compat":
        stalloc.install_compat()
    own = torch.cuda.Stream()
    foreign = torch.cuda.ExternalStream(standin.new_stream())

    def step() -> None:
        for owner, stream in enumerate([torch.cuda.current_stream(), own, foreign]):
            if stream is foreign and gone:
                continue
            use_briefly(stream, owner)
        standin.drain_all()

    gone = False
    serve_in_one_place(step)
    for iteration in range(6):
        if iteration == 3:
            standin.destroy_stream(foreign.cuda_stream)
            gone = True
        step()
        stalloc.step()
    assert stalloc.memory_stats()["stream_waits"] > 0
    assert standin.misuses() == 0, standin.complaint()
    assert standin.hazards() == 0, standin.complaint()
