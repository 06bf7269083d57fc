"""Importers: the traces of snapshots and Kineto traces, and the assumptions that are reported."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from snapshot_documents import (
    BACKWARD,
    FORWARD,
    Document,
    SnapshotWriter,
    dump,
    frame,
    last_step,
    trained,
)

from stalloc import TraceError, importers, replaying
from stalloc.importers import Imported
from stalloc.tables import NEVER, PHASE_KINDS


def load(document: Any, **options: Any) -> Imported:
    return importers.from_bytes(dump(document), "snapshot.pickle", **options)


def phase_names(imported: Imported, iteration: int) -> list[str]:
    phases = imported.trace.phases
    rows = np.flatnonzero((phases.iteration == iteration) & (phases.end > phases.begin))
    return [phases.name(row) for row in rows.tolist()]


def test_a_snapshot_becomes_a_trace_with_phases_and_iterations() -> None:
    imported = load(trained(4).document())
    trace = imported.trace
    assert imported.kind == "pytorch snapshot"
    assert imported.device == "cuda:0"
    assert trace.info["device"] == "cuda"
    # The first one has the weights and the optimizer's states: it is start-up.
    assert len(trace.iterations) == 5
    assert trace.iterations[0] == 0
    assert "what comes before them counts as start-up" in trace.info["assumptions"]
    assert phase_names(imported, 1) == ["other", "forward 0", "backward 0", "optimizer"]
    profile = trace.profile()
    tallies = profile.tallies()
    assert tallies["dynamic"].requests == 0
    assert tallies["wrap-around"].requests == 6
    assert trace.plan().bound == sum((2 * i + 3) << 20 for i in range(6)) + 512 + (7 << 20)


def test_sizes_streams_and_lifetimes_are_as_recorded() -> None:
    writer = SnapshotWriter()
    a = writer.alloc(1000)
    b = writer.alloc(2000, stream=0xDEADBEEF)
    writer.free(a)
    c = writer.alloc(3000, stream=7)
    writer.free(b)
    requests = load(writer.document(), repetitions=1).trace.requests
    assert requests.size.tolist() == [1000, 2000, 3000]
    assert requests.stream.tolist() == [0, 1, 2]
    assert requests.lower.tolist() == [0, 1, 3]
    assert requests.upper.tolist() == [2, 4, NEVER]
    assert c in writer.live


def test_a_free_that_waits_for_another_stream_ends_when_it_is_completed() -> None:
    writer = SnapshotWriter()
    a, b = writer.alloc(1000), writer.alloc(2000)
    writer.free(a, completed=False)
    writer.alloc(512)
    writer.complete(a)
    writer.free(b, completed=False)
    imported = load(writer.document(), repetitions=1)
    assert imported.trace.requests.upper.tolist() == [3, NEVER, NEVER]
    assert any("1 requests wait" in text for text in imported.assumptions)


@pytest.mark.parametrize("cut", [1, 6, 20, 37])
def test_rebuilds_a_cut_head_from_the_final_live_blocks(cut: int) -> None:
    writer = trained(5)
    whole = load(writer.document(), repetitions=1).trace.requests
    imported = load(writer.document(cut), repetitions=1)
    requests = imported.trace.requests
    live = requests.upper == NEVER
    assert (
        np.sort(requests.size[live]).tolist() == np.sort(whole.size[whole.upper == NEVER]).tolist()
    )
    assert any("live before the first event" in text for text in imported.assumptions)
    # At the cut, what the whole history says is live, is.
    first = imported.trace.phases
    assert PHASE_KINDS[first.kind[0]] == "other"
    assert first.iteration[0] == 0
    assert imported.trace.iterations[0] == 0
    before = len(requests.size) - sum(e["action"] == "alloc" for e in writer.events[cut:])
    events = [e for e in writer.events[:cut] if e["action"] in ("alloc", "free_completed")]
    expected: dict[int, int] = {}
    for event in events:
        if event["action"] == "alloc":
            expected[event["addr"]] = event["size"]
        else:
            expected.pop(event["addr"], None)
    assert sorted(requests.size[:before].tolist()) == sorted(expected.values())


def test_blocks_without_events_are_live_throughout() -> None:
    writer = SnapshotWriter()
    writer.alloc(7777)
    cut = len(writer.events)
    writer.free(writer.alloc(512))
    requests = load(writer.document(cut), repetitions=1).trace.requests
    assert requests.size.tolist() == [7777, 512]
    assert requests.upper.tolist() == [NEVER, 2]


def test_a_block_without_an_address_lies_behind_the_one_before_it() -> None:
    writer = SnapshotWriter()
    writer.alloc(512)
    writer.alloc(1024)
    cut = len(writer.events)
    writer.free(writer.alloc(2048))
    document = writer.document(cut)
    blocks = [b for s in document["segments"] for b in s["blocks"][:1]]
    document["segments"] = [document["segments"][0] | {"blocks": blocks, "total_size": 4096}]
    for block in blocks:  # as 2.1 wrote them
        del block["address"]
        block["history"] = [{"addr": 0, "real_size": block.pop("requested_size") - 12}]
    requests = load(document, repetitions=1).trace.requests
    assert requests.size.tolist() == [500, 1012, 2048]


def test_imports_the_busiest_device() -> None:
    first, second = trained(1), SnapshotWriter(device=1)
    second.free(second.alloc(512))
    document = first.document()
    document["segments"] += second.segments()
    document["device_traces"] = [first.events, second.events]
    imported = load(document)
    assert imported.device == "cuda:0"
    assert imported.others == {"cuda:1": 1}
    assert "cuda:1 (1)" in imported.assumptions[0]
    other = load(document, device=1, repetitions=1)
    assert other.trace.requests.size.tolist() == [512]
    with pytest.raises(TraceError, match="no allocations of device 7"):
        load(document, device=7)


def test_segments_give_torchs_peak_reserved_bytes() -> None:
    writer = SnapshotWriter()
    writer.segment("segment_alloc", 100 << 20)
    writer.segment("segment_map", 20 << 20)
    a = writer.alloc(1000)
    writer.segment("segment_free", 100 << 20)
    writer.segment("segment_unmap", 18 << 20)
    document = writer.document()
    held = document["segments"][0]["total_size"]
    document["segments"][0]["total_size"] += 2 << 20
    assert a in writer.live
    imported = load(document, repetitions=1)
    assert imported.torch_reserved == held + (120 << 20)
    writer.events.insert(0, writer.events[0] | {"size": 1 << 40})
    imported = load(writer.document(), repetitions=1)
    assert any("disagree" in text for text in imported.assumptions)
    assert imported.torch_reserved == held


def test_metadata_names_the_site_and_may_tell_the_phase() -> None:
    writer = SnapshotWriter()
    for phase in ("forward", "backward"):
        writer.alloc(1 << 20, user_metadata=f"block 3 {phase}")
    trace = load(writer.document(), repetitions=1).trace
    assert trace.layers == ["block 3 forward", "block 3 backward"]
    assert [PHASE_KINDS[k] for k in trace.phases.kind] == ["forward", "backward"]


def test_call_sites_are_the_users_own() -> None:
    writer = SnapshotWriter()
    writer.alloc(512, FORWARD)
    writer.alloc(512, BACKWARD)
    trace = load(writer.document(), repetitions=1).trace
    assert trace.layers == ["model.py:10 forward", "MulBackward0"]
    assert trace.requests.layer_begin.tolist() == [0, 1]


def test_without_compiled_frames_an_empty_stack_is_the_engines() -> None:
    writer = SnapshotWriter()
    python = [f for f in FORWARD if f["filename"] != "??"]
    for _ in range(3):
        for frames in (python, [], []):
            writer.free(writer.alloc(1 << 20, frames))
    imported = load(writer.document(), repetitions=1)
    assert [PHASE_KINDS[k] for k in imported.trace.phases.kind[:2]] == ["forward", "backward"]
    assert any("6 allocations without a stack" in text for text in imported.assumptions)


def test_the_function_backward_is_backward() -> None:
    writer = SnapshotWriter()
    writer.alloc(512, [frame("backward", "/x/torch/_tensor.py"), frame("<module>")])
    writer.alloc(512, [frame("forward"), frame("<module>")])
    kinds = load(writer.document(), repetitions=1).trace.phases.kind
    assert [PHASE_KINDS[k] for k in kinds] == ["backward", "forward"]


def test_without_annotations_the_optimizer_is_told_from_its_files() -> None:
    imported = load(trained(4, annotate=False).document())
    assert len(imported.trace.iterations) == 5
    assert "optimizer" in phase_names(imported, 1)


def test_without_stacks_finds_iterations_by_repetition() -> None:
    imported = load(trained(6, annotate=False, stacks=False).document())
    assert any("follow from their repetition" in text for text in imported.assumptions)
    trace = imported.trace
    assert len(trace.iterations) - 1 in (4, 5)
    assert trace.profile().tallies()["dynamic"].requests == 0
    counts = np.diff(np.searchsorted(trace.requests.lower, trace.iterations))
    assert len(set(counts[1:].tolist())) == 1


def test_profiler_steps_are_iterations() -> None:
    writer = SnapshotWriter()
    for step in range(3):
        writer.annotate("START", f"ProfilerStep#{step}")
        writer.free(writer.alloc(512 * (step + 1)))
        writer.annotate("END", f"ProfilerStep#{step}")
    trace = load(writer.document()).trace
    assert trace.iterations == [0, 2, 4, 6]


def test_annotations_may_begin_before_and_end_after_the_recording() -> None:
    writer = SnapshotWriter()
    writer.alloc(512)
    writer.annotate("END", "evaluation")
    writer.alloc(512)
    writer.annotate("START", "backward")
    writer.alloc(512)
    kinds = load(writer.document(), repetitions=1).trace.phases.kind
    assert [PHASE_KINDS[k] for k in kinds] == ["unplanned", "other", "backward"]


def test_times_that_go_backwards_cost_the_annotations() -> None:
    document = trained(3).document()
    document["device_traces"][0][5]["time_us"] = -(1 << 62)
    document["device_traces"][0][9]["time_us"] = 1 << 62
    imported = load(document)
    assert any("times go backwards" in text for text in imported.assumptions)
    assert len(imported.trace.iterations) == 4, "stacks tell the optimizer all the same"


def test_two_optimizers_that_take_turns_make_one_iteration() -> None:
    writer = SnapshotWriter()
    for step in range(8):
        for i in range(10):
            writer.free(writer.alloc((i + 1 + 20 * (step % 2)) << 20, FORWARD))
        writer.annotate("START", f"Optimizer.step#{'GD'[step % 2]}.step")
        writer.free(writer.alloc(512))
        writer.annotate("END", f"Optimizer.step#{'GD'[step % 2]}.step")
    imported = load(writer.document())
    assert len(imported.trace.iterations) == 5
    assert any("every 2th step" in text for text in imported.assumptions)


def test_optimizers_that_share_most_of_their_code_make_one_iteration() -> None:
    writer = SnapshotWriter()
    frames = [[*FORWARD[:2], frame("forward", "/home/me/model.py", i)] for i in range(62)]
    for step in range(24):
        for i in (*range(60), 60 + step % 2, *((61,) * 20 if step % 2 else ())):
            writer.free(writer.alloc((i + 1 + 90 * step) << 14, frames[i]))
        writer.annotate("START", f"Optimizer.step#{'GD'[step % 2]}.step")
        writer.free(writer.alloc(512))
        writer.annotate("END", f"Optimizer.step#{'GD'[step % 2]}.step")
    imported = load(writer.document())
    assert any("every 2th step" in text for text in imported.assumptions)


def test_microbatches_that_vary_in_number_make_no_iteration_of_several_steps() -> None:
    """Three numbers in turn, but for some: step by step the same code, of ever other sizes."""
    writer = SnapshotWriter()
    frames = [[*FORWARD[:2], frame("forward", "/home/me/model.py", i)] for i in range(10)]
    for step in range(24):
        for microbatch in range((6, 3, 3)[step % 3] if step != 10 else 6):
            for i in range(10):
                size = (i + 1 + 20 * step + 7 * microbatch) << 14
                writer.free(writer.alloc(size, frames[i]))
        writer.annotate("START", "Optimizer.step#SGD.step")
        writer.free(writer.alloc(512))
        writer.annotate("END", "Optimizer.step#SGD.step")
    imported = load(writer.document())
    assert any("the optimizer's step" in text for text in imported.assumptions)
    assert len(imported.trace.iterations) == 25


def test_one_iteration_is_repeated() -> None:
    document = last_step()
    once = load(document, repetitions=1).trace
    assert len(once.iterations) == 2
    persistent = once.profile().tallies()["persistent"].requests
    assert persistent == 18, "the gradients, and what was live before"
    imported = load(document, repetitions=4)
    trace = imported.trace
    assert len(trace.iterations) == 5
    assert any("repeated 4 times" in text for text in imported.assumptions)
    assert any("6 of 27.0 MiB are freed as the next one begins" in t for t in imported.assumptions)
    tallies = trace.profile().tallies()
    assert tallies["wrap-around"].requests == 6
    assert tallies["dynamic"].requests == 0


def state_replaced(steps: int) -> SnapshotWriter:
    """An optimizer that makes a new state in each step, and frees the old one only then."""
    writer = SnapshotWriter()
    state = writer.alloc(50 << 20)
    for _ in range(steps):
        activations = [writer.alloc(5 << 20, FORWARD) for _ in range(8)]
        writer.free(writer.alloc(30 << 20, BACKWARD))
        for activation in activations:
            writer.free(activation)
        writer.annotate("START", "Optimizer.step#Own.step")
        new = writer.alloc(50 << 20)
        writer.free(state)
        state = new
        writer.annotate("END", "Optimizer.step#Own.step")
    return writer


@pytest.mark.parametrize("single", [True, False])
def test_state_that_is_replaced_takes_slots(single: bool) -> None:
    """Two slots for one state, as both are live at once; the period is one iteration."""
    document = state_replaced(1 if single else 8).document(1)
    trace = load(document, repetitions=6).trace
    assert len(trace.iterations) == (7 if single else 9)
    tallies = trace.profile().tallies()
    assert tallies["dynamic"].requests == 0
    plan = trace.plan()
    assert plan.bound == plan.pool == 120 << 20
    row = replaying.replay_stalloc(trace, plan)
    assert row.hit_rate == 1.0
    assert row.peak_reserved == plan.pool + plan.resident


def test_an_older_block_makes_way_for_the_state_that_replaces_it() -> None:
    """Gradients of the state's size, born earlier, do not."""
    writer = SnapshotWriter()
    state = writer.alloc(50 << 20)
    gradient = writer.alloc(50 << 20, BACKWARD)
    writer.annotate("START", "Optimizer.step#Own.step")
    new = writer.alloc(50 << 20)
    writer.free(state)
    writer.annotate("END", "Optimizer.step#Own.step")
    assert {gradient, new} == set(writer.live)
    imported = load(writer.document(1), repetitions=4)
    requests = imported.trace.requests
    assert any("1 of 50.0 MiB are freed as the next one begins" in t for t in imported.assumptions)
    # Nothing is left to be freed in the first repetition, so lifetimes are shorter there.
    later = (requests.upper < NEVER) & (requests.lower >= imported.trace.iterations[1])
    lengths = (requests.upper - requests.lower)[later]
    assert sorted(set(lengths.tolist())) == [3, 5]


