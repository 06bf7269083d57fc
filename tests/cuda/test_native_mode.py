from __future__ import annotations

import gc
import threading

import pytest
import standin
import torch
from alone import run_alone
from known_requests import check_recording
from training_cuda import Trainer

import stalloc
from stalloc import _core
from stalloc._torch_modules import cuda_module

MIB = 1 << 20
GIB = 1 << 30


def pool_segment(plan: stalloc.Plan) -> tuple[int, int]:
    """The addresses at which the plan's pool begins and ends."""
    segments = [s for s in torch.cuda.memory_snapshot() if s["total_size"] == plan.pool]
    assert len(segments) == 1
    return segments[0]["address"], segments[0]["address"] + plan.pool


def is_in(tensor: torch.Tensor, segment: tuple[int, int]) -> bool:
    return segment[0] <= tensor.data_ptr() < segment[1]


def test_training_is_served_from_the_plan() -> None:
    trainer = Trainer()
    plan = trainer.plan()
    assert plan.info["device"] == "cuda"
    assert plan.gap < 0.05
    stalloc.enable(plan, model=trainer.model)
    for _ in range(5):
        trainer.step()
    settled = stalloc.memory_stats()
    calls = standin.calls("cudaMalloc")
    for _ in range(3):
        trainer.step()
    stats = stalloc.memory_stats()
    assert stats["hits"] - settled["hits"] == 3 * stats["planned"]
    assert stats["misses"] == settled["misses"]
    assert stats["conflicts"] == 0
    assert standin.calls("cudaMalloc") == calls
    assert "device cuda:0, plan enabled" in stalloc.memory_summary()


def test_exact_profiles_bypass_the_cache_and_record_the_same() -> None:
    trainer = Trainer(rows=16)
    trainer.step()
    before = standin.calls("cudaMalloc")
    exact = trainer.plan()
    assert standin.calls("cudaMalloc") - before > 100, "a piece of its own for each request"
    before = standin.calls("cudaMalloc")
    cached = trainer.plan(exact=False)
    assert standin.calls("cudaMalloc") - before < 50
    assert (exact.load, exact.period) == (cached.load, cached.period)
    assert len(exact.decisions) == len(cached.decisions)


@pytest.mark.parametrize("exact", [True, False])
def test_a_recording_has_the_requests_that_were_made(exact: bool) -> None:
    check_recording(exact=exact)


def test_exact_profiles_fit_where_the_cache_does_not() -> None:
    standin.set_memory(0, 512 * MIB)
    cached = [torch.empty(6 * MIB, dtype=torch.uint8, device="cuda") for _ in range(24)]
    del cached[::2]  # torch's segments of 20 MiB are full of holes now
    with stalloc.profile(device="cuda") as prof:
        for _ in range(2):
            kept = [torch.empty(100 * MIB, dtype=torch.uint8, device="cuda") for _ in range(2)]
            assert torch.cuda.memory_allocated() >= 200 * MIB + 12 * 6 * MIB
            del kept
            prof.step()
        with pytest.raises(torch.OutOfMemoryError, match=r"600.0 MiB on cuda:0.*while profiling"):
            torch.empty(600 * MIB, dtype=torch.uint8, device="cuda")


def test_tensors_stay_valid_when_a_plan_comes_and_goes() -> None:
    trainer = Trainer()
    plan = trainer.plan()
    old = torch.empty(3 * MIB, device="cuda")
    stalloc.enable(plan, model=trainer.model)
    for _ in range(4):
        trainer.step()
    segment = pool_segment(plan)
    output = trainer.model(torch.empty(trainer.rows, trainer.width, device="cuda"))
    assert is_in(output, segment)
    fallback = torch.empty(5 * MIB, device="cuda")
    assert not is_in(fallback, segment)
    pool = stalloc.memory_stats("cuda")["pool"]  # what was idle may have given way
    stalloc.disable()
    assert not cuda_module().uninstall(), "blocks are left that only stalloc can free"
    fresh = torch.empty(5, device="cuda")
    fresh.record_stream(torch.cuda.Stream())
    trainer.step()
    del old, fallback, fresh
    used = standin.used()
    del output
    gc.collect()
    assert standin.used() <= used - pool < used, "the pool goes back with its last block"
    trainer.optimizer.state.clear()
    trainer.optimizer.zero_grad()
    gc.collect()
    assert cuda_module().uninstall()
    trainer.step()


