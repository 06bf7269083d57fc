"""The smoke test of the wheel, on the package that is installed here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SMOKE = Path(__file__).resolve().parent.parent / "wheel" / "smoke_cuda.py"


@pytest.mark.parametrize("mode", ["native", "compat"])
def test_the_smoke_test_passes(mode: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(SMOKE), mode],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
