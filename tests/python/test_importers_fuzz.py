"""Every file gives a valid trace or one clear error."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from snapshot_documents import Document, changing, dump, trained
from test_importers import kineto_document

from stalloc import TraceError, importers, replaying
from stalloc.importers import Imported

SNAPSHOT = trained(3).document()
PICKLES = [dump(SNAPSHOT, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
KINETO = kineto_document()
CHANGING = changing([[(4, tokens)] for tokens in (24, 40, 64, 56)], layers=2).document()

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 1 << 31, (1 << 63) - 1, 1 << 63, 1 << 64, -(1 << 63)]),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from([[], {}, (), b""]),
    st.sampled_from(["alloc", "free_completed", "segment_free", "oom", "inactive", "\ud800"]),
)


def attempt(content: bytes, **options: int) -> tuple[Imported | None, str]:
    try:
        return importers.from_bytes(content, "some.file", **options), ""
    except TraceError as error:
        return None, str(error)


def read(content: bytes) -> None:
    """Imports, and replays what came of it; every refusal names the file, in one line."""
    imported, refusal = attempt(content)
    if imported is None:
        assert refusal.startswith("some.file: ")
        return
    trace = imported.trace
    trace._core.check()
    row = replaying.replay_torch(trace, capacity=80 << 30)
    assert row.peak_reserved <= 80 << 30


def places(document: Any) -> list[tuple[Any, Any]]:
    """Every container with each of its keys."""
    found: list[tuple[Any, Any]] = []
    keys = document if isinstance(document, dict) else range(len(document))
    for key in keys:
        found.append((document, key))
        if isinstance(document[key], (dict, list)):
            found += places(document[key])
    return found


def damaged(document: Document, data: st.DataObject) -> Document:
    """A copy with a few values replaced, left out, repeated or exchanged."""
    result = copy.deepcopy(document)
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(result)))
        kind = data.draw(st.sampled_from(["replace", "remove", "repeat", "exchange"]))
        if kind == "replace" or not isinstance(container, list):
            container[key] = data.draw(ODD)
        elif kind == "remove":
            del container[key]
        elif kind == "repeat":
            container.insert(key, copy.deepcopy(container[key]))
        else:
            container[key], container[0] = container[0], container[key]
    return result


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_damaged_snapshots_give_a_valid_trace_or_one_error(data: st.DataObject) -> None:
    read(dump(damaged(data.draw(st.sampled_from([SNAPSHOT, CHANGING])), data)))


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_damaged_kineto_traces_give_a_valid_trace_or_one_error(data: st.DataObject) -> None:
    document = damaged(KINETO, data)
    try:
        content = json.dumps(document).encode()
    except TypeError:  # bytes are no JSON
        return
    read(content)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_pickles_give_a_valid_trace_or_one_error(data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from(PICKLES)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    read(bytes(content))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_truncated_pickles(data: st.DataObject) -> None:
    content = data.draw(st.sampled_from(PICKLES))
    read(content[: data.draw(st.integers(0, len(content) - 1))])


@given(st.binary(max_size=200), st.sampled_from([b"", b"\x80\x04", b"{", b"[", b"\x1f\x8b"]))
@settings(max_examples=200, deadline=None)
def test_any_bytes_give_a_valid_trace_or_one_error(content: bytes, head: bytes) -> None:
    read(head + content)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["alloc", "free_completed", "free_requested", "segment_alloc"]),
        st.integers(0, 6),  # addresses
        st.sampled_from([0, 1, 512, 3 << 20, 1 << 30]),
        st.integers(0, 2),  # streams
    ),
    min_size=1,
    max_size=60,
)


@given(EVENTS, st.lists(st.integers(0, 6), unique=True), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_any_history_imports_or_fails_once(
    events: list[Any], live: list[int], repetitions: int
) -> None:
    """Frees without allocations, addresses allocated and freed twice, segments that disagree."""
    trace = [
        {"action": action, "addr": address, "size": size, "stream": stream, "time_us": row}
        for row, (action, address, size, stream) in enumerate(events)
    ]
    segments = [
        {
            **{"device": 0, "address": address, "total_size": 4096, "stream": 0},
            "blocks": [{"size": 4096, "requested_size": 4000, "state": "active_allocated"}],
        }
        for address in live
    ]
    content = dump({"segments": segments, "device_traces": [trace]})
    imported, refusal = attempt(content, repetitions=repetitions)
    if imported is None:
        assert "no history" in refusal or "lists no allocation" in refusal
        return
    imported.trace._core.check()
    plan = imported.trace.plan(time_limit=0.1)
    plan.check()
    row = replaying.replay_stalloc(imported.trace, plan)
    assert row.peak_reserved >= row.load
