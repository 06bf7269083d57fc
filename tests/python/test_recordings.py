"""Recordings of whole runs, of several kinds: stalloc reserves no more than torch for any."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from snapshot_documents import FORWARD, SnapshotWriter, dump, last_step, trained

from stalloc import _core, cli, importers, recordings, replaying, torch_settings
from stalloc.tables import NEVER
from stalloc.trace import Trace
from stalloc.verdicts import Comparison

MIB = 1 << 20


def inference(seed: int = 1) -> SnapshotWriter:
    """One pass: weights, a growing cache, temporaries of many sizes."""
    writer, rng = SnapshotWriter(), random.Random(seed)
    for _ in range(24):
        writer.alloc(rng.randrange(1, 12) * MIB + 512, FORWARD)
    for _ in range(60):
        temporaries = [writer.alloc(rng.randrange(1 << 16, 24 * MIB), FORWARD) for _ in range(4)]
        writer.alloc(rng.randrange(1 << 16, MIB), FORWARD)
        rng.shuffle(temporaries)
        for address in temporaries:
            writer.free(address)
    return writer


def pruning(seed: int = 2) -> SnapshotWriter:
    """Weights are replaced by smaller ones, which differ each time."""
    writer, rng = SnapshotWriter(), random.Random(seed)
    weights = [writer.alloc(rng.randrange(4, 40) * MIB, FORWARD) for _ in range(16)]
    sizes = [writer.live[address][0] for address in weights]
    for _ in range(8):
        for i in range(16):
            mask = writer.alloc(sizes[i] // 4, FORWARD)
            sizes[i] = int(sizes[i] * rng.uniform(0.7, 0.98))
            smaller = writer.alloc(sizes[i], FORWARD)
            writer.free(weights[i])
            writer.free(mask)
            weights[i] = smaller
    return writer


def offload(streams: int = 10) -> SnapshotWriter:
    """Layers come in on streams of their own, one after another, and go again."""
    writer = SnapshotWriter()
    for layer in range(40):
        stream = layer % streams
        weight = writer.alloc(30 * MIB + 512 * (layer % 7), FORWARD, stream=stream << 8)
        activation = writer.alloc(7 * MIB, FORWARD)
        writer.free(weight)
        writer.free(activation)
    return writer


KINDS = {"inference": inference, "pruning": pruning, "offload": offload}


def replayed(trace: Trace, **options: Any) -> tuple[list[replaying.Replay], Any]:
    ours = recordings.plan_recording(trace, time_limit=2.0, **options)
    return [*replaying.replay_both_torch(ours.trace), ours.row], ours


def whole_pages(ours: recordings.PlannedRecording) -> int:
    """The plan's memory as a device gives it."""
    return sum(
        -(-size // replaying.PAGE) * replaying.PAGE for size in (ours.plan.pool, ours.plan.resident)
    )


@pytest.mark.parametrize("kind", ["inference", "offload"])
def test_one_pass_is_planned_as_a_whole(kind: str) -> None:
    document = KINDS[kind]().document()
    trace = importers.from_bytes(dump(document), "snapshot.pickle", repetitions=1).trace
    (torch, expandable, stalloc), ours = replayed(trace)
    assert stalloc.scope == recordings.RECORDING
    assert stalloc.hit_rate == 1.0
    assert stalloc.peak_load == torch.peak_load
    assert stalloc.peak_reserved <= min(torch.peak_reserved, expandable.peak_reserved)
    assert stalloc.peak_load / ours.plan.pool >= 0.985
    assert whole_pages(ours) == stalloc.peak_reserved


@pytest.mark.parametrize("seed", range(1, 6))
def test_one_pass_that_torch_serves_within_a_hundredth_is_not_planned_as_a_whole(seed: int) -> None:
    document = pruning(seed).document()
    trace = importers.from_bytes(dump(document), "snapshot.pickle", repetitions=1).trace
    (torch, expandable, stalloc), _ = replayed(trace)
    assert stalloc.scope == recordings.ITERATION
    assert stalloc.peak_load == torch.peak_load
    assert stalloc.peak_reserved <= min(torch.peak_reserved, expandable.peak_reserved)
    assert stalloc.peak_load / stalloc.peak_reserved >= 0.985


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_recording_is_no_worse_either(kind: str) -> None:
    """Blocks that are live before the first event have a place in the plan, too."""
    document = dump(KINDS[kind]().document(30))
    trace = importers.from_bytes(document, "snapshot.pickle").trace
    (torch, expandable, stalloc), _ = replayed(
        trace, once=lambda: importers.from_bytes(document, "s.pickle", repetitions=1).trace
    )
    assert stalloc.peak_reserved <= min(torch.peak_reserved, expandable.peak_reserved)


@pytest.mark.parametrize("kind", ["inference", "pruning"])
def test_repetitions_that_nobody_recorded_are_not_planned_as_a_whole(kind: str) -> None:
    trace = importers.from_bytes(dump(KINDS[kind]().document(30)), "snapshot.pickle").trace
    assert recordings.is_repeated(trace)
    _, ours = replayed(trace)
    assert ours.row.scope == recordings.ITERATION
    assert ours.repeated is None


def test_training_is_not_planned_as_a_whole() -> None:
    """Even where the plan of an iteration wastes more than the one of the recording would."""
    writer = trained(6)
    for size in range(40, 60):  # blocks that come once
        writer.free(writer.alloc(size * MIB, FORWARD))
    trace = importers.from_bytes(dump(writer.document()), "snapshot.pickle").trace
    assert recordings.is_training(trace)
    _, ours = replayed(trace)
    assert ours.row.scope == recordings.ITERATION
    assert ours.row.peak_efficiency < recordings.ENOUGH


def test_first_iteration_behind_many_weights_is_served_from_the_plan() -> None:
    """As in a forward-only recording, where the weights lie in the same phase."""
    writer = SnapshotWriter()
    for i in range(400):
        writer.alloc((1 + i % 3) * MIB, FORWARD)
    for i in range(50):
        writer.free(writer.alloc(5 * MIB + 512 * i, FORWARD))
        writer.alloc(2 * MIB + 512 * i, FORWARD)
    trace = importers.from_bytes(dump(writer.document(400)), "snapshot.pickle").trace
    (torch, _, stalloc), ours = replayed(trace)
    assert stalloc.scope == recordings.ITERATION
    assert stalloc.hit_rate == 1.0
    assert stalloc.peak_reserved == whole_pages(ours) <= torch.peak_reserved


def test_streams_share_addresses_where_that_saves_memory() -> None:
    trace = importers.from_bytes(dump(offload().document()), "s.pickle", repetitions=1).trace
    _, ours = replayed(trace)
    assert ours.row.streams == "ordered"
    assert ours.row.peak_reserved < 2 * 38 * MIB
    one = importers.from_bytes(dump(offload(1).document()), "s.pickle", repetitions=1).trace
    assert replayed(one)[1].row.streams == "separate"


def test_one_pass_keeps_sizes_lifetimes_and_order() -> None:
    trace = importers.from_bytes(dump(inference().document()), "s.pickle", repetitions=1).trace
    once = recordings.one_pass(trace)
    assert once.iterations == [0, trace.end + 1]
    assert once.requests.size.tolist() == trace.requests.size.tolist()
    assert once.requests.lower.tolist() == trace.requests.lower.tolist()
    never = trace.requests.upper == NEVER
    assert never.any()
    assert set(once.requests.upper[never].tolist()) == {trace.end}
    assert once.requests.upper[~never].tolist() == trace.requests.upper[~never].tolist()
    assert bool(once.profile().requests.plannable.all())


def test_training_has_the_plan_of_an_iteration_and_its_weights_resident() -> None:
    trace = importers.from_bytes(dump(last_step()), "s").trace
    (torch, expandable, stalloc), ours = replayed(trace)
    assert stalloc.scope == recordings.ITERATION
    assert ours.plan.resident > 0
    assert stalloc.peak_reserved == whole_pages(ours)
    assert stalloc.peak_reserved <= min(torch.peak_reserved, expandable.peak_reserved)


def test_a_plan_that_comes_later_has_no_resident_region() -> None:
    trace = importers.from_bytes(dump(last_step()), "snapshot.pickle").trace
    _, early = replayed(trace)
    _, later = replayed(trace, startup=False)
    assert later.row.scope == recordings.ITERATION
    assert later.row.mallocs > early.row.mallocs == 2
    assert later.row.peak_reserved >= early.row.peak_reserved


def test_memory_counts_in_whole_pages_of_the_device() -> None:
    """As in torch's rows: a run of one small block saves nothing."""
    writer = SnapshotWriter()
    writer.free(writer.alloc(512, FORWARD))
    trace = importers.from_bytes(dump(writer.document()), "snapshot.pickle").trace
    (torch, expandable, stalloc), ours = replayed(trace)
    assert torch.peak_reserved == stalloc.peak_reserved == replaying.PAGE
    given = Comparison.of(trace, ours, [torch, expandable], expandable=False)
    assert given.verdict.startswith("stalloc would not save anything")


def test_the_startup_of_a_whole_run_is_served_too() -> None:
    trace = importers.from_bytes(dump(trained(6).document()), "snapshot.pickle").trace
    (torch, expandable, stalloc), ours = replayed(trace)
    assert stalloc.scope == recordings.ITERATION
    assert stalloc.peak_reserved == whole_pages(ours)
    assert stalloc.peak_reserved <= min(torch.peak_reserved, expandable.peak_reserved)


def test_a_trace_of_its_own_is_not_planned_as_a_whole() -> None:
    trace = importers.from_bytes(dump(pruning().document()), "s.pickle", repetitions=1).trace
    trace.info = {name: text for name, text in trace.info.items() if name != "source"}
    assert recordings.plan_recording(trace, time_limit=2.0).row.scope == recordings.ITERATION


def report(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert cli.main(["replay", *args, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(dump(offload().document(30)))
    return str(path)


def test_the_verdict_names_the_part_that_the_plan_covers(
    snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recording without repetition is replayed as it is, even if the importer repeats it."""
    for repeat in ("1", "5"):
        given = report(capsys, snapshot, "--repeat", repeat)
        assert given["best"] == "stalloc"
        assert given["iterations"] == 1
        assert given["rows"][2]["scope"] == "recording"
        assert given["verdict"].startswith("With stalloc you would save")
        assert "`stalloc replay IN -o PLAN` writes it" in given["verdict"]
        assert (
            "the same requests once again. If the program repeats its iteration" in given["verdict"]
        )
        assert given["repeated"]["peak_reserved"] > given["rows"][2]["peak_reserved"]
        assert not any("is repeated" in text for text in given["assumptions"])
        assert cli.main(["replay", snapshot, "--repeat", repeat]) == 0
        output = capsys.readouterr().out
        assert "the recording as a whole, once" in output
        assert "in one pass" in output


def test_a_written_plan_serves_the_recording_with_the_same_figures(
    snapshot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = str(tmp_path / "plan.json")
    made = report(capsys, snapshot, "-o", plan)
    assert made["output"] == plan
    given = report(capsys, snapshot, "--plan", plan)
    assert given["rows"] == made["rows"]
    assert given["saved"] == made["saved"]
    assert "makes the same requests once again" in given["verdict"]
    assert "-o PLAN" not in given["verdict"]
    assert cli.main(["replay", snapshot, "-o", plan]) == 1
    assert "--force" in capsys.readouterr().err
    assert cli.main(["replay", snapshot, "-o", plan, "--force"]) == 0


def steady() -> SnapshotWriter:
    """Blocks that need much less than the other plan, and that torch serves without loss."""
    writer = SnapshotWriter()
    for _ in range(8):
        blocks = [writer.alloc(2 * MIB, FORWARD) for _ in range(10)]
        for block in blocks:
            writer.free(block)
    return writer


def test_the_verdict_recommends_the_allocator_that_reserves_less(tmp_path: Path) -> None:
    """With a plan of another run, stalloc saves nothing; the verdict says what to use instead."""
    trace = importers.from_bytes(dump(steady().document()), "s.pickle", repetitions=1).trace
    other = recordings.one_pass(
        importers.from_bytes(dump(offload(streams=20).document()), "s.pickle", repetitions=1).trace
    ).plan()

    ours = recordings.replayed(trace, other, given=True)
    torch = replaying.replay_both_torch(trace)
    given = Comparison.of(trace, ours, torch, expandable=False)
    assert given.saved is not None
    assert given.saved == torch[0].peak_reserved - ours.row.peak_reserved <= 0
    assert given.best != "stalloc"
    assert "more than" in given.verdict
    assert f"the plan fits {ours.row.hit_rate:.1%} of the requests" in given.verdict
    assert "--time-limit" not in given.verdict
    expected = {
        "torch": "stay with torch's allocator",
        "torch, expandable segments": "use PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    }
    assert expected[str(given.best)] in given.verdict


def test_a_large_difference_to_the_measurement_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = last_step()
    cached = {"address": 1 << 20, "total_size": 1 << 30, "stream": 0, "device": 0, "blocks": []}
    document["segments"].append(cached)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(dump(document))
    given = report(capsys, str(path))
    torch, _, stalloc = given["rows"]
    assert torch["measured"] > torch["peak_reserved"]
    assert given["saved"] == torch["peak_reserved"] - stalloc["peak_reserved"]
    (note,) = given["notes"]
    assert "more than its model" in note
    assert "MiB were live before the recording" in note
    assert "CUDA graphs" not in note
    assert cli.main(["replay", str(path), "--json", "--capacity", "1MiB"]) == 3
    assert json.loads(capsys.readouterr().out)["notes"] == []


def test_torch_settings_are_those_given(snapshot: str, capsys: pytest.CaptureFixture[str]) -> None:
    default = report(capsys, snapshot)
    given = report(
        capsys, snapshot, "--torch-settings", "expandable_segments:True,roundup_power2_divisions:2"
    )
    assert given["saved"] == given["rows"][1]["peak_reserved"] - given["rows"][2]["peak_reserved"]
    assert given["rows"][0]["peak_reserved"] != default["rows"][0]["peak_reserved"]
    assert given["rows"][2] == default["rows"][2]
    assert any("settings given" in text for text in given["assumptions"])


def test_requests_outside_the_pool_lie_in_the_fallback_of_the_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(dump(pruning().document(30)))

    def row(*options: str) -> dict[str, Any]:
        return report(capsys, str(path), "--no-startup", *options)["rows"][2]

    native, compat = row(), row("--fallback", "stalloc")
    assert (native["fallback"], compat["fallback"]) == ("torch", "stalloc")
    settings = ("--torch-settings", "expandable_segments:True")
    assert row(*settings)["maps"] > native["maps"]
    assert row(*settings, "--fallback", "stalloc") == compat
    assert native["peak_load"] == compat["peak_load"]
    assert native["hit_rate"] == compat["hit_rate"]


def test_the_fallback_is_that_of_the_recordings_device() -> None:
    for device, fallback in (("cuda", "torch"), ("hip", "stalloc"), ("cpu", "stalloc")):
        trace = importers.from_bytes(dump(last_step()), "snapshot.pickle").trace
        trace.info = {**trace.info, "device": device}
        assert replaying.default_fallback(trace) == fallback
        assert recordings.plan_recording(trace, time_limit=2.0).row.fallback == fallback


def test_a_replay_names_its_fallback(snapshot: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay", snapshot]) == 0
    assert "torch's allocator, as in native mode" in capsys.readouterr().out
    assert cli.main(["replay", snapshot, "--fallback", "stalloc"]) == 0
    assert "stalloc's own, as in compat mode" in capsys.readouterr().out


def test_the_rounding_of_blocks_that_are_not_split_is_replayed() -> None:
    model = {}
    for text in ("max_split_size_mb:64", "max_split_size_mb:64,max_non_split_rounding_mb:40"):
        trace = importers.from_bytes(dump(last_step()), "snapshot.pickle").trace
        settings = replaying.recorded_settings(
            torch_settings.applied(trace, torch_settings.parse(text))
        )
        allocator = _core.CachingModel(settings)
        allocator.free(allocator.malloc(100 * MIB))
        allocator.malloc(70 * MIB)
        model[text] = allocator.stats()["reserved"]
    assert list(model.values()) == [170 * MIB, 100 * MIB]


@pytest.mark.parametrize(
    ("text", "divisions"),
    [
        ("roundup_power2_divisions:4", [4] * 16),
        ("roundup_power2_divisions:[1:2,4:8,>:1]", [2, 0, 8, *[1] * 13]),
        ("roundup_power2_divisions:[256:4]", [4] * 9 + [0] * 7),
    ],
)
def test_divisions_are_read_as_torch_reads_them(text: str, divisions: list[int]) -> None:
    info = torch_settings.parse(f"max_split_size_mb:64,{text},garbage_collection_threshold:0.8")
    assert info[replaying.DIVISIONS] == ",".join(map(str, divisions))
    assert info[replaying.MAX_SPLIT_SIZE] == str(64 * MIB)
    assert info[replaying.GARBAGE_COLLECTION] == "0.8"
    assert info[replaying.EXPANDABLE_SEGMENTS] == "False"


@pytest.mark.parametrize(
    "text",
    [
        *("expandable_segments", "expandable_segments:perhaps", "max_split_size_mb:-1", "x:1"),
        *("garbage_collection_threshold:1.5", "roundup_power2_divisions:[1:3]", "a:[1,b:2"),
        *(
            "max_split_size_mb:19",
            "max_non_split_rounding_mb:1",
            "backend:cudaMallocAsync",
            "per_process_memory_fraction:0.5",
        ),
    ],
)
def test_settings_that_torch_does_not_have_are_wrong_usage(text: str, snapshot: str) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["replay", snapshot, f"--torch-settings={text}"])
    assert exit_.value.code == 2


def test_the_measured_memory_counts_for_its_settings_only() -> None:
    trace = importers.from_bytes(dump(last_step()), "snapshot.pickle").trace
    assert "torch_reserved" in trace.info
    same = torch_settings.applied(trace, torch_settings.parse(""))
    assert "torch_reserved" in same.info
    other = torch_settings.applied(same, torch_settings.parse("expandable_segments:True"))
    assert "torch_reserved" not in other.info


@pytest.mark.parametrize("seed", range(4))
def test_no_two_live_requests_share_an_address(seed: int) -> None:
    """Brute force compares the addresses that the replay tells."""
    writer = inference(seed) if seed % 2 else pruning(seed)
    trace = importers.from_bytes(dump(writer.document()), "s.pickle", repetitions=1).trace
    ours = recordings.plan_recording(trace, time_limit=2.0)
    address = _core.placements_planned(ours.trace._core, ours.plan._core)["address"]
    requests = trace.requests
    end = address + requests.size
    assert (address >= 0).all()
    for row in range(len(address)):
        meets = (requests.lower < requests.upper[row]) & (requests.upper > requests.lower[row])
        meets &= (address < end[row]) & (end > address[row])
        assert np.flatnonzero(meets).tolist() == [row]
