"""`stalloc fits`: threads of the script, each of which finds the pretended GPU."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from isolation import isolated
from processes import python
from torch import nn

import stalloc


def training(build: Any) -> Any:
    model = build()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(torch.zeros(4, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def loaded_by_threads() -> nn.Module:
    """Weights that several threads bring to the GPU, as Transformers loads them."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
    weights = {name: torch.ones(p.shape) for name, p in model.named_parameters()}
    with ThreadPoolExecutor(4) as threads:
        moved = {name: threads.submit(w.to, device="cuda") for name, w in weights.items()}
    model.load_state_dict({name: w.result() for name, w in moved.items()}, assign=True)
    return model


@isolated
def test_weights_that_threads_load_are_those_of_one_thread() -> None:
    def loaded_by_one() -> nn.Module:
        return nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))).cuda()

    threads = stalloc.estimate(lambda: training(loaded_by_threads), gpu="8GiB", plan=False)
    one = stalloc.estimate(lambda: training(loaded_by_one), gpu="8GiB", plan=False)
    assert threads.parts == one.parts
    assert threads.reserved == one.reserved


@isolated
def test_threads_compute_at_the_same_time() -> None:
    def build() -> Any:
        model = nn.Linear(64, 64).cuda()
        seen: list[str] = []

        def work() -> None:
            for _ in range(50):
                y = model(torch.zeros(4, 64, device="cuda"))
                seen.append(f"{y.device} {(y + 1).square().sum().device}")

        def step() -> None:
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            model(torch.zeros(4, 64, device="cuda")).sum().backward()
            assert len(seen) == 200
            assert set(seen) == {"cuda:0 cuda:0"}
            seen.clear()

        return step

    stalloc.estimate(build, gpu="8GiB", plan=False)


def test_a_thread_that_goes_on_after_the_end_shows_no_error(tmp_path: Any) -> None:
    (tmp_path / "train.py").write_text("""
import threading, torch

def feed():
    while True:
        batches.append(torch.zeros(4, 64, device="cuda"))
        asked.wait()
        asked.clear()

batches, asked = [], threading.Event()
threading.Thread(target=feed, daemon=True).start()
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters())
while True:
    asked.set()
    model(torch.zeros(4, 64, device="cuda")).sum().backward()
    optimizer.step()
""")
    done = python("-m", "stalloc", "fits", "--gpu", "8GiB", "train.py", cwd=tmp_path)
    assert "fits on 8GiB" in done.stdout
    assert "Traceback" not in done.stderr
