"""Traces in Python: files, columns, profiles, plans."""

from __future__ import annotations

import contextlib
import gc
import heapq
import json
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_documents import TraceWriter, damaged, random_document, to_trace, training_document

import stalloc.files
from stalloc.errors import PlanError, StallocError, TraceError
from stalloc.tables import LIFETIME_CLASSES, NEVER
from stalloc.trace import Tally, Trace

SCHEMAS = Path(__file__).parents[2] / "docs" / "schema"


def fnv1a_128(numbers: list[int]) -> str:
    """The fingerprint's hash, as docs/formats.md describes it."""
    state = 0x6C62272E07BB014262B821756295C58D
    for number in numbers:
        for byte in (number % (1 << 64)).to_bytes(8, "little"):
            state = (state ^ byte) * ((1 << 88) + 0x13B) % (1 << 128)
    return f"{state:032x}"


@pytest.fixture
def trace() -> Trace:
    return to_trace(training_document())


def test_columns_hold_the_recording(trace: Trace) -> None:
    document = training_document()
    requests = trace.requests
    assert requests.size.tolist() == document["requests"]["size"]
    assert requests.upper.tolist() == [
        NEVER if upper is None else upper for upper in document["requests"]["upper"]
    ]
    assert requests.size.dtype == np.int64
    assert requests.dynamic.dtype == np.bool_
    assert len(requests) == len(requests.lower) == 1 + 3 * 6
    assert trace.phases.begin.tolist() == document["phases"]["begin"]
    assert trace.phases.name(0) == "other"
    assert trace.phases.name(1) == "forward 0"
    assert trace.iterations == document["iterations"]
    assert trace.layers == ["model[0]"]
    assert len(trace.layer_spans) == 0
    assert trace.end == document["end"]
    assert repr(trace) == "<Trace of 19 requests in 3 iterations>"


def test_columns_are_read_only_and_outlive_the_trace() -> None:
    sizes = to_trace(training_document()).requests.size
    gc.collect()
    assert sizes[0] == 100_000
    with pytest.raises(ValueError, match="read-only"):
        sizes[0] = 1


def test_info_can_be_set(trace: Trace) -> None:
    trace.info = {**trace.info, "model": "gpt"}
    assert trace.info == {"device": "cpu", "model": "gpt"}


