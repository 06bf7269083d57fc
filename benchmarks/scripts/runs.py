"""Runs a script in a process of its own, in a fresh copy of its repository."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from scripts.catalogue import Script
from scripts.data import make
from scripts.figures import Row, Run

WAYS = {
    "cpu": ("torch", "first", "second"),
    "gpu": ("torch", "expandable", "first", "second"),
}
"""The runs of a script on each machine; first and second are those of `stalloc run`."""

_PROBE = Path(__file__).resolve().parent / "probe"
_UNUSED = shutil.ignore_patterns(".git", "*.gif", "tests", "__pycache__")


def measure(script: Script, sources: Path, machine: str, work: Path, timeout: int) -> Row:
    """The figures of a script under each allocator.

    Args:
        script: The script.
        sources: The folder of the checkouts.
        machine: cpu or gpu.
        work: A folder for copies and data.
        timeout: Seconds that a run may take.
    """
    cache = work / "cache" / script.name
    shutil.rmtree(cache, ignore_errors=True)
    row: Row = {"script": script.name, "commit": commit_of(sources / script.checkout), "runs": {}}
    for way in WAYS[machine]:
        row["runs"][way] = _run(script, sources, machine, way, work, cache, timeout)
    return row


def commit_of(checkout: Path) -> str:
    """The commit of a checkout."""
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip()[:12] or "unknown"


def _run(
    script: Script,
    sources: Path,
    machine: str,
    way: str,
    work: Path,
    cache: Path,
    timeout: int,
) -> Run:
    copy, found = fresh_copy(script, sources, machine, work), work / "found"
    found /= f"{script.name}.{machine}.{way}"
    shutil.rmtree(found, ignore_errors=True)
    found.mkdir(parents=True)
    environment = environment_of(script, copy, work, probe=_PROBE)
    environment["STALLOC_CACHE"] = str(cache) if way in ("first", "second") else "0"
    environment["SCRIPTS_PROBE"] = str(found)
    environment["SCRIPTS_DIGEST" if machine == "cpu" else "SCRIPTS_PRETENDED"] = "1"
    environment["STANDIN_DEVICES"] = str(script.processes)  # of the pretended kind
    if way == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    command = _command(script, machine, way, copy)
    log = work / f"{script.name}.{machine}.{way}.log"
    begun = time.monotonic()
    code = call(command, copy / script.folder, environment, log, timeout)
    run = _collected(script, found)
    run["seconds"] = round(time.monotonic() - begun, 1)
    if machine == "cpu":
        run["saved"] = digest_of_saved(copy)
    if code != 0:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        run["error"] = f"exit code {code}: {lines[-1] if lines else ''}"
    return run


def fresh_copy(script: Script, sources: Path, machine: str, work: Path) -> Path:
    """A copy of the script's repository, with its data."""
    copy = work / "copy" / script.name
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(sources / script.checkout, copy, ignore=_UNUSED, symlinks=True)
    make(script.data, copy, machine, work / "data")
    return copy


def environment_of(
    script: Script, copy: Path, work: Path, *, probe: Path | None = None
) -> dict[str, str]:
    """The variables of a script without a network, on one core."""
    paths = [] if probe is None else [str(probe)]
    paths += [str(copy / path) for path in script.paths]
    return {
        **os.environ,
        "STALLOC_CACHE": "0",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(work / "huggingface"),
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        **script.environment,
    }


def call(
    command: list[str], folder: Path, environment: dict[str, str], log: Path, timeout: int
) -> int:
    """Runs a command, and ends it and its children once it takes too long."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _command(script: Script, machine: str, way: str, copy: Path) -> list[str]:
    command = [sys.executable]
    if script.processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={script.processes}"]
    if way in ("first", "second"):
        command += ["-m", "stalloc", "run"]
    return [*command, str(copy / script.path), *script.arguments(machine)]


def _collected(script: Script, found: Path) -> Run:
    """The figures of all processes; of several ranks, the largest of each kind."""
    figures = [json.loads(path.read_text()) for path in found.iterdir()]
    if script.processes > 1:
        figures = [each for each in figures if each["rank"] is not None]
    else:  # a script may start others, which train nothing
        figures.sort(key=lambda each: ("status" in each, each["steps"], each.get("load", 0)))
        figures = figures[-1:]
    if not figures:
        return {}
    figures.sort(key=lambda each: int(each["rank"] or 0))
    run: Run = {
        "torch": figures[0]["torch"],
        "steps": figures[0]["steps"],
        "digest": " ".join(each["digest"] for each in figures),
    }
    for name in ("load", "reserved", "device"):
        if name in figures[0]:
            run[name] = max(each[name] for each in figures)
    if "status" in figures[0]:
        run["status"] = [each["status"] for each in figures]
        run["stats"] = [each["stats"] for each in figures]
    return run


def digest_of_saved(folder: Path) -> str:
    """A digest of the tensors in all files that torch or safetensors has saved in a folder.

    It does not depend on the folders' names, which some scripts take from the time.
    """
    return hashlib.blake2b(b"".join(sorted(_digests(folder))), digest_size=16).hexdigest()


def _digests(folder: Path) -> Iterator[bytes]:
    """That of each file, with its name."""
    for path in folder.rglob("*"):
        digest = hashlib.blake2b(path.name.encode(), digest_size=16)
        if path.suffix in (".safetensors", ".distcp"):
            digest.update(path.read_bytes())
        elif path.suffix in (".pt", ".pth", ".ckpt") and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for name in sorted(archive.namelist()):
                    if "/data/" in name:  # the bytes of a storage
                        digest.update(archive.read(name))
        else:
            continue
        yield digest.digest()
