"""torch's allocator interface under native mode: whatever asks about memory gets an answer."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import cuda_probe
import pytest
import standin
import torch
from alone import run_alone
from known_memory import KnownMemory, joined, overlaps
from training_cuda import Trainer

import stalloc
from stalloc import _core

# The trainers here have 48 rows or 256: a tensor that another test has shared keeps a pool of 32.
MIB = 1 << 20
GIB = 1 << 30


def planned(trainer: Trainer, **options: Any) -> tuple[stalloc.Plan, int]:
    """A plan in force, and the address of its pool."""
    plan = trainer.plan()
    stalloc.enable(plan, model=trainer.model, **options)
    for _ in range(4):
        trainer.step()
    return plan, pool_address(plan)


def pool_address(plan: stalloc.Plan) -> int:
    segments = [s for s in torch.cuda.memory_snapshot() if s["total_size"] == plan.pool]
    assert len(segments) == 1
    return int(segments[0]["address"])


def planned_tensor(trainer: Trainer) -> torch.Tensor:
    x = torch.empty(trainer.rows, trainer.width, device=trainer.device)
    return trainer.model(x).detach()


def segment_of(tensor: torch.Tensor) -> dict[str, Any]:
    segments = [
        s
        for s in torch.cuda.memory_snapshot()
        if s["address"] <= tensor.data_ptr() < s["address"] + s["total_size"]
    ]
    assert len(segments) == 1
    return dict(segments[0])


def test_an_exact_profile_leaves_requests_to_torch_while_that_does_not_cache() -> None:
    with stalloc.profile(device="cuda"):
        torch.cuda.caching_allocator_enable(False)
        try:
            before = torch.cuda.memory_stats()["requested_bytes.all.allocated"]
            x = torch.empty(MIB, dtype=torch.uint8, device="cuda")
            assert torch.cuda.memory_stats()["requested_bytes.all.allocated"] == before
            del x
        finally:
            torch.cuda.caching_allocator_enable(True)


def test_observers_learn_that_memory_runs_out_in_an_exact_profile() -> None:
    """Those from before stalloc came, too: torch tells them."""
    result = run_alone(
        """
import torch, stalloc
told = []
torch.cuda.init()
torch._C._cuda_attach_out_of_memory_observer(lambda *a: told.append(("early", *a)))
torch.cuda.memory._record_memory_history(stacks="python")
with stalloc.profile(device="cuda"):
    torch._C._cuda_attach_out_of_memory_observer(lambda *a: told.append(("late", *a)))
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as e:
        assert "1024.00 GiB" in str(e) and "stalloc" in str(e) and "profiling" in str(e), e
    else:
        raise AssertionError("it has to be refused")
    assert [(who, device, size) for who, device, size, *_ in told] == [
        ("early", 0, 1 << 40), ("late", 0, 1 << 40)], told
    assert torch.cuda.memory_stats()["num_ooms"] == 1
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    assert [e["size"] for e in trace if e["action"] == "oom"] == [1 << 40]
    x = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
"""
    )
    assert result.returncode == 0, result.stderr


def test_an_exact_profile_keeps_to_the_share_of_the_memory() -> None:
    """torch's allocator, which has the rest of the share, is asked for what the device refuses."""
    result = run_alone(
        """
import torch, stalloc
GIB = 1 << 30
torch.cuda.set_per_process_memory_fraction(0.5)  # 40 GiB
with stalloc.profile(device="cuda"):
    x = torch.empty(39 * GIB, dtype=torch.uint8, device="cuda")
    try:
        torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError("it has to be refused")
    y = torch.empty(GIB // 2, dtype=torch.uint8, device="cuda")
del x
z = torch.empty(30 * GIB, dtype=torch.uint8, device="cuda")  # y keeps stalloc in front
"""
    )
    assert result.returncode == 0, result.stderr


def test_torchs_race_detector_sees_requests_of_exact_profiles() -> None:
    result = run_alone(
        """
import torch, stalloc
from torch.cuda import _gpu_trace
seen = []
torch._C._activate_gpu_trace()
_gpu_trace.register_callback_for_memory_allocation(lambda p: seen.append(("taken", p)))
_gpu_trace.register_callback_for_memory_deallocation(lambda p: seen.append(("freed", p)))
with stalloc.profile(device="cuda"):
    seen.clear()
    x = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    p = x.data_ptr()
    del x
    assert seen == [("taken", p), ("freed", p)], seen
"""
    )
    assert result.returncode == 0, result.stderr