def test_statistics_of_torch_include_the_pool() -> None:
    trainer = Trainer()
    plan = trainer.plan()
    stalloc.enable(plan, model=trainer.model)
    for _ in range(4):
        trainer.step()
    reserved, allocated = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    assert reserved >= plan.pool
    segment = pool_segment(plan)
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == allocated
    x = torch.empty(trainer.rows, trainer.width, device="cuda")
    y = trainer.model(x)
    assert is_in(y, segment)
    stats = torch.cuda.memory_stats()
    grown = stats["allocated_bytes.all.current"] - allocated
    assert grown >= 6 * x.nbytes
    assert stats["requested_bytes.all.current"] <= stats["allocated_bytes.all.current"]
    assert stats["active_bytes.all.current"] == stats["allocated_bytes.all.current"]
    assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated()
    assert torch.cuda.memory_reserved() == torch.accelerator.memory_reserved()
    assert torch.cuda.memory_allocated() == torch.accelerator.memory_allocated()
    assert "Allocated memory" in torch.cuda.memory_summary()
    peak = torch.cuda.max_memory_allocated()
    del x, y
    assert torch.cuda.memory_allocated() == allocated
    assert torch.cuda.max_memory_allocated() == peak
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0
    trainer.step()
    stats = torch.cuda.memory_stats()
    balance = stats["allocation.all.allocated"] - stats["allocation.all.freed"]
    assert balance == 0
    assert stats["allocation.all.allocated"] >= stalloc.memory_stats()["planned"]
    free, total = torch.cuda.mem_get_info()
    assert total - free == standin.used()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < reserved + 1
    ours = stalloc.memory_stats()
    assert ours["allocated"] == torch.cuda.memory_stats()["requested_bytes.all.current"]
    assert ours["reserved"] == torch.cuda.memory_reserved()
    stalloc.reset_peak_memory_stats()
    assert stalloc.memory_stats()["peak_allocated"] == ours["allocated"]
    assert stalloc.empty_cache() == 0


def test_accelerators_functions_know_the_pool_too() -> None:
    trainer = Trainer(rows=32)
    planned_pair(trainer)
    cuda, accelerator = torch.cuda, torch.accelerator
    assert accelerator.memory_stats().items() <= cuda.memory_stats().items()
    assert accelerator.max_memory_allocated() == cuda.max_memory_allocated()
    assert accelerator.max_memory_reserved() == cuda.max_memory_reserved()
    accelerator.reset_peak_memory_stats()
    assert accelerator.max_memory_allocated() == cuda.memory_allocated()
    accelerator.reset_accumulated_memory_stats()
    assert cuda.memory_stats()["allocation.all.allocated"] == 0
    assert accelerator.get_memory_info() == cuda.mem_get_info()
    accelerator.empty_cache()
    # The driver maps whole chunks of virtual memory.
    assert cuda.memory_reserved() <= standin.used() < cuda.memory_reserved() + standin.CHUNK


def test_a_share_of_the_memory_is_kept_to_the_pool_included() -> None:
    trainer = Trainer()
    torch.cuda.set_per_process_memory_fraction(0.5)
    plan, _ = planned_pair(trainer)
    assert torch.cuda.get_per_process_memory_fraction() == 0.5
    with stalloc.hooks.unplanned():
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(40 * GIB, dtype=torch.uint8, device="cuda")
        fits = torch.empty(39 * GIB, dtype=torch.uint8, device="cuda")
    stalloc.disable()
    other = torch.empty(GIB - plan.pool, dtype=torch.uint8, device="cuda")
    with pytest.raises(stalloc.OutOfMemory, match="cannot be reserved"):
        stalloc.enable(plan, model=trainer.model)
    assert standin.used() <= 40 * GIB
    del fits, other
    torch.cuda.set_per_process_memory_fraction(1.0)
    trainer.step()


def test_tensors_of_plain_pools_can_be_shared_between_processes() -> None:
    trainer = Trainer(rows=32)
    plan, segment = planned_pair(trainer, keep_addresses=False)
    y = trainer.model(torch.empty(trainer.rows, trainer.width, device="cuda")).detach()
    assert is_in(y, segment)
    handle = y.untyped_storage()._share_cuda_()
    whole = int.from_bytes(handle[1][-64:-56], "little")  # what the stand-in puts into handles
    assert (whole, whole + handle[3]) == (segment[0], y.data_ptr())
    outside = torch.empty(3 * plan.pool, dtype=torch.uint8, device="cuda")
    handle = outside.untyped_storage()._share_cuda_()
    assert int.from_bytes(handle[1][-64:-56], "little") + handle[3] == outside.data_ptr()


