"""The package itself: what it exports, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import stalloc


def test_everything_that_is_promised_is_there() -> None:
    for name in stalloc.__all__:
        assert getattr(stalloc, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = stalloc.nonsense


def test_the_command_line_does_without_torch() -> None:
    code = "import sys, stalloc.cli; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
