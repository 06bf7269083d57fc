"""`stalloc fits --world`: the ways in which scripts start processes, and talk to each other."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fits_scripts import RANK
from isolation import isolated
from processes import python
from torch import nn

import stalloc
from stalloc.errors import StallocError

_distributed: Any = dist

STARTING = f"""{RANK}
import multiprocessing, os, sys

def write(name, folder):
    open(os.path.join(folder, name), "w").close()

def begin(rank, size):
    os.environ["MASTER_PORT"] = "29500"
    main(rank, size)

if __name__ == "__main__":
    way, folder = sys.argv[1:]
    size = torch.cuda.device_count()
    if way == "start_processes":
        mp.start_processes(begin, args=(size,), nprocs=size)
    else:
        module = mp if way == "torch" else multiprocessing.get_context("spawn")
        other = module.Process(target=write, args=("other", folder))
        other.start()
        other.join()
        ranks = [module.Process(target=begin, args=(rank, size)) for rank in range(size)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        assert [process.exitcode for process in ranks] == [0] * size
"""


@pytest.mark.parametrize("way", ["start_processes", "torch", "multiprocessing"])
def test_a_script_that_starts_processes_is_one_of_them(tmp_path: Path, way: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(STARTING)
    options = ("--gpu", "H100", "--world", "4", "--rank", "2")
    done = python("-m", "stalloc", "fits", *options, str(script), way, str(tmp_path))
    assert "3 iterations" in done.stdout
    assert (tmp_path / "other").exists() == (way != "start_processes")


def training(begin: Any, model: Any = None, x: Any = None) -> Any:
    def build() -> Any:
        _distributed.init_process_group("nccl")
        begin()
        trained = (model or (lambda: nn.Linear(64, 64)))().cuda()
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)

        def step() -> None:
            trained((x or (lambda: torch.zeros(4, 64, device="cuda")))()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return stalloc.estimate(build, world=4, rank=1, plan=False)


@isolated
def test_ranks_talk_by_stores_and_groups_on_the_host() -> None:
    seen: dict[str, Any] = {}

    def begin() -> None:
        seen["from"] = _distributed.recv(torch.zeros(4, device="cuda"))
        for name, store in {
            "default": _distributed.distributed_c10d._get_default_store(),
            "own": _distributed.TCPStore("localhost", 29511, 4, False),
        }.items():
            store.set(name, "value")
            store.wait(["another"], datetime.timedelta(seconds=1))
            seen[name] = (store.get(name), store.add(f"{name} ranks", 1))
        group = _distributed.new_group(backend="gloo")
        _distributed.monitored_barrier(group)
        seen["backends"] = (_distributed.get_backend(), _distributed.get_backend(group))

    training(begin)
    assert seen == {
        "from": 0,
        "default": (b"value", 4),
        "own": (b"value", 4),
        "backends": ("nccl", "gloo"),
    }


@isolated
def test_a_value_that_another_rank_sets_is_not_guessed() -> None:
    def begin() -> None:
        _distributed.distributed_c10d._get_default_store().get("address")

    with pytest.raises(StallocError, match=r"test_fits_processes.py:\d+: .*address'.*other rank"):
        training(begin)


@isolated
def test_batches_are_normalized_over_ranks() -> None:
    def layers() -> Any:
        return nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU())

    def images() -> Any:
        return torch.zeros(8, 3, 66, 66, device="cuda")

    def synchronized() -> Any:
        return nn.SyncBatchNorm.convert_sync_batchnorm(layers())

    alone, together = (training(lambda: None, make, images) for make in (layers, synchronized))
    assert alone.load <= together.load < 1.01 * alone.load


@isolated
def test_tensors_of_a_mesh_are_made_in_place() -> None:
    from torch.distributed import tensor as sharding
    from torch.distributed.device_mesh import init_device_mesh

    made: Any = sharding
    seen: list[Any] = []

    def begin() -> None:
        mesh = init_device_mesh("cuda", (4,))
        for make in (made.randn, made.rand, made.zeros, made.ones, made.empty):
            parts = make(64, 8, device_mesh=mesh, placements=[made.Shard(0)])
            seen.append((parts.shape, parts.to_local().shape, parts.to_local().device.type))

    training(begin)
    assert set(seen) == {((64, 8), (16, 8), "cuda")}


BACKWARDS = """
import torch
from torch import nn

model = nn.Linear(512, 512).cuda()
for _ in range(10):
    model(torch.zeros(4, 512, device="cuda")).sum().backward()
    model.zero_grad()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.zeros(4, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_backward_passes_before_training_are_no_iterations(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BACKWARDS)
    done = python("-m", "stalloc", "fits", "--gpu", "H100", str(script))
    assert "3 iterations" in done.stdout
    assert "optimizer states" in done.stdout