def test_peaks_of_the_whole_are_exact() -> None:
    trainer = Trainer()
    plan = trainer.plan()
    stalloc.enable(plan, model=trainer.model)
    for _ in range(4):
        trainer.step()
    torch.cuda.reset_peak_memory_stats()
    extra = torch.empty(64 * MIB, device="cuda")
    highest = 0

    def watch(module: object, args: object, output: object) -> None:
        nonlocal highest
        highest = max(highest, torch.cuda.memory_allocated())

    hooks = [block.register_forward_hook(watch) for block in trainer.model.blocks]
    for _ in range(2):
        trainer.step()
    for hook in hooks:
        hook.remove()
    assert torch.cuda.max_memory_allocated() >= highest
    assert torch.cuda.max_memory_allocated() <= highest + 8 * trainer.rows * trainer.width * 4
    peak = torch.cuda.max_memory_allocated()
    del extra
    trainer.step()
    assert torch.cuda.max_memory_allocated() == peak


def test_snapshots_show_the_pool_and_its_blocks() -> None:
    trainer = Trainer()
    plan = trainer.plan()
    stalloc.enable(plan, model=trainer.model)
    for _ in range(4):
        trainer.step()
    y = trainer.model(torch.empty(trainer.rows, trainer.width, device="cuda"))
    begin, end = pool_segment(plan)
    segment = next(s for s in torch.cuda.memory_snapshot() if s["address"] == begin)
    at = begin
    for block in segment["blocks"]:
        assert block["address"] == at
        at += block["size"]
    assert at == end
    live = {b["address"]: b for b in segment["blocks"] if b["state"] == "active_allocated"}
    assert live[y.data_ptr()]["requested_size"] == y.nbytes
    assert segment["allocated_size"] == sum(b["size"] for b in live.values())


def planned_pair(
    trainer: Trainer, *, keep_addresses: bool | None = None
) -> tuple[stalloc.Plan, tuple[int, int]]:
    plan = trainer.plan()
    stalloc.enable(plan, model=trainer.model, keep_addresses=keep_addresses)
    for _ in range(4):
        trainer.step()
    return plan, pool_segment(plan)


def test_torchs_profiler_sees_served_requests() -> None:
    """Bytes that operators took and gave back, with and without a plan."""
    trainer = Trainer()

    def seen() -> tuple[int, int]:
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
        ) as profiler:
            trainer.step()
        usage = [event.self_device_memory_usage for event in profiler.key_averages()]
        return sum(n for n in usage if n > 0), sum(n for n in usage if n < 0)

    plan = trainer.plan()
    expected = seen()
    stalloc.enable(plan, model=trainer.model)
    for _ in range(4):
        trainer.step()
    hits = stalloc.memory_stats()["hits"]
    taken, given_back = seen()
    assert (taken, given_back) == expected
    assert stalloc.memory_stats()["hits"] - hits == len(plan.decisions)
    assert expected[0] > plan.pool // 2


def test_recorded_tensors_keep_their_place_until_streams_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STALLOC_HAND_BACK", "0")
    side = torch.cuda.ExternalStream(standin.new_stream())
    trainer = Trainer()
    _, segment = planned_pair(trainer)
    standin.set_manual(True)
    x = torch.empty(trainer.rows, trainer.width, device="cuda")
    y = trainer.model(x).detach()
    assert is_in(y, segment)
    address, size = y.data_ptr(), y.nbytes
    standin.use(0, address, size, 1)
    side.wait_stream(torch.cuda.current_stream())
    standin.use(side.cuda_stream, address, size, 1)
    y.record_stream(side)
    before = torch.cuda.memory_stats()
    waits = standin.host_waits()
    del y
    after = torch.cuda.memory_stats()
    assert before["allocated_bytes.all.current"] - after["allocated_bytes.all.current"] == size
    assert before["active_bytes.all.current"] == after["active_bytes.all.current"]
    del x
    taken = []
    for _ in range(3):
        x = torch.empty(trainer.rows, trainer.width, device="cuda")
        y = trainer.model(x).detach()
        taken.append(y.data_ptr())
        standin.use(0, y.data_ptr(), y.nbytes, 2)
        del x, y
        stalloc.step()
    assert address not in taken
    assert standin.host_waits() == waits, "the host waited for a stream"
    standin.drain_all()
    for _ in range(3):
        trainer.step()
    hits = stalloc.memory_stats()
    trainer.step()
    now = stalloc.memory_stats()
    assert now["hits"] - hits["hits"] == now["planned"]


