"""Builds the wheel, and runs it where nothing else of stalloc is.

The wheel goes into a virtual environment of its own, which takes torch and the other dependencies
from the environment this runs in, since copying them would cost a gigabyte. That the wheel stands
on its own is checked, not assumed: everything loaded of stalloc lies in the new environment, and
its libraries ask for nothing that a machine with torch need not have.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "wheel-test"

CONTENTS = (
    r"stalloc/__init__\.py",
    r"stalloc/py\.typed",
    r"stalloc/_core\.pyi",
    r"stalloc/report/assets/page\.html",
    r"stalloc/libstalloc\.so",
    r"stalloc/_core\..*\.so",
    r"stalloc/_torch_\d+_\d+\..*\.so",
    r"stalloc-.*\.dist-info/licenses/LICENSE",
)
# Every machine with Python and torch has these.
SYSTEM_LIBRARIES = re.compile(r"(lib(c|m|dl|pthread|rt|gcc_s|stdc\+\+)|ld-linux.*)\.so")
# Torch has these, with CUDA the last two, too. The wheel's libraries with these names link to them.
TORCH_LIBRARIES = re.compile(r"lib(c10|torch|torch_cpu|c10_cuda|torch_cuda)\.so")
LINKED_TO_TORCH = "_torch_"


def main() -> int:
    """Builds, checks and runs the wheel; returns the exit status."""
    shutil.rmtree(WORK, ignore_errors=True)
    python = make_environment()
    wheel = build_wheel()
    problems = [*check_refusal(python), *check_contents(wheel), *check_libraries(wheel)]
    for problem in problems:
        print(f"{wheel.name}: {problem}", file=sys.stderr)
    if problems:
        return 1
    install(wheel, python)
    commands: tuple[list[str], ...] = (
        # -I: neither this folder nor the environment's variables are seen.
        [str(python), "-I", "-W", "error", str(ROOT / "tests" / "wheel" / "smoke.py")],
        [str(python.parent / "stalloc"), "--help"],
    )
    for command in commands:
        run = subprocess.run(command, cwd=WORK, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            print(f"{' '.join(command)} failed:\n{run.stdout}{run.stderr}", file=sys.stderr)
            return 1
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, installs and runs")
    return 0


def make_environment() -> Path:
    """Makes a virtual environment with nothing in it; returns its Python."""
    environment = WORK / "env"
    venv.create(environment, symlinks=True, with_pip=False)
    return environment / "bin" / "python"


def check_refusal(python: Path) -> list[str]:
    """Checks that a build for `python`, which has no torch, says so plainly."""
    command = ["cmake", "-S", str(ROOT), "-B", str(WORK / "without-torch"), "-G", "Ninja"]
    command.append(f"-DPython_EXECUTABLE={python}")
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    said = " ".join(run.stderr.split())  # CMake breaks lines where it likes
    if run.returncode != 0 and f"{python} cannot import torch" in said:
        return []
    return [f"a build without torch does not say so: exit status {run.returncode}, {run.stderr}"]


def build_wheel() -> Path:
    """Builds the wheel against the torch of this environment."""
    # The same options as in build.sh, so that what is built already serves here too.
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(WORK)]
    command.append("--config-setting=cmake.define.STALLOC_WERROR=ON")
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"building the wheel failed:\n{run.stdout}{run.stderr}")
    (wheel,) = WORK.glob("*.whl")
    return wheel


def check_contents(wheel: Path) -> list[str]:
    """Names what the wheel lacks, and what it holds beside the package."""
    names = zipfile.ZipFile(wheel).namelist()
    problems = [
        f"holds no {wanted}"
        for wanted in CONTENTS
        if not any(re.fullmatch(wanted, name) for name in names)
    ]
    problems += [f"holds {n}" for n in names if not n.startswith(("stalloc/", "stalloc-"))]
    return problems


def check_libraries(wheel: Path) -> list[str]:
    """Names what the wheel's libraries need and neither the wheel, torch nor the system has."""
    unpacked = WORK / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    libraries = sorted((unpacked / "stalloc").glob("*.so*"))
    own = {library.name for library in libraries}
    problems = []
    for library in libraries:
        dynamic = subprocess.run(
            ["readelf", "--dynamic", "--wide", str(library)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
            if needed in own or SYSTEM_LIBRARIES.match(needed):
                continue
            if library.name.startswith(LINKED_TO_TORCH) and TORCH_LIBRARIES.match(needed):
                continue
            problems.append(f"{library.name} needs {needed}, which the wheel does not hold")
        problems += [
            f"{library.name} looks for libraries in {path}, which only this machine has"
            for path in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic)
            if path != "$ORIGIN"
        ]
    return problems


def install(wheel: Path, python: Path) -> None:
    """Installs the wheel into the environment of `python`, and lets that see the dependencies."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "-qq", "--no-deps", "--no-index", str(wheel)], check=True)
    here = Path(sysconfig.get_path("purelib"))
    # Searched after the environment's own folder; .pth files in there, such as that of an editable
    # stalloc, are not read.
    site = python.parent.parent / here.relative_to(sys.prefix)
    (site / "dependencies.pth").write_text(f"{here}\n")


if __name__ == "__main__":
    sys.exit(main())
