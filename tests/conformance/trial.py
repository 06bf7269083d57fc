"""One test of torch, in the state that is asked for: everything that its process does."""

from __future__ import annotations

import ctypes
import functools
import importlib
import re
import sys
import types
import unittest
from typing import Any
from unittest import mock

import torch

from conformance import states

# Names that older tests import from torch's helpers, and what those are called now.
RENAMED = {"torch.testing._internal.inductor_utils": {"HAS_CUDA": "HAS_CUDA_AND_TRITON"}}


def _module(tests: str, file: str) -> types.ModuleType:
    """Imports a file of torch's tests."""
    sys.path.insert(0, tests)
    if file.startswith("inductor/"):
        for helper, names in RENAMED.items():
            module = importlib.import_module(helper)
            for old, new in names.items():
                if not hasattr(module, old):
                    setattr(module, old, getattr(module, new))
    return importlib.import_module(file.removesuffix(".py").replace("/", "."))


def _list(tests: str, file: str) -> dict[str, Any]:
    """The names of a file's tests."""
    module = _module(tests, file)
    loader = unittest.TestLoader()
    return {
        "tests": [
            f"{file}::{name}.{test}"
            for name, case in vars(module).items()
            if isinstance(case, type)
            and issubclass(case, unittest.TestCase)
            and case.__module__ == module.__name__
            for test in loader.getTestCaseNames(case)
        ]
    }


def _reason(text: str) -> str:
    """The line of a traceback that names the error."""
    lines = text.strip().splitlines()
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    return (errors or lines)[-1]


def _outcome(result: unittest.TestResult) -> dict[str, Any]:
    if result.errors or result.failures:
        text = [text for _, text in result.errors + result.failures]
        print(*text, sep="\n")
        return {"outcome": "failed", "detail": _reason(text[0])}
    if result.unexpectedSuccesses:
        return {"outcome": "failed", "detail": "it was expected to fail"}
    if result.skipped:
        return {"outcome": "skipped", "detail": result.skipped[0][1]}
    return {"outcome": "passed", "detail": ""}


def _keep_streams() -> None:
    """Gives all runs of a test the same streams, as the iterations of a training loop have.

    torch runs a test on new streams, and no request is planned whose stream never comes again.
    """
    common_utils: Any = sys.modules.get("torch.testing._internal.common_utils")
    if common_utils is None:
        return  # no test of torch's
    make = functools.cache(torch.cuda.Stream)

    class SameStreams(common_utils.CudaNonDefaultStream):  # type: ignore[misc]
        def __enter__(self) -> None:
            with mock.patch.object(torch.cuda, "Stream", make):
                super().__enter__()

    common_utils.CudaNonDefaultStream = SameStreams


def _misuses() -> int:
    """Calls to the pretended GPU that no correct program makes; 0 on a real one."""
    count = getattr(ctypes.CDLL(None), "standin_misuses", None)
    return int(count()) if count is not None else 0


def _complaint() -> str:
    last = ctypes.CDLL(None).standin_last_complaint
    last.restype = ctypes.c_char_p
    return bytes(last()).decode()


def _run(tests: str, name: str, state: states.State) -> dict[str, Any]:
    """Runs a test in a state, as often as the state asks. The first outcome but passed counts."""
    file, _, place = name.partition("::")
    case, _, method = place.partition(".")
    surroundings = states.enter(state)  # a file opens the GPU when it is imported
    test_case = getattr(_module(tests, file), case)
    answer: dict[str, Any] = {}
    if state.runs > 1:
        _keep_streams()

    def once() -> bool:
        nonlocal answer
        result = unittest.TestResult()
        unittest.TestSuite([test_case(method)]).run(result)
        answer = _outcome(result)
        return bool(answer["outcome"] == "passed")

    surroundings.run(once)
    answer |= surroundings.figures()
    if answer["outcome"] == "passed" and _misuses():
        return answer | {"outcome": "failed", "detail": f"misuse of the GPU: {_complaint()}"}
    return answer


def perform(task: dict[str, Any]) -> dict[str, Any]:
    """Lists the tests of `task["file"]`, or runs `task["test"]` in `task["state"]`."""
    if "file" in task:
        return _list(task["tests"], task["file"])
    return _run(task["tests"], task["test"], states.by_name(task["state"]))
