"""Both modes, with a CUDA build of torch on the pretended GPU: `make test-cuda`."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import standin
import torch

import stalloc
from stalloc import _core
from stalloc._torch_modules import cuda_module

# Shared with the other tests and the benchmarks.
sys.path.append(str(Path(__file__).parent.parent / "python"))
sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "cuda"))

# No plan of another test or of the developer's own runs.
os.environ["STALLOC_CACHE"] = "0"

GIB = 1 << 30


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker("cuda_build")


@pytest.fixture(autouse=True)
def _gpu() -> Iterator[None]:
    """Ends with nothing live, nothing wrong, and torch's allocator in its place."""
    assert torch.cuda.is_available(), "the stand-in is not preloaded"
    before = standin.hazards(), standin.misuses()
    yield
    standin.lose_device(0)
    standin.set_manual(False)
    stalloc.disable()
    gc.collect()
    standin.drain_all()
    torch.cuda.synchronize()
    for name in _core.runtimes():
        _core.runtime(name).check()
    cuda_module().uninstall()
    torch.cuda.empty_cache()
    standin.set_memory(0, 80 * GIB)
    assert (standin.hazards(), standin.misuses()) == before, standin.complaint()
    assert standin.last_error() == 0, "an error is left behind, for the next kernel to be blamed"