def test_exceptions_survive_the_freeing_of_tensors() -> None:
    """torch's own listener for the order of streams calls Python when a tensor is freed."""
    result = run_alone(
        """
import torch, stalloc

def fails():
    try:
        torch.empty(10, device="cuda").numpy()
    except TypeError:
        return
    raise AssertionError("numpy() has to be refused")

with stalloc.profile(device="cuda") as prof:
    for _ in range(3):
        fails()
        prof.step()
fails()
with stalloc.enable(prof.plan()):
    fails()
    stalloc.step()
    fails()
"""
    )
    assert (result.returncode, result.stderr) == (0, ""), result.stderr


def test_another_listener_hears_all_before_during_and_after_a_profile() -> None:
    result = run_alone(
        """
import torch, stalloc
from torch.cuda import _gpu_trace
records, waits, syncs = [], [], []
torch._C._activate_gpu_trace()
_gpu_trace.register_callback_for_event_record(lambda *a: records.append(a))
_gpu_trace.register_callback_for_event_wait(lambda *a: waits.append(a))
_gpu_trace.register_callback_for_stream_synchronization(lambda *a: syncs.append(a))

def order():
    records.clear(), waits.clear(), syncs.clear()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    side.synchronize()
    return len(records), len(waits), len(syncs)

alone = order()
assert alone == (1, 1, 1), alone
with stalloc.profile(device="cuda"):
    assert order() == alone
assert order() == alone
with stalloc.profile(device="cuda"):
    assert order() == alone
assert order() == alone
"""
    )
    assert result.returncode == 0, result.stderr


def test_another_listener_may_come_while_a_profile_listens() -> None:
    result = run_alone(
        """
import torch, stalloc
from torch.cuda import _gpu_trace
records = []
_gpu_trace.register_callback_for_event_record(lambda *a: records.append(a))
with stalloc.profile(device="cuda"):
    torch._C._activate_gpu_trace()
    torch.cuda.Event().record()
torch.cuda.Event().record()
assert len(records) == 2, records
with stalloc.profile(device="cuda"):
    torch.cuda.Event().record()
assert len(records) == 3, records
"""
    )
    assert result.returncode == 0, result.stderr


def profiled(size: int) -> tuple[int, int]:
    """Bytes that torch.profiler saw a tensor of `size` bytes take and give back."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profiler:
        x = torch.empty(size, dtype=torch.uint8, device="cuda")
        del x
    usage = [
        e.self_device_memory_usage for e in profiler.events() if e.self_device_memory_usage != 0
    ]
    return sum(n for n in usage if n > 0), sum(n for n in usage if n < 0)


def test_a_profiler_of_torch_sees_requests_before_a_phase_begins() -> None:
    with stalloc.profile(device="cuda"):
        assert profiled(3 * MIB) == (3 * MIB, -3 * MIB)
    trainer = Trainer(rows=48)
    planned(trainer)
    before = stalloc.memory_stats()
    assert profiled(64 << 10) == (64 << 10, -(64 << 10))
    after = stalloc.memory_stats()
    assert after["requests"] - after["fallback_requests"] > (
        before["requests"] - before["fallback_requests"]
    ), "the pool has served it"


def idle_in_snapshot() -> tuple[int, int]:
    """Number and bytes of the idle blocks of segments that are split, as torch's tests count."""
    idle = [
        block["size"]
        for segment in torch.cuda.memory_snapshot()
        if segment["device"] == 0 and len(segment["blocks"]) > 1
        for block in segment["blocks"]
        if block["state"] == "inactive"
    ]
    return len(idle), sum(idle)


def idle_in_statistics() -> tuple[int, int]:
    stats = torch.cuda.memory_stats(0)
    return stats["inactive_split.all.current"], stats["inactive_split_bytes.all.current"]


def test_statistics_count_the_idle_blocks_of_the_snapshot() -> None:
    trainer = Trainer()
    planned(trainer)
    torch.cuda.empty_cache()
    assert idle_in_statistics() == idle_in_snapshot(), "the pool is idle as a whole"
    output = planned_tensor(trainer)
    count, size = idle_in_snapshot()
    assert count > 0
    assert size > 0
    assert idle_in_statistics() == (count, size)
    del output


