"""Training runs in processes of their own: what they came to, within what time."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from training import Run

Result = dict[str, Any]


def start(run: Run, seconds: float, *prefix: str, turns: float = 0) -> Result:
    """One run in a process of its own; "failed" says why it came to nothing.

    With `turns` it measures the time of a step, for about so many seconds.
    """
    options = [*prefix, sys.executable, str(Path(__file__).parent), "run"]
    options += ["--turns", str(turns)] if turns else []
    for key, value in dataclasses.asdict(run).items():
        if key == "losses" or value is False or value == "":
            continue
        options += [f"--{key}"] if value is True else [f"--{key}", str(value)]
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_ALLOC_CONF")}
    if run.deterministic:
        environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    if run.allocator == "expandable":
        environment["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    environment["STALLOC_CACHE"] = ""  # the first run of a program, under "auto"
    # In a group of its own (older Pythons know none), so that what the prefix has started ends with
    # it; but in our session, so that it ends with us.
    group: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {}
    process = subprocess.Popen(
        options,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **group,
    )
    try:
        output, errors = process.communicate(timeout=max(seconds, 0.1))
    except subprocess.TimeoutExpired:
        return {"failed": f"it was not done after {seconds:.0f} s"}
    finally:
        if process.poll() is None:
            if group:
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()
    if process.returncode == 0:
        # Not the last line of all: a tool may have something to say after it.
        for line in reversed(output.splitlines()):
            if line.startswith("{"):
                return dict(json.loads(line))
    print(f"{' '.join(options)} failed:\n{errors}{output}", file=sys.stderr, flush=True)
    said = [line for line in (errors or output).splitlines() if line.strip()]
    failed = said[-1] if said else f"exit code {process.returncode}"
    return {"failed": failed, "log": f"{errors}{output}"[-4000:]}


def planned(run: Run, seconds: float, *prefix: str) -> Result:
    """The same under stalloc, after a run that is profiled: each has so many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        plan = str(Path(folder) / "plan.json")
        profiled = start(dataclasses.replace(run, profile=plan), seconds)
        if "pool" not in profiled:
            return profiled
        return start(dataclasses.replace(run, plan=plan), seconds, *prefix)
