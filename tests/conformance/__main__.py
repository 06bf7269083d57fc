"""Runs torch's own tests about memory without stalloc and with it, and compares what passes.

    make test-conformance

Prints a table and each difference that exceptions.toml does not list; the exit status is 0 if there
is none. `--output FILE` writes the table as Markdown. Which tests run: selection.py; the states:
states.py; where the tests come from: source.py. The logs of the tests lie in
build/conformance/logs, and all outcomes in build/conformance/outcomes.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

import torch

from conformance import report
from conformance.comparison import (
    Difference,
    ExceptionsError,
    differences,
    load_exceptions,
    problems,
)
from conformance.selection import FILES, SLOW_FILES, selected
from conformance.source import SourceError, tests_of_torch
from conformance.states import PLAIN_LIBRARY, STATES, State
from conformance.workers import Answer, Task, Workers

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "conformance"
# Bytes of the pretended GPU's memory that a context has, as on a real one: tests know that no
# program gets all of it.
CONTEXT = 512 << 20
EXCEPTIONS = Path(__file__).with_name("exceptions.toml")


class Run:
    """One run of the suite, and its outcomes by state and test."""

    def __init__(self, tests: Path, workers: Workers, timeout: float) -> None:
        self._tests = tests
        self._workers = workers
        self._timeout = timeout
        self.outcomes: dict[str, dict[str, Answer]] = {}

    def list_tests(self, files: Collection[str], pattern: str) -> list[str]:
        """The files' selected tests whose names contain a pattern, in the order of the files."""
        found: dict[str, list[str]] = {}
        problems: list[str] = []

        def done(task: Task, answer: Answer) -> None:  # in a worker's thread
            if "tests" in answer:
                found[task["file"]] = selected(answer["tests"])
            else:
                problems.append(f"{task['file']} cannot be imported: {answer['detail']}")

        self._workers.run([self._task(file=file) for file in files], done)
        if problems:
            raise SystemExit("\n".join(problems))
        return [test for file in files for test in found[file] if pattern in test]

    def _task(self, **what: str) -> Task:
        name = "|".join(what.values())
        logs = CACHE / "logs" / what.get("state", "files")
        logs.mkdir(parents=True, exist_ok=True)
        readable = "".join(c if c.isalnum() else "_" for c in name)[-120:]
        log = logs / f"{readable}.{hashlib.sha1(name.encode()).hexdigest()[:8]}.log"
        return {**what, "tests": str(self._tests), "timeout": self._timeout, "log": str(log)}

    def run(self, state: State, tests: list[str]) -> None:
        """Runs the tests in a state, but those that were skipped or too slow in a baseline."""
        left_out = {
            test
            for other in STATES
            if not other.baseline
            for test, answer in self.outcomes.get(other.name, {}).items()
            if answer["outcome"] in ("skipped", "timeout")
        }
        tests = [test for test in tests if test not in left_out]
        outcomes = self.outcomes[state.name] = {}
        report.progress(f"{state.name}: {len(tests)} tests")
        self._workers.run(
            [self._task(state=state.name, test=test) for test in tests],
            lambda task, answer: outcomes.__setitem__(task["test"], answer),
        )
        (CACHE / "outcomes.json").write_text(json.dumps(self.outcomes, indent=1))

    def compare(self, states: list[State]) -> set[Difference]:
        """The differences of all states from their baselines."""
        return {
            difference
            for state in states
            if state.baseline
            for difference in differences(
                state, self.outcomes[state.name], self.outcomes[state.baseline]
            )
        }

    def repeat(self, states: list[State], found: set[Difference]) -> set[Difference]:
        """Runs what differs again, in both states; returns what differs no more.

        Such a test depends on time, and the second outcomes stand.
        """
        by_name = {state.name: state for state in states}
        again = {(d.state, d.test) for d in found}
        again |= {(by_name[d.state].baseline, d.test) for d in found}
        self._workers.run(
            [self._task(state=state, test=test) for state, test in sorted(again)],
            lambda task, answer: self.outcomes[task["state"]].__setitem__(task["test"], answer),
        )
        return found - self.compare(states)


def compile_plain() -> Path:
    """Compiles the plain pluggable allocator."""
    library = CACHE / "libplain.so"
    source = Path(__file__).with_name("plain.cpp")
    compiler = os.environ.get("CXX", "c++")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", source, "-o", library], check=True)
    return library


def _commit() -> str:
    """The commit that runs; with a `+` if files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()


def chosen_states(text: str | None) -> list[State]:
    """The states whose names contain a text, with their baselines."""
    names = {state.name for state in STATES if text is None or text in state.name}
    names |= {state.baseline for state in STATES if state.name in names}
    return [state for state in STATES if state.name in names]


def main() -> int:
    """Runs, compares and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, help="a checkout of PyTorch, instead of Debian's")
    parser.add_argument("--state", help="only states whose names contain this, and baselines")
    parser.add_argument("--test", default="", help="only tests whose names contain this")
    parser.add_argument("--slow", action="store_true", help="CUDA graph trees, too, which compile")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time")
    parser.add_argument("--timeout", type=float, default=30, help="seconds for a test")
    parser.add_argument("--output", type=Path, help="write the table to this file")
    args = parser.parse_args()
    states = chosen_states(args.state)
    try:
        exceptions = load_exceptions(EXCEPTIONS, STATES)
        CACHE.mkdir(parents=True, exist_ok=True)
        if args.source is not None:
            tests, version = args.source / "test", (args.source / "version.txt").read_text().strip()
        else:
            tests, version = tests_of_torch(CACHE, torch.__version__)
    except (ExceptionsError, SourceError, OSError) as e:
        print(f"test-conformance: {e}", file=sys.stderr)
        return 2
    environment = {PLAIN_LIBRARY: str(compile_plain()), "STANDIN_CONTEXT": str(CONTEXT)}
    workers = Workers(args.jobs, os.environ | environment)
    run = Run(tests.absolute(), workers, args.timeout)
    began, commit = time.monotonic(), _commit()
    try:
        names = run.list_tests([*FILES, *(SLOW_FILES if args.slow else ())], args.test)
        for state in states:
            run.run(state, names)
        found = run.compare(states)
        unsteady = run.repeat(states, found)
        found = run.compare(states)
    finally:
        workers.close()
    ran = {
        Difference(state.name, test)
        for state in states
        if state.baseline
        for test in run.outcomes[state.name]
    }
    listed = [d for d in exceptions if args.test in d.test]
    title = f"torch {torch.__version__}, tests of torch {version}"
    minutes = (time.monotonic() - began) / 60
    made = (
        f"Commit {commit}, {args.jobs} tests at a time, {minutes:.0f} minutes, "
        f"{os.cpu_count()} processors."
    )
    table = report.Table(title, states, run.outcomes, found, exceptions, unsteady, made)
    wrong = problems(found, listed, ran)
    table.show(wrong)
    if args.output is not None:
        table.write(args.output)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