def test_tensors_of_exact_profiles_are_shared_and_shown() -> None:
    """In a process of its own: torch keeps what is shared, for the consumer that never comes."""
    result = run_alone(
        """
import torch, cuda_probe, stalloc
with stalloc.profile(device="cuda") as prof:
    x = torch.empty((3 << 20) + 512, dtype=torch.uint8, device="cuda")
    handle = x.untyped_storage()._share_cuda_()
    assert int.from_bytes(handle[1][-64:-56], "little") == x.data_ptr()
    assert handle[3] == 0
    assert cuda_probe.base_allocation(x.data_ptr() + 4096) == (x.data_ptr(), x.nbytes)
    shown = torch.cuda.memory_snapshot()
    segment = next(s for s in shown if s["address"] == x.data_ptr())
    assert segment["total_size"] == x.nbytes
    assert [b["requested_size"] for b in segment["blocks"]] == [x.nbytes]
    assert segment["blocks"][0]["state"] == "active_allocated"
    assert torch.cuda.memory_reserved() == sum(s["total_size"] for s in shown)
    prof.step()
"""
    )
    assert result.returncode == 0, result.stderr


OTHER_DEVICE = """
import torch, stalloc
from training_cuda import Trainer
trainer = Trainer("cuda:1", rows=32)
plan = trainer.plan()
stalloc.enable(plan, model=trainer.model, keep_addresses=False)
for _ in range(4): trainer.step()
y = trainer.model(torch.empty(trainer.rows, trainer.width, device="cuda:1")).detach()
pool = next(s for s in torch.cuda.memory_snapshot() if s["total_size"] == plan.pool)
assert torch.cuda.current_device() == 0
"""


def test_handles_are_made_on_the_tensors_device() -> None:
    result = run_alone(
        OTHER_DEVICE
        + """
handle = y.untyped_storage()._share_cuda_()
assert len(handle[1]) == 2 + 64 and handle[1][1:2] == b"c", handle[1]
assert int.from_bytes(handle[1][2:10], "little") == pool["address"]
assert handle[3] == y.data_ptr() - pool["address"]
import cuda_probe
assert cuda_probe.share_handle(y.data_ptr()) == handle[1]
assert torch.cuda.memory_reserved(0) == 0, "torch was asked about another device"
"""
    )
    assert result.returncode == 0, result.stderr


def test_no_handle_is_made_up_where_torch_makes_none() -> None:
    """A driver that shares no virtual memory, of which all of torch's memory is here."""
    result = run_alone(
        'import torch; torch._C._accelerator_setAllocatorSettings("expandable_segments:True")'
        + OTHER_DEVICE
        + """
import standin
standin.fail("cuMemExportToShareableHandle", 1, 801, times=1000)
try:
    y.untyped_storage()._share_cuda_()
except RuntimeError as e:
    assert "stalloc's pool cannot be shared with another process" in str(e), e
else:
    raise AssertionError("a handle of another kind was made up")
trainer.step()
"""
    )
    assert result.returncode == 0, result.stderr


_events: list[tuple[int, int, int, int]] = []


@pytest.fixture
def events() -> list[tuple[int, int, int, int]]:
    """The events that trackers get once `follow` has been called: action, device, address, size."""
    if not _attached:
        with stalloc.profile(device="cuda"):  # puts stalloc in front of torch's allocator
            cuda_probe.attach_tracker()
        _attached.append(True)
    cuda_probe.take_events()
    _events.clear()
    return _events


_attached: list[bool] = []


def segments() -> dict[int, int]:
    """The sizes of all segments of the device, by address."""
    shown = [s for s in torch.cuda.memory_snapshot() if s["device"] == 0]
    return {s["address"]: s["total_size"] for s in shown}


class Communicator:
    """Registers the segments there are, and then follows the events, as NCCL's do."""

    def __init__(self, events: list[tuple[int, int, int, int]]) -> None:
        events += cuda_probe.take_events()
        self._events = events
        self._seen = len(events)
        self.registered = KnownMemory(segments())

    def is_up_to_date(self) -> bool:
        self._events += cuda_probe.take_events()
        for action, device, address, size in self._events[self._seen :]:
            if device != 0:
                continue
            if action in (cuda_probe.SEGMENT_ALLOC, cuda_probe.SEGMENT_MAP):
                self.registered.add(address, size)
            elif action in (cuda_probe.SEGMENT_FREE, cuda_probe.SEGMENT_UNMAP):
                self.registered.remove(address, size)
        self._seen = len(self._events)
        return joined(self.registered.ranges) == joined(segments())