def test_an_address_that_is_freed_twice_is_ignored_and_stated() -> None:
    writer = SnapshotWriter()
    a = writer.alloc(512)
    writer.free(a)
    writer.events.append(writer.events[-1])
    imported = load(writer.document(), repetitions=1)
    assert len(imported.trace.requests) == 1
    assert any("1 free of an address that is free already" in t for t in imported.assumptions)


def test_an_address_that_is_allocated_twice_was_freed_between() -> None:
    writer = SnapshotWriter()
    writer.alloc(512)
    writer.events.append(writer.events[-1] | {"size": 1024})
    imported = load(writer.document(), repetitions=1)
    requests = imported.trace.requests
    assert requests.size.tolist() == [512, 1024]
    assert requests.upper[0] == requests.lower[1]
    assert any("of an address that is live" in text for text in imported.assumptions)


def test_every_protocol_and_gzip() -> None:
    document = trained(2).document()
    expected = load(document).trace.fingerprint
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        content = dump(document, protocol)
        assert importers.from_bytes(content, "x").trace.fingerprint == expected
    zipped = gzip.compress(dump(document))
    assert importers.from_bytes(zipped, "x").trace.fingerprint == expected


class Exploit:
    def __reduce__(self) -> Any:
        return (print, ("executed",))


def test_a_pickle_with_a_global_is_refused_unexecuted(capsys: pytest.CaptureFixture[str]) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TraceError, match=r"x\.pickle: byte \d+: .*builtins?.*\.print"):
            importers.from_bytes(dump({"segments": Exploit()}, protocol), "x.pickle")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"PK\x03\x04", "archive"),
        (b"\x80\x04}", "cut off"),
        (b"\x80\x04N.", "no memory snapshot"),
        (b"\x80\x04\x94.", "damaged"),
        (b"\x1f\x8bnonsense", "gzip"),
        (b"{", "JSON that is cut off"),
        (b"[" * 100_000, "no JSON"),
        (b'{"a": 1}', "traceEvents"),
        (b'{"traceEvents": 3}', "traceEvents"),
        (b'{"traceEvents": []}', r"no \[memory\] events"),
        (b'{"format": "stalloc-plan"}', "a stalloc plan: nothing to import"),
        (dump([]), "no history"),
        (dump({"segments": [], "device_traces": [[]]}), "no history"),
        (dump({"segments": 3}), "segments: expected a list"),
        (dump({"segments": [], "device_traces": [3]}), r"device_traces\[0\]"),
    ],
)
def test_refuses_files_that_are_no_recording(content: bytes, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        importers.from_bytes(content, "file")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("size", 1 << 63, "is not between"),
        ("size", -1, "is not between"),
        ("size", "many", "expected a whole number, found 'many'"),
        ("size", True, "expected a whole number, found True"),
        ("addr", None, "found nothing"),
        ("action", None, r"\.action: expected a word, found nothing"),
        ("frames", 3, "expected a list of frames"),
        ("frames", [3], "expected a frame"),
        ("time_us", "noon", "expected a time"),
        ("time_us", float("nan"), "expected a time"),
    ],
)
def test_a_damaged_event_is_named(key: str, value: Any, message: str) -> None:
    document = trained(2).document()
    document["device_traces"][0][3][key] = value
    with pytest.raises(TraceError, match=rf"snapshot\.pickle: device_traces\[0\]\[3\].*{message}"):
        load(document)


