from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import torch
from phase_sinks import RecordingSink

# No plan of another test or of the developer's own runs; those that test the cache name a folder.
os.environ["STALLOC_CACHE"] = "0"


def pytest_configure() -> None:
    # A shell's background jobs ignore Ctrl-C, and so would the commands under test.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def sink() -> Iterator[RecordingSink]:
    """A sink that must have heard nothing wrong, and have nothing open, when the test is over."""
    sink = RecordingSink()
    yield sink
    sink.check()
