from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from phase_sinks import RecordingSink


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def sink() -> Iterator[RecordingSink]:
    """A sink that must have heard nothing wrong, and have nothing open, when the test is over."""
    sink = RecordingSink()
    yield sink
    sink.check()