def test_blocks_of_torch_are_recorded_too() -> None:
    side = torch.cuda.ExternalStream(standin.new_stream())
    trainer = Trainer()
    _, segment = planned_pair(trainer)
    standin.set_manual(True)
    with stalloc.hooks.unplanned():
        foreign = torch.empty(300 * MIB, device="cuda")
    assert not is_in(foreign, segment)
    address = foreign.data_ptr()
    standin.use(side.cuda_stream, address, foreign.nbytes, 1)
    foreign.record_stream(side)
    del foreign
    with stalloc.hooks.unplanned():
        other = torch.empty(300 * MIB, device="cuda")
        assert other.data_ptr() != address
        del other


def test_captures_keep_away_from_planned_addresses() -> None:
    trainer = Trainer()
    static = torch.empty(trainer.rows, trainer.width, device="cuda")
    _, segment = planned_pair(trainer)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        inner = static * 2
        output = trainer.model(inner)
        del inner
    assert not is_in(output, segment)
    graph.replay()
    for _ in range(3):
        trainer.step()
    settled = stalloc.memory_stats()
    graph.replay()
    trainer.step()
    stats = stalloc.memory_stats()
    assert stats["hits"] - settled["hits"] == stats["planned"]
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        assert not is_in(torch.empty(1000, device="cuda"), segment)
    stalloc.disable()
    graph.replay()
    del graph, output, static


def test_frees_during_a_capture_wait_for_its_end() -> None:
    trainer = Trainer()
    _, segment = planned_pair(trainer)
    side = torch.cuda.Stream()
    y = trainer.model(torch.empty(trainer.rows, trainer.width, device="cuda"))
    assert is_in(y, segment)
    y.record_stream(side)
    graph = torch.cuda.CUDAGraph()
    static = torch.empty(100, device="cuda")
    with torch.cuda.graph(graph):
        out = static * 2
        del y
    assert standin.misuses() == 0, standin.complaint()
    del graph, out


def test_out_of_memory_error_states_the_memory() -> None:
    trainer = Trainer()
    plan, _ = planned_pair(trainer)
    standin.set_memory(0, standin.used() + 64 * MIB)
    with pytest.raises(torch.OutOfMemoryError) as error, stalloc.hooks.unplanned():
        torch.empty(4 * GIB, dtype=torch.uint8, device="cuda")
    message = str(error.value)
    for part in (
        "CUDA out of memory",
        "stalloc tried to allocate 4.0 GiB on cuda:0",
        "largest hole",
    ):
        assert part in message
    assert _core.format_bytes(plan.pool) in message
    trainer.step()