def test_sizes_that_no_device_has_are_refused() -> None:
    writer = SnapshotWriter()
    writer.alloc(1 << 48)
    assert load(writer.document(), repetitions=1).trace.requests.size[0] == 1 << 48
    writer.alloc((1 << 48) + 1)
    with pytest.raises(TraceError, match=r"^snapshot\.pickle: .*row 1: .* larger than any device"):
        load(writer.document(), repetitions=1)


def memory_event(ts: float, address: int, count: int, tid: int = 1, **more: Any) -> Document:
    details = {"Addr": address, "Bytes": count, "Device Type": 1, "Device Id": 0, **more}
    return {"ph": "i", "name": "[memory]", "ts": ts, "tid": tid, "args": details}


def scope(name: str, ts: float, dur: float, tid: int = 1, cat: str = "cpu_op") -> Document:
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, "tid": tid, "cat": cat}


def kineto_document(steps: int = 3) -> Document:
    """Events out of order, as Kineto writes them."""
    events: list[Document] = [{"ph": "M", "name": "process_name"}]
    for step in range(steps):
        t = step * 1000.0
        events += [
            scope("Optimizer.step#SGD.step", t + 80, 10, cat="user_annotation"),
            memory_event(t + 85, 3, 4096, **{"Total Reserved": 1 << 21}),
            memory_event(t + 88, 3, -4096),
            memory_event(t + 11, 1, 1024),
            memory_event(t + 60, 1, -1024),
            memory_event(t + 50, 2, 2048, tid=2),
            memory_event(t + 70, 2, -2048),
            scope("nn.Module: Linear_0", t + 5, 20, cat="python_function"),
            scope("aten::linear", t + 10, 5),
            scope("autograd::engine::evaluate_function: AddmmBackward0", t + 45, 20, tid=2),
        ]
    return {"traceEvents": events}