@pytest.mark.parametrize("keep_addresses", [True, False])
def test_trackers_learn_when_a_pool_comes_and_goes(
    events: list[tuple[int, int, int, int]], keep_addresses: bool
) -> None:
    trainer = Trainer(rows=48)
    plan = trainer.plan()
    before = Communicator(events)
    stalloc.enable(plan, model=trainer.model, keep_addresses=keep_addresses)
    assert before.is_up_to_date()
    pool = pool_address(plan)
    assert before.registered.ranges[pool] == plan.pool
    after = Communicator(events)

    def both_are_up_to_date() -> bool:
        return before.is_up_to_date() and after.is_up_to_date()

    for _ in range(2):
        trainer.step()
    assert both_are_up_to_date()
    stalloc.release_pool()
    assert both_are_up_to_date()
    assert not overlaps(after.registered.ranges, pool, plan.pool)
    stalloc.acquire_pool()
    assert both_are_up_to_date()
    pool = pool_address(plan)
    assert after.registered.ranges[pool] == plan.pool
    y = planned_tensor(trainer)
    stalloc.disable()
    assert both_are_up_to_date()
    kept = segment_of(y)["total_size"]
    assert kept < plan.pool if keep_addresses else kept == plan.pool, "a tensor lies in it"
    del y
    gc.collect()
    assert both_are_up_to_date()
    assert not overlaps(after.registered.ranges, pool, plan.pool)


def test_trackers_learn_of_blocks_of_exact_profiles(
    events: list[tuple[int, int, int, int]],
) -> None:
    with stalloc.profile(device="cuda"):
        cuda_probe.take_events()
        x = torch.empty(7 * MIB, dtype=torch.uint8, device="cuda")
        address, size = x.data_ptr(), x.nbytes
        del x
        events += cuda_probe.take_events()
    assert [(a, p, n) for a, _, p, n in events if p == address] == [
        (cuda_probe.SEGMENT_ALLOC, address, size),
        (cuda_probe.ALLOC, address, size),
        (cuda_probe.FREE_REQUESTED, address, size),
        (cuda_probe.FREE_COMPLETED, address, size),
        (cuda_probe.SEGMENT_FREE, address, size),
    ]


NCCL_BEFORE = """
import os, tempfile, torch, stalloc
os.environ["TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"] = "1"
from training_cuda import Trainer
def train():
    trainer = Trainer(rows=48)
    plan = trainer.plan()
    stalloc.enable(plan, model=trainer.model)
    trainer.step()
    return plan.pool in {s["total_size"] for s in torch.cuda.memory_snapshot()}
def initialise():
    torch.distributed.init_process_group(
        "gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
"""


def test_snapshots_hide_pools_from_trackers_that_stalloc_does_not_know() -> None:
    """They would register a pool with NCCL and not learn when it goes."""
    result = run_alone(NCCL_BEFORE + "initialise()\nassert not train()\n")
    assert result.returncode == 0, result.stderr
    result = run_alone(NCCL_BEFORE + "assert train()\ninitialise()\n")
    assert result.returncode == 0, result.stderr


SIZES_FOLLOW_THE_BATCH = """
import torch, stalloc, standin
from training_cuda import Trainer
def batches(trainer):
    for rows in (32, 48, 40): trainer.step(rows)
trainer = Trainer(rows=48)
with stalloc.profile(trainer.model) as prof:
    batches(trainer)
plan = prof.plan()
def reservations(**options):
    stalloc.enable(plan, model=trainer.model, **options)
    batches(trainer)
    return standin.reservations()
"""