def test_a_saved_trace_loads_as_it_was(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace.save(path)
    again = Trace.load(path)
    assert again.info == trace.info
    assert again.fingerprint == trace.fingerprint
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert json.loads(path.read_text()) == training_document()


def test_saved_file_follows_the_schema(trace: Trace, tmp_path: Path) -> None:
    schema = json.loads((SCHEMAS / "trace.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    trace.save(tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text())
    validator.validate(document)
    for key in document:
        assert not validator.is_valid({k: v for k, v in document.items() if k != key})
    assert not validator.is_valid(damaged(document, "requests", "size", 0, value="1"))
    assert not validator.is_valid(damaged(document, "phases", "kind", 0, value="sideways"))
    assert not validator.is_valid(document | {"extra": 1})


def test_the_fingerprint_is_the_documented_hash(trace: Trace) -> None:
    kinds = ["other", "forward", "backward", "optimizer", "unplanned"]
    document = training_document()
    numbers = [document["end"], len(document["iterations"]), *document["iterations"]]
    phases = document["phases"]
    numbers.append(len(phases["kind"]))
    for row, kind in enumerate(phases["kind"]):
        numbers.append(kinds.index(kind))
        columns = ("microbatch", "chunk", "occurrence", "begin", "end")
        numbers += [phases[name][row] for name in columns]
    requests = document["requests"]
    numbers.append(len(requests["size"]))
    for row, upper in enumerate(requests["upper"]):
        numbers += [requests["size"][row], requests["lower"][row], -1 if upper is None else upper]
        columns = ("phase_begin", "phase_end", "stream", "thread", "dynamic")
        numbers += [int(requests[name][row]) for name in columns]
    assert trace.fingerprint == fnv1a_128(numbers)


def test_an_existing_file_is_replaced_only_on_demand(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=r"trace\.json"):
        trace.save(path)
    assert path.read_text() == "mine"
    trace.save(path, overwrite=True)
    assert Trace.load(path).fingerprint == trace.fingerprint


def test_a_failed_write_leaves_everything_as_it_was(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.json"
    path.write_text("mine")

    def full(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        trace.save(path, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]
    assert path.read_text() == "mine"


def test_a_file_that_appears_meanwhile_is_not_replaced(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.json"

    def appear(_: int) -> None:
        path.write_text("another's")

    monkeypatch.setattr(stalloc.files.os, "fsync", appear)
    with pytest.raises(FileExistsError):
        trace.save(path)
    assert path.read_text() == "another's"
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


def test_files_get_the_usual_permissions(trace: Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "trace.json")
    (tmp_path / "other").touch()
    assert (tmp_path / "trace.json").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Trace.load(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("version",), 2, "is of version 2"),
        (("format",), "stalloc-plan", "holds a 'stalloc-plan'"),
        (("requests", "size", 3), -8, "requests, row 3: a size of -8"),
        (("requests", "size", 3), 1.5, "requests.size, row 3: expected an integer"),
        (("requests", "size", 3), float("nan"), "requests.size, row 3"),
        (("requests", "size", 3), 10**30, "requests.size, row 3"),
        (("requests", "size"), [], "requests.lower, row 0: more rows than the 0 of 'size'"),
        (("requests", "phase_begin", 0), 99, "requests, row 0: phase_begin is 99"),
        (("phases", "kind", 0), "x", "phases.kind, row 0: no phase is called 'x'"),
        (("phases",), [], "phases: expected an object of columns"),
        (("iterations",), [5, 3], "iterations, row 1"),
        (("end",), None, "end: expected an integer"),
        (("info", "device"), 1, "info.device: expected a string"),
        (("extra",), 1, "unknown key 'extra'"),
    ],
)
def test_damage_is_named_with_its_place(
    path: tuple[str | int, ...], value: Any, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(damaged(training_document(), *path, value=value)))
    with pytest.raises(TraceError) as error:
        Trace.load(file)
    assert str(error.value).startswith(f"{file}: ")
    assert message in str(error.value)


@given(cut=st.integers(min_value=0, max_value=10**6), junk=st.binary(max_size=4))
def test_no_damaged_bytes_do_more_than_raise(cut: int, junk: bytes) -> None:
    text = json.dumps(training_document(2)).encode()
    at = cut % len(text)
    for broken in (text[:at] + junk, text[:at] + junk + text[at + len(junk) :]):
        with contextlib.suppress(TraceError):
            Trace.from_json(broken, "x")


def test_errors_are_value_errors_of_stalloc() -> None:
    assert issubclass(TraceError, StallocError)
    assert issubclass(TraceError, ValueError)
    assert issubclass(PlanError, StallocError)
    assert issubclass(PlanError, ValueError)


def test_profile_finds_repeating_requests(trace: Trace) -> None:
    profile = trace.profile()
    assert profile.iteration == 2
    assert profile.compared == 1
    assert profile.load_bytes == 100_000 + 1000 + 2000 + 702 + 50_000
    assert profile.tallies() == {
        "static": Tally(4, 6400),
        "dynamic": Tally(1, 702),
        "unplanned": Tally(1, 50_000),
        "plannable": Tally(4, 6400),
        "transient": Tally(1, 400),
        "scoped": Tally(2, 3000),
        "wrap-around": Tally(1, 3000),
        "persistent": Tally(0, 0),
    }
    requests = profile.requests
    wraps = requests.upper > profile.period
    assert requests.lifetime[wraps].tolist() == [LIFETIME_CLASSES.index("wrap-around")]
    assert trace.requests.size[requests.request].tolist() == requests.size.tolist()
    assert [profile.phases.name(row) for row in range(len(profile.phases))] == [
        *("other", "forward 0", "unplanned", "backward 0", "optimizer")
    ]


def test_a_trace_without_an_iteration_has_no_profile() -> None:
    document = training_document(1)
    document["iterations"] = [0]
    with pytest.raises(TraceError, match="no complete iteration"):
        to_trace(document).profile()


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(min_value=0, max_value=10**6), alignment=st.sampled_from([1, 64, 512]))
def test_any_plan_is_valid_and_not_below_its_bound(seed: int, alignment: int) -> None:
    trace = to_trace(random_document(seed))
    plan = trace.plan(alignment=alignment, time_limit=0.2)
    plan.check()
    assert plan.pool >= plan.bound >= 0
    assert plan.info == trace.info
    assert plan.fingerprint == trace.fingerprint
    assert plan.load_bytes == trace.profile().load_bytes
    profile = trace.profile()
    assert len(plan.decisions) == np.count_nonzero(profile.requests.plannable)
    assert not np.any(plan.decisions.offset % alignment)
    ends = plan.decisions.offset + plan.decisions.size
    assert max(ends, default=0) <= plan.pool


def test_options_that_make_no_sense_are_refused(trace: Trace) -> None:
    with pytest.raises(PlanError, match="by magic"):
        trace.plan(algorithm="by magic")
    with pytest.raises(PlanError, match="alignment"):
        trace.plan(alignment=0)
    for limit in (float("nan"), -1, "abc"):
        with pytest.raises(PlanError, match="time_limit: give a number of seconds from 0 up"):
            trace.plan(time_limit=limit)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def hard_trace() -> Trace:
    """One that keeps the planners busy for seconds, so that they report progress."""
    rng = random.Random(1)
    writer = TraceWriter()
    pending: list[tuple[int, int]] = []
    for clock in range(5000):
        while pending and pending[0][0] <= clock:
            writer.free(heapq.heappop(pending)[1])
        request = writer.alloc(rng.randrange(1, 1 << 20))
        heapq.heappush(pending, (clock + rng.randrange(1, 60), request))
    for _, request in pending:
        writer.free(request)
    writer.step()
    return to_trace(writer.document())


def test_a_plan_without_a_time_limit_does_not_depend_on_the_load(hard_trace: Trace) -> None:
    def plan(_: int) -> bytes:
        return hard_trace.plan(alignment=1)._core.to_json()

    alone = plan(0)
    with ThreadPoolExecutor(4) as threads:  # planning releases the GIL
        beside_others = set(threads.map(plan, range(4)))
    assert beside_others == {alone}


def test_an_error_in_the_progress_function_is_raised(hard_trace: Trace) -> None:
    def progress(_: float) -> None:
        raise RuntimeError("seen")

    with pytest.raises(RuntimeError, match="seen"):
        hard_trace.plan(alignment=1, progress=progress)


def test_progress_that_says_false_ends_the_search_with_a_plan(hard_trace: Trace) -> None:
    fractions: list[float] = []

    def progress(fraction: float) -> bool:
        fractions.append(fraction)
        return False

    plan = hard_trace.plan(alignment=1, progress=progress, time_limit=3600)
    plan.check()
    assert len(fractions) == 1


def test_an_interrupt_ends_the_search(hard_trace: Trace) -> None:
    def progress(_: float) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    # A process that was started in the background ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            hard_trace.plan(alignment=1, progress=progress, time_limit=3600)
    finally:
        signal.signal(signal.SIGINT, before)
