"""Installs a wheel beside several versions of torch, each in an environment of its own.

No compiler is there, and pip takes wheels only. A small plan is made and served: on the CPU with
real values, and with a CUDA build of torch also on the pretended GPU, in native and compat mode. A
CUDA build is a download of several gigabytes; each environment is deleted afterwards.

Usage: python scripts/test_wheels.py WHEEL FOLDER-OF-THE-STAND-IN TORCH...
for example: python scripts/test_wheels.py dist/stalloc-*.whl build/cpp/standin/13 torch==2.14.1
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "wheels" / "installed"
SMOKE = ROOT / "tests" / "wheel"
ABOUT = "import torch; print(torch.__version__, torch.version.cuda or 'CPU')"


def main() -> int:
    """Tries the wheel beside each torch; returns the exit status."""
    wheel, standin, *torches = sys.argv[1:]
    if not torches or not Path(wheel).is_file():
        print(__doc__, file=sys.stderr)
        return 2
    failures = 0
    for torch in torches:
        problem = try_beside(torch, Path(wheel).resolve(), Path(standin).resolve())
        if problem:
            failures += 1
            print(f"{torch}: {problem}", file=sys.stderr)
    print(f"{len(torches) - failures} passed, {failures} failed")
    return int(failures > 0)


def try_beside(torch: str, wheel: Path, standin: Path) -> str:
    """Installs `torch`, then the wheel, and runs both; returns the problem, if there is one."""
    shutil.rmtree(WORK, ignore_errors=True)
    venv.create(WORK, symlinks=True, with_pip=False)
    python = WORK / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check"]
    install = [*pip, "--python", str(python), "install", "--only-binary", ":all:"]
    environment = {**os.environ, "CC": "/bin/false", "CXX": "/bin/false"}
    try:
        run([*install, torch], environment)
        begin = time.monotonic()
        run([*install, str(wheel)], environment)
        seconds = time.monotonic() - begin
        version, cuda = run([str(python), "-c", ABOUT], environment).split()
        smoke = [str(python), "-I"]
        run([*smoke, "-W", "error", str(SMOKE / "smoke.py")], environment)
        modes = ["cpu"]
        if cuda != "CPU":
            environment |= {
                "LD_PRELOAD": str(standin / "libcudart.so.13"),
                "LD_LIBRARY_PATH": str(standin),
                "STANDIN_DEVICES": "1",
            }
            for mode in ("native", "compat"):
                run([*smoke, str(SMOKE / "smoke_cuda.py"), mode], environment)
                modes.append(mode)
    except subprocess.CalledProcessError as e:
        return f"{' '.join(e.cmd)} failed:\n{e.stdout}{e.stderr}"
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    print(f"torch {version}, {cuda}: installed in {seconds:.0f} s, serves {', '.join(modes)}")
    return ""


def run(command: list[str], environment: dict[str, str]) -> str:
    """Runs a command, which must succeed; returns its output."""
    return subprocess.run(
        command, cwd=ROOT / "build", env=environment, capture_output=True, text=True, check=True
    ).stdout


if __name__ == "__main__":
    sys.exit(main())