@pytest.mark.parametrize("zipped", [False, True])
def test_imports_a_kineto_trace(zipped: bool, tmp_path: Path) -> None:
    content = json.dumps(kineto_document()).encode()
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(content) if zipped else content)
    imported = importers.read(path)
    trace = imported.trace
    assert imported.kind == "kineto trace"
    assert imported.device == "cuda:0"
    assert imported.torch_reserved == 1 << 21
    assert trace.requests.size.tolist() == [1024, 2048, 4096] * 3
    assert len(trace.iterations) == 4
    assert phase_names(imported, 1) == ["forward 0", "backward 0", "optimizer"]
    assert trace.layers[:2] == ["Linear_0", "AddmmBackward0"]


def test_the_cpu_is_imported_when_there_is_nothing_else() -> None:
    document = kineto_document()
    for event in document["traceEvents"]:
        if event["name"] == "[memory]":
            event["args"]["Device Type"] = 0
            event["args"]["Device Id"] = -1
    assert importers.from_bytes(json.dumps(document).encode(), "x").device == "cpu"
    document["traceEvents"].append(memory_event(1, 9, 512))
    assert importers.from_bytes(json.dumps(document).encode(), "x").device == "cuda:0"


@pytest.mark.parametrize(
    ("key", "value"),
    [("Bytes", 1 << 63), ("Bytes", "1"), ("Addr", -1), ("Addr", None), ("Device Type", "cuda")],
)
def test_a_damaged_memory_event_is_named(key: str, value: Any) -> None:
    document = kineto_document()
    document["traceEvents"][2]["args"][key] = value
    with pytest.raises(TraceError, match=rf"traceEvents\[2\]: '{key}'"):
        importers.from_bytes(json.dumps(document).encode(), "x")


