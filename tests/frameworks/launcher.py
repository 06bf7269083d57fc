"""Runs a job on several ranks: a script under torchrun, as users do, or, quicker, a function."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from isolation import run_isolated

SECONDS = 240  # after which a job counts as hanging


def torchrun(ranks: int, script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The job, ended; what all ranks said is in its stderr."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr"]
    command += ["127.0.0.1", "--nproc-per-node", str(ranks), str(script), *arguments]
    return _run(command)


def stalloc_run(option: str, plans: Path, script: Path, *arguments: str) -> None:
    """Runs the script on one rank by `stalloc run --profile` or `--plan`."""
    command = [sys.executable, "-m", "stalloc", "run", option, str(plans), str(script), *arguments]
    job = _run(command, RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=_free_port())
    assert job.returncode == 0, job.stderr


def _run(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    shared = Path(__file__).parent
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(shared), str(shared.parent / "python")]),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return subprocess.run(
        command,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def together(ranks: int, body: Callable[..., Any], *args: Any) -> list[Future[Any]]:
    """The result of `body(*args)` on each rank, in separate processes."""
    port = _free_port()
    pool = ThreadPoolExecutor(ranks)
    jobs = [
        pool.submit(run_isolated, _as_rank, rank, ranks, port, body, *args) for rank in range(ranks)
    ]
    _, hanging = wait(jobs, SECONDS)
    pool.shutdown(wait=False)
    assert not hanging, "a rank hangs"
    return jobs


def _as_rank(rank: int, ranks: int, port: str, body: Callable[..., Any], *args: Any) -> Any:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), GLOO_SOCKET_IFNAME="lo")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    try:
        return body(*args)
    finally:
        atexit._run_exitfuncs()  # which multiprocessing's processes do without
