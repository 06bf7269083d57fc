"""The package itself: what it exports, and what importing it costs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize(
    "arguments", [["-c", "import stalloc; stalloc.plan"], ["-m", "stalloc", "plan", "x.json"]]
)
def test_sources_that_are_not_built_say_so(arguments: list[str], tmp_path: Path) -> None:
    package = Path(stalloc.__file__).parent
    shutil.copytree(package, tmp_path / "stalloc", ignore=shutil.ignore_patterns("*.so"))
    paths = [str(tmp_path), *filter(None, sys.path)]
    done = subprocess.run(
        [sys.executable, "-S", *arguments],  # without the finder of an editable installation
        capture_output=True,
        check=False,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert f"source code in {tmp_path}" in message
    assert "`pip install --no-build-isolation .`" in message
    assert ("Traceback" in done.stderr) == (arguments[0] == "-c")
