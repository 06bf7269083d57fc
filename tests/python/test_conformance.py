"""The suite that compares torch's own tests, without torch's tests and without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from conformance.comparison import (  # noqa: E402
    Difference,
    ExceptionsError,
    differences,
    load_exceptions,
    problems,
)
from conformance.report import Table  # noqa: E402
from conformance.selection import selected  # noqa: E402
from conformance.source import nearest_first  # noqa: E402
from conformance.states import STATES, State, by_name  # noqa: E402

IDLE = by_name("native, idle")
COMPAT = by_name("compat")


def outcomes(**tests: str) -> dict[str, dict[str, Any]]:
    return {name: {"outcome": outcome, "detail": ""} for name, outcome in tests.items()}


def test_every_state_has_a_baseline_that_runs_before_it_as_often() -> None:
    names = [state.name for state in STATES]
    for state in STATES:
        if state.baseline:
            assert names.index(state.baseline) < names.index(state.name)
            assert by_name(state.baseline).runs == state.runs
            assert not by_name(state.baseline).plan


def test_native_mode_passes_what_torch_passes_and_compat_mode_at_least_that() -> None:
    baseline = outcomes(a="passed", b="passed", c="failed", d="skipped", e="timeout")
    here = outcomes(a="passed", b="crashed", c="passed", d="skipped")
    assert differences(IDLE, here, baseline) == {
        Difference("native, idle", "b"),
        Difference("native, idle", "c"),
    }
    assert differences(COMPAT, here, baseline) == {Difference("compat", "b")}


def test_exceptions_are_checked_both_ways() -> None:
    a, b, c = (Difference("native, idle", name) for name in "abc")
    assert problems({a}, [a], {a, b}) == []
    assert problems({a}, [], {a, b}) == ["differs and is not listed: a [native, idle]"]
    assert problems(set(), [b], {a, b}) == ["is listed and does not differ: b [native, idle]"]
    assert problems(set(), [c], {a, b}) == ["is listed and did not run: c [native, idle]"]
    # A state that this run left out.
    assert problems(set(), [Difference("compat", "c")], {a, b}) == []


def test_the_suites_own_exceptions_are_well_formed() -> None:
    load_exceptions(TESTS / "conformance" / "exceptions.toml", STATES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[exception]]\ntest = "a"\nstates = ["native, idle"]', "has a test, states and a reason"),
        (
            '[[exception]]\ntest = "a"\nstates = ["native, idle"]\nreason = " "',
            "has a test, states and a reason",
        ),
        ('[[exception]]\ntest = "a"\nstates = ["torch"]\nreason = "r"', "no state 'torch'"),
        (
            '[[exception]]\ntest = "a"\nstates = ["compat", "compat"]\nreason = "r"',
            r"a \[compat\] is there twice",
        ),
        ("[[exception", "is no TOML"),
    ],
)
def test_a_wrong_file_of_exceptions_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "exceptions.toml"
    path.write_text(text)
    with pytest.raises(ExceptionsError, match=message):
        load_exceptions(path, STATES)


def test_exceptions_have_reasons(tmp_path: Path) -> None:
    path = tmp_path / "exceptions.toml"
    path.write_text(
        '[[exception]]\ntest = "a"\nstates = ["compat", "native, idle"]\nreason = "it is so"\n'
    )
    assert load_exceptions(path, STATES) == {
        Difference("compat", "a"): "it is so",
        Difference("native, idle", "a"): "it is so",
    }


def test_tests_of_arithmetic_and_of_the_cpu_are_left_out() -> None:
    cuda = [
        "test_cuda.py::TestCuda.test_caching_allocator",
        "test_cuda.py::TestCudaAutocast.test_autocast_torch_fp16",
        "test_cuda.py::TestCudaOptimsCPU.test_grad_scaling",
    ]
    assert selected(cuda) == cuda[:1]
    assert selected(["test_cuda_trace.py::TestCudaTrace.test_all"])


def test_the_nearest_version_of_torchs_tests_is_tried_first() -> None:
    versions = ["1.13.1+dfsg-4", "2.16.0-1", "2.6.0+dfsg-7", "2.12.1-1", "2.14.1+dfsg-1"]
    assert nearest_first(versions, "2.14.0+cu130") == [
        "2.14.1+dfsg-1",
        "2.16.0-1",
        "2.12.1-1",
        "2.6.0+dfsg-7",
        "1.13.1+dfsg-4",
    ]


# A stand-in for a file of torch's tests.
FILE = """
import os, sys, time, unittest
from unittest import TestCase

