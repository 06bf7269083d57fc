"""torch's own CUDA allocator, GMLake's, and stalloc's runtime, on a pretended device.

The programs are compiled here: `torch_replay` against a CUDA build of torch, `gmlake_replay` with
GMLake's source, `planned_replay` against the core of the package. All run with the stand-in for
CUDA's libraries in their place, so that no GPU is needed; the allocators never touch the memory
that they hand out.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stalloc import _core

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).parent
STANDIN = ROOT / "build" / "cpp" / "standin"
"""The folder in which `cmake --preset cpp` builds the stand-ins, by CUDA's major version."""

UNLIMITED = 1 << 42  # bytes of a device on which nothing runs out of memory


class Unavailable(Exception):
    """There is no CUDA build of torch, or nothing to build against it with."""


@dataclass(frozen=True)
class Torch:
    """A CUDA build of torch.

    Attributes:
        version: Such as "2.14.1+cu130".
        program: `torch_replay`, built against it.
        cuda: The major version of CUDA that it was built for.
    """

    version: str
    program: Path
    cuda: str


def build_torch(environment: Path, folder: Path) -> Torch:
    """Compiles `torch_replay` in `folder` against the CUDA build of torch in an environment.

    Args:
        environment: A virtual environment, or a folder of packages.
        folder: The folder of the program.

    Raises:
        Unavailable: There is no such torch in it, or its runtime library is missing.
    """
    found = [
        *environment.glob("torch/lib/libc10_cuda.so"),
        *environment.glob("lib/python3*/site-packages/torch/lib/libc10_cuda.so"),
    ]
    if not found:
        raise Unavailable(f"no CUDA build of torch in {environment}; `make test-cuda` installs one")
    libraries = found[0].parent
    packages = libraries.parents[1]
    runtime = sorted(packages.glob("nvidia/*/lib/libcudart.so.1?"))
    includes = [*packages.glob("nvidia/cu*/include"), Path("/usr/local/cuda/include")]
    includes = [path for path in includes if (path / "crt" / "host_defines.h").exists()]
    if not runtime or not includes:
        raise Unavailable(f"CUDA's runtime library or headers are missing in {packages}")
    program = folder / "torch_replay"
    _compile(
        program,
        SOURCES / "torch_replay.cpp",
        *(f"-isystem{libraries.parent / 'include'}", f"-isystem{includes[0]}"),
        *(f"-L{libraries}", "-lc10", "-lc10_cuda", str(runtime[-1]), "-ldl"),
        f"-Wl,-rpath,{libraries}",
    )
    version = (packages / "torch" / "version.py").read_text()
    named = next(line for line in version.splitlines() if line.startswith("__version__"))
    return Torch(named.split("'")[1], program, runtime[-1].suffix[1:])


@dataclass(frozen=True)
class GMLake:
    """GMLake's own allocator.

    Attributes:
        version: The commit of its repository.
        program: `gmlake_replay`, built of its source.
    """

    version: str
    program: Path


def build_gmlake(checkout: Path, packages: Path, folder: Path) -> GMLake:
    """Compiles `gmlake_replay` in `folder` of GMLake's own source.

    Args:
        checkout: A clone of intelligent-machine-learning/glake.
        packages: A folder with torch 2.0.1, as `pip install --no-deps --target` makes it: GMLake
            takes the place of a file of torch 2.0.
        folder: The folder of the program.

    Raises:
        Unavailable: One of the two is missing, or the stand-in has not been built.
    """
    source, header = checkout / "GMLake" / "src", checkout / "GMLake" / "include"
    libraries = packages / "torch" / "lib"
    if not source.is_dir():
        raise Unavailable(f"no GMLake in {checkout}; clone intelligent-machine-learning/glake")
    if not (libraries / "libc10.so").exists():
        raise Unavailable(f"no torch 2.0 in {packages}")
    if not STANDIN.exists():
        raise Unavailable(f"no stand-in for CUDA in {STANDIN}; `make test-cpp` builds it")
    # Its source includes the header by the name that it has in torch's tree.
    place = folder / "gmlake" / "c10" / "cuda"
    place.mkdir(parents=True, exist_ok=True)
    shutil.copy(header / "cuda_vmm_allocator.h", place)
    torch = packages / "torch" / "include"
    includes = [f"-I{folder / 'gmlake'}", f"-isystem{torch}", "-isystem/usr/local/cuda/include"]
    # As the wheel of torch 2.0 was built. GMLake calls CUDA 11, whose declarations are not these.
    flags = ["-O2", "-D_GLIBCXX_USE_CXX11_ABI=0", *includes]
    allocator, program = folder / "gmlake" / "allocator.o", folder / "gmlake_replay"
    own = ["c++", "-std=c++17", "-w", "-fpermissive", *flags, "-c"]
    subprocess.run([*own, str(source / "CUDACachingAllocator.cpp"), "-o", allocator], check=True)
    _compile(
        program,
        SOURCES / "gmlake_replay.cpp",
        *flags,
        str(allocator),
        *(f"-L{libraries}", "-lc10", f"-Wl,-rpath,{libraries}"),
        *(f"-L{STANDIN / '13'}", "-lcudart", "-lcuda", "-ldl", "-lpthread"),
    )
    head = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=False).stdout.strip()
    return GMLake(commit or "of unknown version", program)


def build_planned(folder: Path) -> Path:
    """Compiles `planned_replay` in `folder` against the core that is installed.

    Raises:
        Unavailable: The stand-in has not been built.
    """
    if not STANDIN.exists():
        raise Unavailable(f"no stand-in for CUDA in {STANDIN}; `make test-cpp` builds it")
    program = folder / "planned_replay"
    core = Path(_core.__file__ or "").parent
    _compile(
        program,
        SOURCES / "planned_replay.cpp",
        *(f"-I{ROOT / 'csrc'}", f"-L{core}", "-lstalloc", "-ldl", f"-Wl,-rpath,{core}"),
    )
    return program


def run(
    program: Path,
    *files: Path,
    policy: str = "",
    memory: int = UNLIMITED,
    standin: Path = STANDIN,
    cuda: str = "13",
) -> dict[str, Any]:
    """The output of a replay program.

    Args:
        program: The program.
        files: The program's arguments.
        policy: torch's PYTORCH_ALLOC_CONF.
        memory: Bytes of the pretended device.
        standin: The folder of stand-ins, by CUDA's major version.
        cuda: The major version of CUDA.

    Raises:
        RuntimeError: It failed.
    """
    folder = standin / cuda
    environment = {
        **os.environ,
        "PYTORCH_ALLOC_CONF": policy,
        "STANDIN_MEMORY": str(memory),
        "LD_PRELOAD": str(folder / f"libcudart.so.{cuda}"),
        "LD_LIBRARY_PATH": str(folder),
    }
    # Kept to itself unless it fails: torch warns that the stand-in lacks what links several GPUs.
    done = subprocess.run(
        [program, *files], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{program.name} failed: {done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _compile(program: Path, source: Path, *arguments: str) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    command = ["c++", "-std=c++20", "-O2", "-Wall", "-Wextra", str(source), "-o", str(program)]
    subprocess.run([*command, *arguments], check=True)