@pytest.mark.parametrize("graphs", ["", "0"])
def test_nccl_registers_no_graph_whose_tensors_may_move(graphs: str) -> None:
    result = run_alone(
        SIZES_FOLLOW_THE_BATCH
        + f"""
import os
os.environ["NCCL_GRAPH_REGISTER"] = "{graphs}"
assert reservations(keep_addresses=False) == 0
assert os.environ["NCCL_GRAPH_REGISTER"] == "{graphs}", "nothing moves"
assert reservations() > 0
assert os.environ["NCCL_GRAPH_REGISTER"] == "0"
"""
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "asked", ["TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "NCCL_GRAPH_REGISTER"]
)
def test_pools_that_nccl_registers_are_plain_memory(asked: str) -> None:
    """It registers a piece by a handle, which CUDA has for plain memory only."""
    result = run_alone(SIZES_FOLLOW_THE_BATCH + "assert reservations() > 0\n")
    assert result.returncode == 0, result.stderr
    result = run_alone(
        SIZES_FOLLOW_THE_BATCH
        + f"""
import os
from stalloc.session import current_session
os.environ["{asked}"] = "1"
assert reservations() == 0
try:
    reservations(keep_addresses=True)
except stalloc.StallocError as e:
    assert "NCCL cannot register" in str(e), e
else:
    raise AssertionError("it has to be refused")
assert current_session() is not None, "the plan before stays in force"
"""
    )
    assert result.returncode == 0, result.stderr


def test_a_private_pool_that_torch_refuses_changes_nothing() -> None:
    trainer = Trainer(rows=48)
    plan, address = planned(trainer)
    pool = torch.cuda.MemPool()
    cuda_probe.begin_pool(pool.id)
    with pytest.raises(RuntimeError, match="already recording"):
        cuda_probe.begin_pool(pool.id)
    y = planned_tensor(trainer)
    assert not address <= y.data_ptr() < address + plan.pool
    cuda_probe.end_pool(pool.id)
    torch._C._cuda_releasePool(0, pool.id)
    del y
    for _ in range(2):
        trainer.step()
    y = planned_tensor(trainer)
    assert address <= y.data_ptr() < address + plan.pool
    del y, pool


def traces(address: int) -> list[dict[str, Any]]:
    return [
        e for e in torch.cuda.memory._snapshot()["device_traces"][0] if e.get("addr") == address
    ]


def remember(**options: Any) -> None:
    torch.cuda.memory._record_memory_history(**options)


def forget() -> None:
    torch.cuda.memory._record_memory_history(enabled=None)


@pytest.fixture(autouse=True)
def _no_history() -> Iterator[None]:
    yield
    forget()


def named_here(entry: dict[str, Any]) -> bool:
    return any(f["filename"] == __file__ for f in entry["frames"])


def test_memory_history_sees_planned_requests() -> None:
    trainer = Trainer(rows=48)
    plan, begin = planned(trainer)
    remember(stacks="python")
    y = planned_tensor(trainer)
    address, size = y.data_ptr(), y.nbytes
    assert begin <= address < begin + plan.pool
    block = next(b for b in segment_of(y)["blocks"] if b["address"] == address)
    assert named_here(block)
    torch.cuda.memory._annotate_tensor(y[2:], "kept for the test")
    foreign = torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
    del y
    entries = traces(address)[-4:]
    assert [e["action"] for e in entries] == [
        "alloc",
        "annotate",
        "free_requested",
        "free_completed",
    ]
    assert all(e["size"] == size and named_here(e) for e in entries)
    assert entries[1]["user_metadata"] == "kept for the test"
    assert traces(foreign.data_ptr()), "torch's own entries are there, too"
    both = torch.cuda.memory._snapshot()["device_traces"][0]
    times = [e["time_us"] for e in both]
    assert times == sorted(times)
    viewer = torch.cuda._memory_viz.trace_plot(torch.cuda.memory._snapshot())
    assert "Active Memory Timeline" in viewer
    forget()
    assert not traces(address)
    del foreign


def test_memory_history_keeps_as_many_entries_as_asked_for() -> None:
    trainer = Trainer(rows=48)
    _, begin = planned(trainer)
    remember(stacks="python", max_entries=7, context="state", skip_actions=["free_requested"])
    for _ in range(3):
        foreign = torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
        y = planned_tensor(trainer)
        address = y.data_ptr()
        del y, foreign
    entries = torch.cuda.memory._snapshot()["device_traces"][0]
    assert len(entries) == 7
    assert [e["action"] for e in entries if e["addr"] == address][-1] == "free_completed"
    assert "free_requested" not in {e["action"] for e in entries}
    assert begin > 0
    forget()


def test_memory_history_that_began_before_stalloc_goes_on() -> None:
    remember(stacks="python")
    try:
        with stalloc.profile(device="cuda"):
            x = torch.empty(7 * MIB, dtype=torch.uint8, device="cuda")
            address = x.data_ptr()
            del x
        entries = [e for e in traces(address) if e["size"] == 7 * MIB]  # others lay there before
        assert [e["action"] for e in entries] == [
            "segment_alloc",
            "alloc",
            "free_requested",
            "free_completed",
            "segment_free",
        ]
        assert named_here(entries[1])
    finally:
        forget()


def test_a_free_is_complete_in_the_history_when_streams_are_done() -> None:
    side = torch.cuda.ExternalStream(standin.new_stream())
    trainer = Trainer(rows=48)
    planned(trainer)
    standin.set_manual(True)
    side = torch.cuda.ExternalStream(standin.new_stream())
    remember(stacks="python")
    y = planned_tensor(trainer)
    address = y.data_ptr()
    standin.use(side.cuda_stream, address, y.nbytes, 1)
    y.record_stream(side)
    del y
    assert [e["action"] for e in traces(address)][-1] == "free_requested"
    standin.drain_all()
    planned_tensor(trainer)
    assert [e["action"] for e in traces(address)].count("free_completed") >= 1
    forget()


def test_an_open_pool_keeps_no_block_of_other_streams() -> None:
    trainer = Trainer(rows=48)
    planned(trainer)
    standin.set_manual(True)
    side = torch.cuda.ExternalStream(standin.new_stream())
    y = planned_tensor(trainer)
    address = y.data_ptr()
    pool = torch.cuda.MemPool()
    cuda_probe.begin_pool(pool.id)
    standin.use(side.cuda_stream, address, y.nbytes, 1)
    y.record_stream(side)
    events = standin.calls("cudaEventRecord")
    del y
    assert standin.calls("cudaEventRecord") == events + 1
    standin.drain_all()
    cuda_probe.end_pool(pool.id)
    torch._C._cuda_releasePool(0, pool.id)
    del pool
    for _ in range(2):
        trainer.step()
    assert stalloc.memory_stats()["strays"] == 0


def test_a_pool_that_comes_back_keeps_to_the_share() -> None:
    trainer = Trainer()
    torch.cuda.set_per_process_memory_fraction(0.5)
    plan, _ = planned(trainer)
    stalloc.release_pool()
    left = 40 * GIB - torch.cuda.memory_reserved()
    held = torch.empty(left - plan.pool // 2, dtype=torch.uint8, device="cuda")
    with pytest.raises(stalloc.OutOfMemory, match="cannot be reserved"):
        stalloc.acquire_pool()
    assert standin.used() <= 40 * GIB
    del held
    stalloc.acquire_pool()
    with pytest.raises(torch.OutOfMemoryError), stalloc.hooks.unplanned():
        torch.empty(40 * GIB, dtype=torch.uint8, device="cuda")
    assert standin.used() <= 40 * GIB
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_accumulated_statistics_are_never_negative() -> None:
    trainer = Trainer(rows=48)
    planned(trainer)
    y = planned_tensor(trainer)
    torch.cuda.reset_accumulated_memory_stats()
    before = torch.cuda.memory_stats()
    assert before["allocated_bytes.all.freed"] == before["allocated_bytes.all.allocated"] == 0
    del y
    after = torch.cuda.memory_stats()
    assert after["allocated_bytes.all.freed"] >= trainer.rows * trainer.width * 4
    stalloc.disable()
    torch.cuda.reset_accumulated_memory_stats()
    with stalloc.profile(device="cuda"):
        x = torch.empty(MIB, dtype=torch.uint8, device="cuda")
        del x
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"] == MIB


_shortages: list[tuple[int, ...]] = []


def test_a_request_that_the_pool_serves_is_no_shortage() -> None:
    trainer = Trainer(rows=9216)
    plan, begin = planned(trainer)
    assert plan.pool >= 3 * GIB, "so much that a segment of torch's is tolerated beside it"
    torch._C._cuda_attach_out_of_memory_observer(lambda *a: _shortages.append(a))
    torch.cuda.empty_cache()
    remember(stacks="python")
    ooms = torch.cuda.memory_stats()["num_ooms"]
    standin.set_memory(0, standin.used())
    _core.runtime("cuda:0").drain(True)  # the pool is the last resort for such requests
    with stalloc.hooks.unplanned():
        # For more, idle memory of the pool would give way.
        held = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
    assert begin <= held.data_ptr() < begin + plan.pool
    stats = torch.cuda.memory_stats()
    assert (stats["num_ooms"], _shortages) == (ooms, [])
    actions = [e["action"] for e in torch.cuda.memory._snapshot()["device_traces"][0]]
    assert "alloc" in actions
    assert "oom" not in actions
    with pytest.raises(torch.OutOfMemoryError), stalloc.hooks.unplanned():
        torch.empty(4 * GIB, dtype=torch.uint8, device="cuda")
    assert len(_shortages) == 1
    assert torch.cuda.memory_stats()["num_ooms"] == ooms + 1
    assert "oom" in {e["action"] for e in torch.cuda.memory._snapshot()["device_traces"][0]}
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["num_ooms"] == 0
    del held


def test_a_request_larger_than_the_pool_gets_its_memory_as_a_last_resort() -> None:
    trainer = Trainer()
    plan, begin = planned(trainer)
    torch.cuda.empty_cache()
    standin.set_manual(True)
    side = torch.cuda.ExternalStream(standin.new_stream())
    y = planned_tensor(trainer)
    standin.use(side.cuda_stream, y.data_ptr(), y.nbytes, 1)
    y.record_stream(side)
    del y  # a stream lags, so the pool does not give way at first
    standin.set_memory(0, standin.used() + 32 * MIB)
    ooms = torch.cuda.memory_stats()["num_ooms"]
    with stalloc.hooks.unplanned():
        held = torch.empty(plan.pool + 4 * MIB, dtype=torch.uint8, device="cuda")
    assert not begin <= held.data_ptr() < begin + plan.pool
    assert stalloc.memory_stats()["pool"] < plan.pool
    assert torch.cuda.memory_stats()["num_ooms"] == ooms
    with pytest.raises(torch.OutOfMemoryError), stalloc.hooks.unplanned():
        torch.empty(plan.pool + 4 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_stats()["num_ooms"] == ooms + 1
    del held
    torch.cuda.empty_cache()
    for _ in range(2):
        trainer.step()
    assert stalloc.memory_stats()["pool"] >= plan.pool


def test_nothing_is_planned_while_torch_does_not_cache() -> None:
    trainer = Trainer(rows=48)
    plan, begin = planned(trainer)
    torch.cuda.caching_allocator_enable(False)
    try:
        y = planned_tensor(trainer)
        assert not begin <= y.data_ptr() < begin + plan.pool
        del y
    finally:
        torch.cuda.caching_allocator_enable(True)
    for _ in range(2):
        trainer.step()
    y = planned_tensor(trainer)
    assert begin <= y.data_ptr() < begin + plan.pool
    del y


def test_the_variable_that_turns_torchs_cache_off_turns_planning_off() -> None:
    result = run_alone(
        """
import os, torch, stalloc
os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
from training_cuda import Trainer
trainer = Trainer(rows=48)
plan = trainer.plan()
stalloc.enable(plan, model=trainer.model)
for _ in range(3): trainer.step()
assert stalloc.memory_stats()["hits"] == 0
y = trainer.model(torch.empty(trainer.rows, trainer.width, device="cuda"))
assert stalloc.memory_stats()["live_blocks"] == 0
"""
    )
    assert result.returncode == 0, result.stderr


def test_a_pool_opened_before_stalloc_came_is_respected() -> None:
    result = run_alone(
        """
import torch, stalloc
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    with stalloc.profile(device="cuda", exact=True) as prof:
        x = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
    inside = [s for s in torch.cuda.memory_snapshot() if s["segment_pool_id"] == pool.id]
    assert any(s["address"] <= x.data_ptr() < s["address"] + s["total_size"] for s in inside)
    del x
with stalloc.profile(device="cuda", exact=True):
    x = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
    inside = [s for s in torch.cuda.memory_snapshot() if s["segment_pool_id"] == pool.id]
    assert not any(s["address"] <= x.data_ptr() < s["address"] + s["total_size"] for s in inside)
"""
    )
    assert result.returncode == 0, result.stderr


def test_a_foreign_pluggable_allocator_is_refused_clearly() -> None:
    result = run_alone(
        """
import torch, stalloc
from stalloc import _compat
allocator = torch.cuda.memory.CUDAPluggableAllocator(
    str(_compat._LIBRARY), "stalloc_malloc", "stalloc_free")
torch.cuda.memory.change_current_allocator(allocator)
try:
    with stalloc.profile(device="cuda"): pass
except stalloc.StallocError as e:
    assert "pluggable" in str(e) and "install_compat" in str(e), e
else:
    raise AssertionError("it has to be refused")
"""
    )
    assert result.returncode == 0, result.stderr


def test_symmetric_memory_is_torchs_own() -> None:
    """Under a plan and in an exact profile, as itself and as a MemPool."""
    result = run_alone(
        """
import torch, cuda_probe, stalloc
from torch.distributed import _symmetric_memory as symmetric
from training_cuda import Trainer
def check():
    before = stalloc.memory_stats("cuda")["requests"]
    x = symmetric.empty(1 << 20, dtype=torch.uint8, device="cuda:0")
    with torch.cuda.use_mem_pool(symmetric.get_mem_pool(torch.device("cuda:0"))):
        y = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    assert stalloc.memory_stats("cuda")["requests"] == before
    ours = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == (0, 0)]
    for p in (x.data_ptr(), y.data_ptr()):
        assert not any(s["address"] <= p < s["address"] + s["total_size"] for s in ours)
with stalloc.profile(device="cuda"):
    check()
trainer = Trainer(rows=48)
plan = trainer.plan()
stalloc.enable(plan, model=trainer.model)
for _ in range(4): trainer.step()
check()
"""
    )
    assert result.returncode == 0, result.stderr


def test_blocks_are_not_placed_by_address_in_a_pool() -> None:
    trainer = Trainer(rows=48)
    _, begin = planned(trainer)
    with pytest.raises(RuntimeError, match="lies in memory that stalloc has planned"):
        cuda_probe.allocate_with_address(MIB, begin)


RAW_DEALLOCATE = """
import gc, torch, cuda_probe, stalloc
from training_cuda import Trainer
def capture():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    return graph, kept
def planned_block(trainer, plan):
    before = torch.cuda.memory_allocated()
    p = cuda_probe.raw_allocate(1 << 20)
    pool, = [s for s in torch.cuda.memory_snapshot() if s["total_size"] == plan.pool]
    assert pool["address"] <= p < pool["address"] + plan.pool
    assert torch.cuda.memory_allocated() == before + (1 << 20)
    return p
def serve():
    trainer = Trainer(rows=48)
    plan = trainer.plan()
    stalloc.enable(plan, model=trainer.model)
    for _ in range(4): trainer.step()
    return trainer, plan
"""


def test_raw_deallocate_frees_planned_blocks() -> None:
    result = run_alone(
        RAW_DEALLOCATE
        + """
trainer, plan = serve()
live = torch.cuda.memory_allocated()
cuda_probe.raw_deallocate(planned_block(trainer, plan))
assert torch.cuda.memory_allocated() == live
with stalloc.hooks.unplanned():
    theirs = cuda_probe.raw_allocate(300 << 20)
cuda_probe.raw_deallocate(theirs)
assert torch.cuda.memory_allocated() == live
graph, kept = capture()
assert torch._C._has_Standard_Deleter(kept.untyped_storage()._cdata)
del graph, kept, trainer
gc.collect()
stalloc.disable()
live = torch.cuda.memory_allocated()
cuda_probe.raw_deallocate(cuda_probe.raw_allocate(1 << 20))
assert torch.cuda.memory_allocated() == live
"""
    )
    assert result.returncode == 0, result.stderr


def test_graphs_from_before_stalloc_keep_the_deleter_of_their_blocks() -> None:
    """torch's graph trees compare it. So a planned block is freed by raw_delete alone there."""
    result = run_alone(
        RAW_DEALLOCATE
        + """
graph, kept = capture()
trainer, plan = serve()
assert torch._C._has_Standard_Deleter(kept.untyped_storage()._cdata)
other, kept_too = capture()
assert torch._C._has_Standard_Deleter(kept_too.untyped_storage()._cdata)
live = torch.cuda.memory_allocated()
p = planned_block(trainer, plan)
try:
    cuda_probe.raw_deallocate(p)
except RuntimeError as e:
    assert "invalid device pointer" in str(e)
else:
    raise AssertionError("it has to be refused")
assert torch.cuda.memory_allocated() == live + (1 << 20), "nothing has changed"
cuda_probe.raw_delete(p)
assert torch.cuda.memory_allocated() == live
"""
    )
    assert result.returncode == 0, result.stderr