class TestOne(TestCase):
    ran = 0
    def test_passes(self): pass
    def test_fails(self): self.assertEqual(1, 2)
    def test_skips(self): self.skipTest("no reason")
    def test_hangs(self): time.sleep(60)
    def test_crashes(self): print("last words"); sys.stdout.flush(); os.abort()
    def test_exits(self): os._exit(0)
    @unittest.expectedFailure
    def test_is_expected_to_fail(self): pass
    def test_passes_once(self):
        TestOne.ran += 1
        self.assertEqual(TestOne.ran, 1)
    def test_leaves_a_process(self):
        if os.fork() == 0:
            time.sleep(60)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The server's answers about each test of that file: in a process that may fork."""
    folder = tmp_path_factory.mktemp("tests")
    (folder / "test_cuda.py").write_text(FILE)
    script = """
        import json, sys
        from conformance.server import perform
        task = {"tests": sys.argv[1], "log": sys.argv[1] + "/log", "timeout": 20}
        listed = perform(task | {"file": "test_cuda.py"})["tests"]
        answers = {}
        for test in listed:
            limit = {"timeout": 1} if "hangs" in test else {}
            for state in ("torch", "torch, repeated") if "once" in test else ("torch",):
                answers[f"{test} [{state}]"] = perform(
                    task | {"test": test, "state": state} | limit
                )
        print(json.dumps(answers))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(folder)],
        env=os.environ | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return answers


@pytest.mark.parametrize(
    ("test", "outcome", "detail"),
    [
        ("passes [torch]", "passed", ""),
        ("fails [torch]", "failed", "AssertionError: 1 != 2"),
        ("skips [torch]", "skipped", "no reason"),
        ("hangs [torch]", "timeout", "not done after 1 seconds"),
        ("crashes [torch]", "crashed", "exit status -6 last words"),
        ("exits [torch]", "crashed", "exit status 0"),
        ("is_expected_to_fail [torch]", "failed", "it was expected to fail"),
        ("passes_once [torch]", "passed", ""),
        ("passes_once [torch, repeated]", "failed", "AssertionError: 2 != 1"),
        ("leaves_a_process [torch]", "passed", ""),
    ],
)
def test_a_test_is_run_in_a_process_of_its_own(
    test: str, outcome: str, detail: str, answers: dict[str, dict[str, Any]]
) -> None:
    answer = answers[f"test_cuda.py::TestOne.test_{test}"]
    assert (answer["outcome"], answer["detail"]) == (outcome, detail)


def test_imported_classes_are_not_tests_of_the_file(answers: dict[str, dict[str, Any]]) -> None:
    assert all("::TestOne." in name for name in answers)
    assert len(answers) == 10


def test_the_table_counts_each_outcome(tmp_path: Path) -> None:
    found = {
        "torch": outcomes(a="passed", b="passed", c="failed", d="skipped", e="timeout"),
        "native, idle": outcomes(a="passed", b="failed", c="crashed"),
    }
    found["native, idle"]["a"] |= {"served": 3, "moves": 0}
    found["native, idle"]["b"] |= {"served": 1, "moves": 2}
    states = [by_name("torch"), IDLE]
    different = {Difference("native, idle", "b")}
    table = Table("torch 2", states, found, different, dict.fromkeys(different, "why"), set())
    assert table.rows() == [
        ("torch", "5", "2", "2", "1", "", "", "", ""),
        ("native, idle", "3", "1", "2", "0", "2", "1", "1", "1"),
    ]
    table.write(tmp_path / "result.md")
    text = (tmp_path / "result.md").read_text()
    assert "| native, idle | 3 | 1 | 2 | 0 | 2 | 1 | 1 | 1 |" in text
    (difference,) = different
    assert f"- `{difference.test}` (native, idle). why" in text


def test_each_reason_names_its_states(tmp_path: Path) -> None:
    reasons = {
        Difference("native, idle", "b"): "why",
        Difference("native, active", "b"): "why",
        Difference("native, grown", "b"): "another cause",
    }
    table = Table("torch 2", [IDLE], {"native, idle": {}}, set(reasons), reasons, set())
    table.write(tmp_path / "result.md")
    text = (tmp_path / "result.md").read_text()
    assert "- `b` (native, active; native, idle). why\n" in text
    assert "- `b` (native, grown). another cause\n" in text


def test_a_state_is_known_by_one_name() -> None:
    assert len({state.name for state in STATES}) == len(STATES)
    assert isinstance(by_name("torch"), State)
