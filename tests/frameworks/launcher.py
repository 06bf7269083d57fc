"""Runs a script on several ranks under torchrun, as users do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SECONDS = 240  # after which a job counts as hanging


def torchrun(ranks: int, script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The job, ended; what all ranks said is in its stderr."""
    shared = Path(__file__).parent
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(shared), str(shared.parent / "python")]),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr"]
    command += ["127.0.0.1", "--nproc-per-node", str(ranks), str(script), *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
