"""Runs torch_memory_saver's own tests without stalloc and beside a plan, and compares them.

    make test-saver SAVER="--source DIR"

DIR is a checkout of github.com/fzyzcjy/torch_memory_saver, of the version that is installed: its
source distribution lacks the folder test/examples. Prints a table; the exit status is 0 if the same
tests pass in all states. The logs and all outcomes lie in build/saver; `--resume` keeps
the outcomes of an earlier run, and the table names its commit. DIFFERENT lists the tests that fail
in a state, each with the reason; the exit status is 1 if such a test passes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch

from saver.beside import BESIDE

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "build" / "saver"
STATES = {
    "without stalloc": "",
    "beside a plan": "plan",
    "beside a large plan": "large",
    "in a rollout": "rollout",
}
# Tests that fail in a state, and the reason, which the table gives.
MEASURES_USED_MEMORY = (
    "The test expects that a new tensor of 100 MB raises the used memory of its device by 80 MB. "
    "Between iterations stalloc gives more than 20 MB of its idle pool back for that tensor."
)
LIES_IN_POOL = (
    "The test's tensor is outside of a region, so it lies in the idle pool. torch_memory_saver "
    "does not pause that memory: the tensor keeps its values and has no copy on the host, which "
    "the test asks for."
)
_FAILS = {
    "test_multi_device[preload]": MEASURES_USED_MEMORY,
    "test_multi_device[torch]": MEASURES_USED_MEMORY,
    "test_cpu_backup_preload_backend_from_env": LIES_IN_POOL,
}
DIFFERENT = {
    (f"test_examples.py::{test}", "beside a large plan"): reason for test, reason in _FAILS.items()
}
OUTCOMES = LOGS / "outcomes.json"
NOT_OF_MEMORY = "test_merge_cuda_wheels.py"  # tests of the scripts that build the package


def search_path() -> str:
    """The folders of modules, for processes that run in another folder."""
    ours = [str(ROOT / folder) for folder in ("tests", "tests/python", "tests/cuda")]
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([*ours, *(str(Path(folder).absolute()) for folder in given if folder)])


def pytest_command(*arguments: str) -> list[str]:
    """A command that runs pytest with the plugin, and nothing of this repository's settings."""
    command = [sys.executable, "-m", "pytest", "-p", "saver.beside", "-p", "no:cacheprovider"]
    return [*command, "-c", os.devnull, *arguments]


def list_tests(folder: Path) -> list[str]:
    """The tests of a folder."""
    done = subprocess.run(
        pytest_command("--collect-only", "-q", "--rootdir", ".", "--ignore", NOT_OF_MEMORY, "."),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"test-saver: the tests cannot be listed: {done.stdout}{done.stderr}")
    return [line for line in done.stdout.splitlines() if "::" in line]


def run(folder: Path, test: str, state: str, timeout: float) -> str:
    """Runs a test: passed, skipped, failed or timeout."""
    name = re.sub(r"\W+", "_", f"{test} {state}")
    environment = os.environ | {BESIDE: STATES[state], "STANDIN_CONTENTS": "1"}
    environment["STALLOC_CACHE"] = "0"
    with (LOGS / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            pytest_command("-rA", "--rootdir", ".", "--capture=no", test),
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            return "timeout"
        finally:
            if process.poll() is None:  # the test's own processes, too
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if process.returncode != 0:
        return "failed"
    last = Path(log.name).read_text(errors="replace").strip().splitlines()[-1]
    return "passed" if "1 passed" in last else "skipped"


def table(outcomes: dict[str, dict[str, str]]) -> str:
    """The outcomes as Markdown."""
    commits = sorted({found["commit"] for found in outcomes.values()})
    lines = [f"# torch_memory_saver {version('torch_memory_saver')}: its own tests beside stalloc"]
    lines += ["", f"On the computing pretended GPU, with torch {torch.__version__}.", ""]
    lines += ["| test | " + " | ".join(STATES) + " |", "|---|" + "---|" * len(STATES)]
    for test, found in outcomes.items():
        lines.append(f"| `{test}` | " + " | ".join(found[state] for state in STATES) + " |")
    counts = [
        f"{sum(found[state] == 'passed' for found in outcomes.values())} pass" for state in STATES
    ]
    lines.append(f"| all {len(outcomes)} | " + " | ".join(counts) + " |")
    reasons: dict[str, list[str]] = {}
    for (test, state), reason in DIFFERENT.items():
        if outcomes.get(test, {}).get(state) == "failed":
            reasons.setdefault(reason, []).append(f"`{test}` fails {state}.")
    for reason, tests in reasons.items():
        lines += ["", *tests, reason]
    lines += ["", f"Of commit {', '.join(commits)}; {os.cpu_count()} processors."]
    return "\n".join([*lines, ""])


def has_expected(outcomes: dict[str, dict[str, str]]) -> bool:
    """Whether each test has the same outcome in all states, but for those that are listed."""
    for test, found in outcomes.items():
        if found["without stalloc"] == "skipped":
            continue
        for state in STATES:
            expected = "failed" if (test, state) in DIFFERENT else "passed"
            if found[state] != expected:
                return False
    return bool(outcomes)


def _commit() -> str:
    """The commit that runs; with a `+` if files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()


def main() -> int:
    """Runs, compares and prints."""
    parser = argparse.ArgumentParser(prog="saver", description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True, help="the checkout")
    parser.add_argument("--test", default="", help="only tests whose names contain this")
    parser.add_argument("--resume", action="store_true", help="run what has no outcome yet")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for a test")
    parser.add_argument("--output", type=Path, help="write the table to this file")
    args = parser.parse_args()
    LOGS.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = search_path()
    folder, commit = args.source.absolute() / "test", _commit()
    if not (folder / "examples").is_dir():
        raise SystemExit(f"test-saver: {folder / 'examples'} is missing: take a checkout")
    outcomes: dict[str, dict[str, str]] = {}
    if args.resume and OUTCOMES.exists():
        outcomes = json.loads(OUTCOMES.read_text())
    for test in list_tests(folder):
        if args.test not in test or test in outcomes:
            continue
        found = dict.fromkeys(STATES, "skipped") | {"commit": commit}
        for state in STATES:
            start = time.monotonic()
            outcome = found[state] = run(folder, test, state, args.timeout)
            print(f"{test}, {state}: {outcome}, {time.monotonic() - start:.0f} s", flush=True)
            if outcome == "skipped":
                break
        outcomes[test] = found
        OUTCOMES.write_text(json.dumps(outcomes, indent=1))
    text = table(outcomes)
    print(text)
    if args.output is not None:
        args.output.write_text(text)
    return 0 if has_expected(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
