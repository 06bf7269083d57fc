"""Compat mode under a CUDA build of torch: real tensors' memory, on the pretended GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import standin
import torch
import training
from isolation import isolated, run_isolated
from known_requests import check_recording
from training_cuda import Trainer

import stalloc
from stalloc import _compat

MIB = 1 << 20
GIB = 1 << 30


@isolated
def test_tensors_come_from_stalloc_and_torchs_figures_are_right() -> None:
    stalloc.install_compat()
    stalloc.install_compat()  # again is nothing
    a = torch.empty(1000, device="cuda")
    b = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.empty(0, device="cuda").data_ptr() == 0
    assert torch.cuda.memory_allocated() == 4096 + 3 * MIB
    assert torch.cuda.memory_reserved() == 22 * MIB == standin.used(0)
    del b
    assert torch.cuda.memory_allocated() == 4096
    assert torch.cuda.max_memory_allocated() == 4096 + 3 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 4096
    stats = torch.cuda.memory_stats()
    assert stats["requested_bytes.all.current"] == 4000
    assert stats["allocation.large_pool.allocated"] == 1
    assert stats["segment.small_pool.current"] == 1
    assert "from small pool" in torch.cuda.memory_summary()
    assert torch.accelerator.memory_allocated() == 4096
    free, total = torch.cuda.mem_get_info()
    assert (free, total) == (80 * GIB - 22 * MIB, 80 * GIB)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 2 * MIB == standin.used(0)
    assert a.data_ptr() > 0
    assert not standin.complaint()


@isolated
def test_idle_bytes_are_those_of_the_pool_too() -> None:
    stalloc.install_compat()
    trainer = Trainer(rows=4, width=1024)  # its blocks are small ones, for torch
    plan = trainer.plan()
    trainer.optimizer.zero_grad()
    stalloc.enable(plan, model=trainer.model)
    for _ in range(4):
        trainer.step()
    torch.cuda.empty_cache()
    held = [torch.empty(512, device="cuda") for _ in range(3)]
    y = trainer.model(torch.empty(trainer.rows, trainer.width, device="cuda"))
    stats = torch.cuda.memory_stats()
    idle = {
        k: stats[f"inactive_split_bytes.{k}.current"] for k in ("all", "small_pool", "large_pool")
    }
    assert idle["all"] == torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    assert idle["small_pool"] >= 0
    assert idle["small_pool"] + idle["large_pool"] == idle["all"]
    stalloc.disable()
    del held, y


@isolated
def test_snapshots_tile_their_segments() -> None:
    stalloc.install_compat()
    keep = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in (1, 700, 5 * MIB, 30 * MIB)]
    del keep[1]
    segments = torch.cuda.memory_snapshot()
    assert sum(s["total_size"] for s in segments) == torch.cuda.memory_reserved()
    assert sum(s["allocated_size"] for s in segments) == torch.cuda.memory_allocated()
    for segment in segments:
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]
    live = {b["address"] for s in segments for b in s["blocks"] if b["state"] != "inactive"}
    assert live == {t.data_ptr() for t in keep}


@isolated
def test_raises_torchs_out_of_memory_error() -> None:
    stalloc.install_compat()
    # The first words are those by which programs recognize that a batch was too large.
    with pytest.raises(
        torch.OutOfMemoryError,
        match=r"^CUDA out of memory\. stalloc tried to allocate 100\.0 GiB on cuda:0",
    ):
        torch.empty(100 * GIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_stats()["num_ooms"] == 1
    assert torch.cuda.max_memory_reserved() == 0, "nothing was held"
    assert torch.empty(GIB, dtype=torch.uint8, device="cuda").data_ptr() > 0


@isolated
def test_a_lost_device_is_an_error_and_no_crash() -> None:
    stalloc.install_compat()
    keep = torch.empty(1000, device="cuda")
    standin.lose_device(700)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        torch.empty(GIB, device="cuda")
    del keep
    standin.lose_device(0)


@isolated
def test_a_torch_that_stalloc_was_not_built_for_is_served() -> None:
    version, torch.__version__ = torch.__version__, "9.99.0"  # type: ignore[assignment]
    with pytest.warns(stalloc.StallocWarning, match=r"fits torch 9\.99\.0; they are for 2\."):
        stalloc.install_compat()
    trainer = Trainer(rows=32)
    plan = trainer.plan()
    stalloc.enable(plan, model=trainer.model)
    for _ in range(4):
        trainer.step()
    assert stalloc.memory_stats("cuda:0")["hit_rate"] > 0.5
    stalloc.disable()
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        torch.empty(100 * GIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(stalloc.StallocError, match=r"torch 9\.99\.0 is running"):
        stalloc.profile(device="cpu").__enter__()
    torch.__version__ = version  # type: ignore[assignment]
    assert not standin.complaint()


@isolated
def test_too_late_is_refused() -> None:
    torch.empty(1, device="cuda")
    with pytest.raises(stalloc.StallocError, match="before the GPU is first used"):
        stalloc.install_compat()
    assert torch.cuda.memory_allocated() == 0


@isolated
def test_a_share_of_the_memory_is_kept_to() -> None:
    stalloc.install_compat()
    torch.cuda.set_per_process_memory_fraction(0.5)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(50 * GIB, dtype=torch.uint8, device="cuda")
    assert torch.empty(30 * GIB, dtype=torch.uint8, device="cuda").data_ptr() > 0


@isolated
def test_answers_statistics_that_torch_cannot() -> None:
    stalloc.install_compat()
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    torch.cuda.set_per_process_memory_fraction(0.25)
    assert torch.cuda.get_per_process_memory_fraction() == 0.25
    x = torch.empty(1000, device="cuda")
    accelerator = torch.accelerator
    assert accelerator.memory_allocated() == accelerator.max_memory_allocated() == 4096
    assert accelerator.memory_stats() == torch.cuda.memory_stats()
    del x
    accelerator.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0
    assert stalloc.empty_cache("cuda:0") == 2 * MIB
    assert standin.used() == 0


@isolated
def test_exact_profiles_bypass_the_cache() -> None:
    stalloc.install_compat()
    model = training.Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    loads = []
    for exact in (True, False):
        _train(model, optimizer, 0)
        torch.cuda.empty_cache()
        before = standin.calls("cudaMalloc")
        with stalloc.profile(model, exact=exact) as profile:
            for step in range(2):
                _train(model, optimizer, step)
                profile.step()
        assert (standin.calls("cudaMalloc") - before > 200) == exact
        assert sum(s["total_size"] for s in torch.cuda.memory_snapshot()) == standin.used()
        assert torch.cuda.memory_reserved() == standin.used()
        loads.append(profile.plan(time_limit=1).load)
    assert loads[0] == loads[1]
    with stalloc.profile(model):
        side = torch.cuda.Stream()
        x = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
        x.record_stream(side)
        del x
        with pytest.raises(torch.OutOfMemoryError, match=r"90.0 GiB on cuda:0 while profiling"):
            torch.empty(90 * GIB, dtype=torch.uint8, device="cuda")
    assert not standin.complaint()


@pytest.mark.parametrize("exact", [True, False])
@isolated
def test_a_recording_has_the_requests_that_were_made(exact: bool) -> None:
    stalloc.install_compat()
    check_recording(exact=exact)


@isolated
def test_record_stream_delays_reuse() -> None:
    stalloc.install_compat()
    standin.set_manual(True)
    side = torch.cuda.Stream()
    x = torch.empty(1000, device="cuda")
    address = x.data_ptr()
    standin.use(side.cuda_stream, address, 4000, 1)
    x.record_stream(side)
    del x
    y = torch.empty(1000, device="cuda")
    assert y.data_ptr() != address
    standin.drain_all()
    z = torch.empty(1000, device="cuda")
    assert z.data_ptr() == address
    standin.use(0, address, 4000, 2)
    assert not standin.complaint()
    assert standin.host_waits() == 0


@isolated
def test_graphs_keep_their_memory() -> None:
    stalloc.install_compat()
    x = torch.empty(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 2 + 1) * 3
    inside = {
        (s["address"], s["total_size"])
        for s in torch.cuda.memory_snapshot()
        if tuple(s["segment_pool_id"]) != (0, 0)
    }
    assert inside
    outside = [torch.empty(1000, device="cuda") for _ in range(600)]
    for _ in range(3):
        graph.replay()
    for t in outside:
        assert not any(a <= t.data_ptr() < a + size for a, size in inside)
    assert any(a <= y.data_ptr() < a + size for a, size in inside)
    del outside, t, y, graph
    torch.cuda.empty_cache()
    assert all(tuple(s["segment_pool_id"]) == (0, 0) for s in torch.cuda.memory_snapshot()), (
        "the graph's memory goes with it"
    )
    assert not standin.complaint()


@isolated
def test_threads_and_streams_of_torchs_own() -> None:
    stalloc.install_compat()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for i in range(200):
                    t = torch.empty(1 + 977 * i, device="cuda")
                    t.record_stream(torch.cuda.default_stream())
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
    assert torch.cuda.memory_allocated() == 0
    assert not standin.complaint()


def _train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    for microbatch in range(2):
        training.loss_of(model, training.tokens(step, microbatch).cuda()).backward()
    optimizer.step()
    optimizer.zero_grad()


@isolated
def test_training_under_a_plan() -> None:
    stalloc.install_compat()
    model = training.Model(recompute=(None, "reentrant", "non-reentrant")).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    with stalloc.profile(model) as profile:
        for step in range(3):
            _train(model, optimizer, step)
            profile.step()
    plan = profile.plan(time_limit=1)
    assert plan.info["device"].startswith("cuda")
    stalloc.enable(plan, model=model)
    for step in range(8):
        _train(model, optimizer, step)
        stalloc.step()
    stats = stalloc.memory_stats(f"cuda:{torch.cuda.current_device()}")
    assert stats["iterations"] == 8
    assert stats["hit_rate"] > 0.5
    pool = [s for s in torch.cuda.memory_snapshot() if s["total_size"] == plan.pool]
    assert len(pool) == 1
    stalloc.disable()
    assert torch.cuda.memory_allocated() > 0
    del model, optimizer
    assert not standin.complaint()


def _profile_natively(path: Path) -> None:
    model = training.Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    with stalloc.profile(model) as profile:
        for step in range(3):
            _train(model, optimizer, step)
            profile.step()
    profile.plan(time_limit=1).save(path)


def _serve_in_compat_mode(path: Path) -> float:
    with pytest.raises(FileNotFoundError):
        stalloc.enable(path.with_name("no such plan"), mode="compat")
    assert not _compat.installed()
    session = stalloc.enable(path, mode="compat")
    assert _compat.installed()
    model = training.Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(8):
        _train(model, optimizer, step)
        stalloc.step()
    assert session.enabled
    assert not standin.complaint()
    stats = stalloc.memory_stats()
    assert stats["iterations"] == 8
    # The driver maps whole chunks of virtual memory.
    assert torch.cuda.memory_reserved() == stats["reserved"] <= standin.used()
    assert standin.used() < stats["reserved"] + standin.CHUNK
    return stats["hit_rate"]


def test_a_plan_from_native_mode_is_served(tmp_path: Path) -> None:
    run_isolated(_profile_natively, tmp_path / "plan.json")
    assert run_isolated(_serve_in_compat_mode, tmp_path / "plan.json") > 0.5


def _python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=tempfile.gettempdir(),  # the sources are not to be found before the package
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_two_devices() -> None:
    done = _python(
        "import torch, stalloc; stalloc.install_compat()\n"
        "a = torch.empty(1 << 20, device='cuda:0'); b = torch.empty(1 << 21, device='cuda:1')\n"
        "assert torch.cuda.memory_allocated(0) == 1 << 22, torch.cuda.memory_allocated(0)\n"
        "assert torch.cuda.memory_allocated(1) == 1 << 23\n"
        "c = a.to('cuda:1'); del a\n"
        "assert torch.cuda.memory_allocated(0) == 0\n"
        "assert torch.cuda.memory_allocated(1) == 12 << 20\n",
        STANDIN_DEVICES="2",
    )
    assert done.returncode == 0, done.stderr


def test_the_interpreter_ends_with_live_tensors() -> None:
    done = _python(
        "import torch, stalloc; stalloc.install_compat()\n"
        "class Late:\n"
        "    x = torch.empty(1000, device='cuda')\n"
        "torch.late = Late.x; y = torch.empty(5 << 20, device='cuda')\n"
        "y.record_stream(torch.cuda.Stream()); del y\n",
        STANDIN_MANUAL="1",
        STANDIN_VERBOSE="1",
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def test_a_forked_child_ends_in_peace() -> None:
    done = _python(
        "import os, torch, stalloc; stalloc.install_compat()\n"
        "x = torch.empty(1000, device='cuda')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        torch.empty(1000, device='cuda')\n"
        "    except RuntimeError as e:\n"
        "        assert 'fork' in str(e), e\n"
        "        del x\n"
        "        os._exit(7)\n"
        "    os._exit(1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
    )
    assert done.returncode == 0, done.stderr