def test_the_pools_idle_space_serves_when_memory_runs_out() -> None:
    trainer = Trainer()
    plan, segment = planned_pair(trainer)
    torch.cuda.empty_cache()
    standin.set_memory(0, standin.used())

    def from_another_thread() -> None:
        t = torch.empty(plan.pool // 2, dtype=torch.uint8, device="cuda")
        assert is_in(t, segment)

    thread = threading.Thread(target=from_another_thread)
    thread.start()
    thread.join()
    assert stalloc.memory_stats()["idle_requests"] == 1


def test_a_pool_that_does_not_fit_makes_torch_give_back_first() -> None:
    trainer = Trainer()
    plan = trainer.plan()
    cached = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    del cached
    standin.set_memory(0, standin.used() + plan.pool // 2)
    stalloc.enable(plan, model=trainer.model)
    trainer.step()
    stalloc.disable()
    standin.set_memory(0, standin.used() + 1)
    with pytest.raises(stalloc.OutOfMemory, match="cannot be reserved: the device \\(cuda:0\\)"):
        stalloc.enable(plan, model=trainer.model)
    standin.set_memory(0, 80 * GIB)
    trainer.step()


@pytest.mark.parametrize("keep_addresses", [None, False])
def test_a_released_pool_is_the_devices(keep_addresses: bool | None) -> None:
    trainer = Trainer()
    plan, _ = planned_pair(trainer, keep_addresses=keep_addresses)
    held = plan.pool if keep_addresses is False else -(-plan.pool // standin.CHUNK) * standin.CHUNK
    used = standin.used()
    stalloc.release_pool()
    assert standin.used() == used - held
    assert torch.cuda.memory_reserved() == used - held
    inference = torch.empty(2 * plan.pool, dtype=torch.uint8, device="cuda")
    del inference
    stalloc.acquire_pool()
    for _ in range(3):
        trainer.step()
    before = stalloc.memory_stats()
    trainer.step()
    after = stalloc.memory_stats()
    assert after["hits"] - before["hits"] == after["planned"]
    y = trainer.model(torch.empty(trainer.rows, trainer.width, device="cuda"))
    with pytest.raises(stalloc.StallocError, match="tensors lie in it"):
        stalloc.release_pool()
    del y


def test_devices_have_plans_of_their_own() -> None:
    first, second = Trainer("cuda:0"), Trainer("cuda:1")
    plan = second.plan()
    stalloc.enable(plan, model=second.model)
    for _ in range(5):
        second.step()
    stats = stalloc.memory_stats("cuda:1")
    assert stats["enabled"]
    assert stats["hits"] > 0
    assert not stalloc.memory_stats("cuda:0")["enabled"]
    before = stats["hits"]
    first.step()
    assert stalloc.memory_stats("cuda:1")["hits"] - before <= stats["planned"]
    assert torch.cuda.memory_reserved(1) >= plan.pool
    segment = next(s for s in torch.cuda.memory_snapshot() if s["total_size"] == plan.pool)
    assert segment["device"] == 1
    # A plan goes from one device to another.
    stalloc.enable(plan, model=first.model)
    assert not stalloc.memory_stats("cuda:1")["enabled"]
    first.step()
    assert stalloc.memory_stats()["enabled"]


def test_raw_allocations_go_the_same_way() -> None:
    trainer = Trainer()
    plan, segment = planned_pair(trainer)
    address = torch.cuda.caching_allocator_alloc(trainer.rows * trainer.width * 4)
    assert segment[0] <= address < segment[1]
    torch.cuda.caching_allocator_delete(address)
    address = torch.cuda.caching_allocator_alloc(3 * plan.pool)
    assert not segment[0] <= address < segment[1]
    torch.cuda.caching_allocator_delete(address)
    stalloc.disable()


def test_other_threads_free_their_last_blocks() -> None:
    trainer = Trainer()
    planned_pair(trainer)
    for _ in range(3):
        held = [trainer.model(torch.empty(trainer.rows, trainer.width, device="cuda"))]
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        stalloc.step()


@pytest.mark.parametrize("fraction", [1.0, 0.9])
def test_a_lost_device_is_an_error_and_no_crash(fraction: float) -> None:
    torch.cuda.set_per_process_memory_fraction(fraction)
    trainer = Trainer()
    planned_pair(trainer)
    y = trainer.model(torch.empty(trainer.rows, trainer.width, device="cuda"))
    y.record_stream(torch.cuda.Stream())
    standin.lose_device(700)
    del y
    with pytest.raises(RuntimeError):
        torch.cuda.synchronize()
    stalloc.disable()
    standin.lose_device(0)
    torch.cuda.set_per_process_memory_fraction(1.0)


PLANNED = """
import gc, os, torch, stalloc, standin
from stalloc import _core
from training_cuda import Trainer
trainer = Trainer()
stalloc.enable(trainer.plan(), model=trainer.model)
for _ in range(4): trainer.step()
held = trainer.model(torch.empty(trainer.rows, trainer.width, device="cuda"))
held.record_stream(torch.cuda.Stream())
"""


def test_tensors_alive_at_shutdown_do_no_harm() -> None:
    result = run_alone(PLANNED + "import builtins; builtins.held = held\n")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_forked_child_frees_inherited_blocks() -> None:
    result = run_alone(
        PLANNED
        + """
child = os.fork()
if child == 0:
    del held
    gc.collect()
    assert not _core.runtime("cuda:0").enabled
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
del held
trainer.step()
assert standin.misuses() == 0, standin.complaint()
"""
    )
    assert result.returncode == 0, result.stderr