@pytest.mark.parametrize("ts", ["soon", None, "NaN", "1e999"])
def test_a_memory_event_needs_a_time(ts: Any) -> None:
    document = kineto_document()
    document["traceEvents"][2]["ts"] = ts
    with pytest.raises(TraceError, match=r"traceEvents\[2\]: 'ts' is no time"):
        importers.from_bytes(json.dumps(document).encode(), "x")


def test_negative_times_are_times() -> None:
    document = kineto_document()
    for event in document["traceEvents"]:
        if "ts" in event:
            event["ts"] -= 1e6
    trace = importers.from_bytes(json.dumps(document).encode(), "x").trace
    assert len(trace.iterations) == 4


def test_trace_keeps_the_assumptions() -> None:
    imported = load(trained(3).document())
    assert imported.trace.info["assumptions"] == "\n".join(imported.assumptions)
    assert imported.trace.info["source"] == "pytorch snapshot"


def test_clipping_between_backward_and_the_optimizer_is_no_forward() -> None:
    writer = SnapshotWriter()
    for _ in range(3):
        for frames in (FORWARD, BACKWARD, FORWARD):
            for _ in range(9):
                writer.free(writer.alloc(1 << 20, frames))
        writer.annotate("START", "Optimizer.step#SGD.step")
        writer.free(writer.alloc(512))
        writer.annotate("END", "Optimizer.step#SGD.step")
    imported = load(writer.document())
    assert phase_names(imported, 1) == ["forward 0", "backward 0", "other", "optimizer"]


