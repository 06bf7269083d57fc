"""Compat mode where torch serves no GPU: refused with a reason. With one: tests/cuda."""

from __future__ import annotations

import ctypes

import pytest
import torch
from trace_documents import to_trace, training_document

import stalloc
from stalloc import _compat


def test_without_a_gpu_build_of_torch_it_is_refused() -> None:
    with pytest.raises(stalloc.StallocError, match="built for none"):
        stalloc.install_compat()
    assert not _compat.installed()


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="mode is 'compat' or None, not 'fast'"):
        stalloc.enable("plan.json", mode="fast")


def test_enabling_chooses_the_mode_when_the_plan_fits() -> None:
    plan = to_trace(training_document()).plan()
    with pytest.raises(stalloc.StallocError, match="built for none"):
        stalloc.enable(plan, mode="compat")
    plan.info = {**plan.info, "torch": "1.0"}
    with pytest.raises(stalloc.PlanError, match="profiled under torch"):
        stalloc.enable(plan, mode="compat")


def test_the_library_has_every_function_that_torch_takes() -> None:
    library = ctypes.CDLL(str(_compat._LIBRARY))
    for name in ("stalloc_malloc", "stalloc_free", *_compat._HOOKS.values()):
        assert hasattr(library, name)


def test_torchs_statistics_stay_torchs() -> None:
    assert torch.cuda.memory_allocated() == 0
