"""Runs of workloads in native mode on the pretended GPU, a process for each way of use.

Unlike the other rows, these are no replays of a trace: the workload's program runs, torch calls its
own allocator or stalloc's pool for it, and stalloc sees the calls of modules and the backward pass
as in training. So the figures have what a change costs in the middle of a run: the segments that
torch keeps, the memory of both before the one has replaced the other, the workspaces of cuBLAS.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from configs import Config
from real import STANDIN, Unavailable

from paper import figures
from paper.native_run import Way
from paper.recording import PROFILED, UNSEEN

ROOT = Path(__file__).resolve().parents[2]
ITERATIONS = 1 + PROFILED + UNSEEN
"""Of each run: a warm-up, as many as the plan is made of, and some more."""
_EXPANDABLE = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
_CUDA = "13"  # the major version of the stand-ins for libraries
_SOURCES = ("native.py", "native_run.py")


@dataclass(frozen=True)
class Use:
    """A way to use an allocator.

    Attributes:
        name: In the report.
        way: The calls of stalloc.
        expandable: torch's segments are expandable from the start of the process.
    """

    name: str
    way: Way
    expandable: bool = False


TORCH = Use("torch", Way.TORCH)
EXPANDABLE = Use("ES", Way.TORCH, expandable=True)
WHOLE = Use("whole process", Way.WHOLE)
AUTO = Use("`auto`", Way.AUTO)
USES = (
    TORCH,
    EXPANDABLE,
    WHOLE,
    Use("`enable` after the warm-up", Way.MIDDLE),
    Use("the same, ES before", Way.MIDDLE, expandable=True),
    Use("profile, then `enable`", Way.PROFILED),
    AUTO,
    Use("`auto`, second run", Way.AUTO),
)
"""In the order of the report. The second run of `auto` finds the plan that the first one left."""
STREAM_USES = (TORCH, EXPANDABLE, WHOLE, AUTO)
"""The ways that are compared on several streams."""


@dataclass(frozen=True)
class UseRow:
    """One run.

    Attributes:
        workload: Its name on the command line of `benchmarks/workloads`.
        use: The way of use.
        load: The most bytes live at once, as asked.
        reserved: The most bytes taken of the device. Both over the whole run.
        requests: Of the last iteration.
        in_force: The first iteration under a plan, 0 for the warm-up; None: there is none.
        served: Share of the requests under the plan that were served at their place.
        by: The version of torch.
        is_automatic: `stalloc.auto` chose the moment.
        commit: The commit at which it was measured.
    """

    workload: str
    use: str
    load: int
    reserved: int
    requests: int
    in_force: int | None
    served: float | None
    by: str
    is_automatic: bool = False
    commit: str = ""


@dataclass(frozen=True)
class Native:
    """An environment with a CUDA build of torch and stalloc in native mode.

    Attributes:
        python: Its interpreter.
        version: The version of torch.
        library: stalloc's library there.
    """

    python: Path
    version: str
    library: Path


def find_native(environment: Path) -> Native:
    """The environment, if it can run native mode.

    Raises:
        Unavailable: It cannot.
    """
    python = environment.absolute() / "bin" / "python"
    if not python.exists():
        raise Unavailable(f"no {python}; `make test-cuda` makes it")
    code = (
        "import torch; from stalloc import _core; from stalloc._torch_modules import cuda_module;"
        "cuda_module(); print(torch.__version__, _core.__file__)"
    )
    done = subprocess.run(
        [python, "-c", code], env=_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:]
        raise Unavailable(f"{environment} has no stalloc for its torch: {' '.join(last)}")
    version, core = done.stdout.split()
    return Native(python, version, Path(core).with_name("libstalloc.so"))


def measure(config: Config, native: Native, uses: Sequence[Use], kept: Path) -> list[UseRow]:
    """The rows of one workload, from the files in `kept` where nothing has changed."""
    kept.mkdir(parents=True, exist_ok=True)
    file = kept / f"{config.name}.{_key(config, native, uses)}.json"
    if not file.exists():
        with tempfile.TemporaryDirectory() as folder:
            rows = _measured(config, native, uses, Path(folder))
        file.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return [UseRow(**row) for row in json.loads(file.read_text())]


def _measured(config: Config, native: Native, uses: Sequence[Use], folder: Path) -> list[UseRow]:
    plan = folder / "plan.json"
    _run(config, native, Use("", Way.PROFILE), plan, folder)
    rows = []
    for use in uses:
        seen = _run(config, native, use, plan, folder)
        automatic = use.way is Way.AUTO
        rows.append(
            UseRow(config.name, use.name, by=native.version, is_automatic=automatic, **seen)
        )
    return rows


def _run(config: Config, native: Native, use: Use, plan: Path, folder: Path) -> dict[str, Any]:
    program = Path(__file__).with_name("native_run.py")
    iterations = 1 + PROFILED if use.way is Way.PROFILE else ITERATIONS
    arguments = [config.name, use.way.value, "--iterations", str(iterations), "--plan", plan]
    environment = _environment(memory=figures.capacity(config)) | {
        "STANDIN_MANUAL": str(int(config.behind and use.way is not Way.PROFILE)),
        "STALLOC_CACHE": str(folder / "cache") if use.way is Way.AUTO else "0",
        **(_EXPANDABLE if use.expandable else {}),
    }
    done = subprocess.run(
        [native.python, program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{config.name}, {use.name}: {done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _environment(memory: int = 0) -> dict[str, str]:
    """As scripts/test_cuda.sh sets it: the stand-ins in the place of CUDA's libraries."""
    standin = STANDIN / _CUDA
    preloaded = [standin / f"libcudart.so.{_CUDA}", standin / "libstandin_cublas.so"]
    return {
        **{name: value for name, value in os.environ.items() if "ALLOC_CONF" not in name},
        "PYTHONPATH": str(ROOT / "build" / "cuda"),
        "LD_PRELOAD": ":".join(map(str, preloaded)),
        "LD_LIBRARY_PATH": str(standin),
        "STANDIN_MEMORY": str(memory),
        "OMP_WAIT_POLICY": "passive",
    }


def _key(config: Config, native: Native, uses: Sequence[Use]) -> str:
    """Sources of the rows: the configuration, our code, and torch's version."""
    digest = hashlib.sha256(f"{config!r} {native.version} {uses!r}".encode())
    workloads = sorted((ROOT / "benchmarks" / "workloads").glob("*.py"))
    package = sorted((ROOT / "stalloc").rglob("*.py"))
    here = [Path(__file__).with_name(name) for name in _SOURCES]
    standin = STANDIN / _CUDA / f"libcudart.so.{_CUDA}"
    for source in (native.library, standin, *here, *workloads, *package):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]