def test_progress_is_told_from_beginning_to_end() -> None:
    told: list[float] = []
    importers.from_bytes(dump(trained(3).document()), "x", progress=told.append)
    assert told == sorted(told)
    assert told[0] > 0.5, "the pickle has been read"
    assert told[-1] <= 1.0


def test_progress_is_told_while_kineto_events_are_read() -> None:
    told: list[float] = []
    document = kineto_document()
    document["traceEvents"] += [{"ph": "M", "name": "x"}] * 30_000
    importers.from_bytes(json.dumps(document).encode(), "x", progress=told.append)
    assert len(told) > 4
    assert told == sorted(told)
    assert told[0] < 0.5
    assert told[-1] <= 1.0


def test_kineto_events_may_stand_alone_and_come_last() -> None:
    document = kineto_document()
    expected = importers.from_bytes(json.dumps(document).encode(), "x").trace.fingerprint
    events = document.pop("traceEvents")
    for other in (events, {"schemaVersion": {"a": [1, {"traceEvents": 3}]}, "traceEvents": events}):
        for indent in (None, 1):
            content = json.dumps(other, indent=indent).encode()
            assert importers.from_bytes(content, "x").trace.fingerprint == expected


def test_events_of_a_newer_torch_are_ignored_and_told() -> None:
    writer = trained(3)
    expected = load(writer.document()).trace.fingerprint
    for row in (40, 20, 0):
        writer.events.insert(row, {"action": "vanish\x1b", "addr": "?", "size": []})
    imported = load(writer.document())
    assert "3 events of the kind 'vanish\\x1b' are not known here: ignored" in imported.assumptions
    assert imported.trace.fingerprint == expected


def test_a_history_that_leaves_out_when_frees_are_completed() -> None:
    """As with `_record_memory_history(skip_actions=["free_completed"])`."""
    document = trained(3).document()
    expected = load(document)
    (events,) = document["device_traces"]
    document["device_traces"] = [[e for e in events if e["action"] != "free_completed"]]
    imported = load(document)
    assert any("requested and no completed frees" in text for text in imported.assumptions)
    assert imported.trace.requests.size.tolist() == expected.trace.requests.size.tolist()
    assert imported.trace.requests.upper.tolist() == expected.trace.requests.upper.tolist()
    document["device_traces"] = [[e for e in events if e["action"] != "free_requested"]]
    assert load(document).trace.fingerprint == expected.trace.fingerprint
