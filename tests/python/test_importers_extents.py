"""Importers: the extents of recordings whose batches change, found from sizes alone."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, settings
from hypothesis import given as for_all
from hypothesis import strategies as st
from snapshot_documents import (
    BACKWARD,
    FORWARD,
    STEP,
    Shape,
    SnapshotWriter,
    changing,
    changing_sizes,
    dump,
    frame,
)
from test_importers import load, memory_event, scope

from stalloc import Plan, TraceError, cli, importers, recordings, replaying
from stalloc.importers import Imported
from stalloc.importers.extents import find_extents
from stalloc.report import scene_of_trace
from stalloc.tables import LAW_PROOFS, PHASE_KINDS

LENGTHS = (128, 512, 300, 77, 400, 256, 511, 33)
BETWEEN = (500, 129, 34, 301, 77, 412)
SHAPES = tuple(zip((4, 2, 3, 1, 4, 2, 3, 4), LENGTHS, strict=True))
EXTENTS = "inputs are not recorded: extents are taken from sizes"


def imported(*shapes: Shape, **options: Any) -> Imported:
    """A recording with one microbatch an iteration."""
    return load(changing([[shape] for shape in shapes], **options).document())


def of_lengths(lengths: tuple[int, ...], **options: Any) -> Imported:
    return imported(*((4, tokens) for tokens in lengths), **options)


def values(given: Imported) -> list[list[int]]:
    rows: list[list[int]] = given.trace.extents.values.tolist()
    return rows


def has_no_extents(given: Imported) -> bool:
    told = any(text.startswith(EXTENTS) for text in given.assumptions)
    return given.trace.extent_names == [] and not told


def proofs(plan: Plan) -> set[str]:
    """The proofs of the laws that decisions follow."""
    used = plan.decisions.law[plan.decisions.law >= 0]
    return {LAW_PROOFS[proof] for proof in plan.laws.proof[used]}


def test_tokens_are_found_and_stated() -> None:
    given = of_lengths(LENGTHS)
    assert given.trace.extent_names == ["size.0"]
    assert values(given) == [[tokens] for tokens in LENGTHS]
    (text,) = (text for text in given.assumptions if text.startswith(EXTENTS))
    assert "in 8 of 8 forwards, and 100% of the sizes" in text
    assert "size.0 = size of a request of model.py:101 forward / 8, from 33 to 512" in text
    assert text in given.trace.info["assumptions"]


def test_all_sizes_follow_proven_laws() -> None:
    plan = of_lengths(LENGTHS).trace.plan()
    assert plan.extents == {"size.0": 512}
    assert proofs(plan) == {"proven"}
    assert len(plan.groups) == 0
    assert {"affine", "quadratic"} <= set(plan.law_kinds)


@pytest.mark.parametrize("tokens", BETWEEN)
def test_the_plan_has_the_sizes_of_lengths_in_between(tokens: int) -> None:
    plan = of_lengths(LENGTHS).trace.plan()
    sizes = plan.resized({"size.0": tokens}, time_limit=0.1).decisions.size.tolist()
    recorded = of_lengths((tokens,) * 4).trace.plan().decisions.size.tolist()
    assert sorted(sizes) == sorted(recorded)
    assert set(changing_sizes(4, tokens)) <= set(sizes)


def test_lengths_that_are_padded_count_in_tokens() -> None:
    """Otherwise no length between the multiples of 64 would have a number."""
    lengths = (128, 512, 320, 64, 384)
    given = of_lengths(lengths)
    assert values(given) == [[tokens] for tokens in lengths]


def test_the_plan_serves_lengths_in_between() -> None:
    plan = of_lengths(LENGTHS).trace.plan()
    other = of_lengths(BETWEEN)
    assert values(other) == [[tokens] for tokens in BETWEEN]
    served = recordings.replayed(other.trace, plan, given=True).row
    assert served.hit_rate is not None
    assert served.hit_rate >= 0.99
    assert served.peak_reserved <= plan.pool + plan.resident + 2 * replaying.PAGE


@pytest.mark.parametrize("rounded", [1, 512])
@pytest.mark.parametrize("rows", ["same", "changing"])
def test_a_changing_recording_reserves_less_than_torch(rows: str, rounded: int) -> None:
    shapes = SHAPES if rows == "changing" else tuple((4, tokens) for tokens in LENGTHS)
    trace = imported(*shapes, rounded=rounded).trace
    ours = recordings.plan_recording(trace, time_limit=2.0)
    for torch in replaying.replay_both_torch(ours.trace):
        assert ours.row.peak_reserved < torch.peak_reserved
    assert ours.row.hit_rate == 1.0


def test_rows_and_tokens_are_two_extents() -> None:
    """The longest batch has the most rows, too."""
    given = imported(*SHAPES[:-1], (4, 512))
    assert given.trace.extent_names == ["size.0", "size.1"]
    found = {tuple(column) for column in zip(*values(given), strict=True)}
    lengths = (*LENGTHS[:-1], 512)
    all_tokens = tuple(r * t for (r, _), t in zip(SHAPES, lengths, strict=True))
    assert found == {lengths, all_tokens}
    plan = given.trace.plan()
    assert proofs(plan) == {"proven"}
    assert "quadratic" in plan.law_kinds


def test_no_batch_is_planned_that_nobody_has() -> None:
    """Batches of many rows are short: most rows times most tokens is far above each of them."""
    shapes = tuple(zip((14, 2, 5, 20, 4, 7, 2, 40), LENGTHS, strict=True))
    given = imported(*shapes)
    assert len(given.trace.extent_names) == 2
    profile = given.trace.profile()
    each = [imported(*[shape] * 4).trace.profile().load_bytes for shape in shapes]
    assert max(each) < profile.load_bytes < 1.06 * max(each)


def test_microbatches_have_extents_of_their_own() -> None:
    pairs = list(zip(LENGTHS, reversed(LENGTHS), strict=True))
    given = load(changing([[(4, a), (4, b)] for a, b in pairs]).document())
    assert values(given) == [[tokens] for pair in pairs for tokens in pair]
    assert proofs(given.trace.plan()) == {"proven"}


def test_the_microbatches_of_an_only_iteration_suffice() -> None:
    given = load(changing([[(4, tokens) for tokens in LENGTHS]]).document())
    assert values(given) == [[tokens] for tokens in LENGTHS] * importers.REPETITIONS


@pytest.mark.parametrize(
    "lengths",
    [(300,) * 6, (300, 400, 300, 400, 300), (300, 400)],
    ids=["constant", "two lengths", "two iterations"],
)
def test_fewer_than_three_lengths_give_no_extent(lengths: tuple[int, ...]) -> None:
    assert has_no_extents(of_lengths(lengths))


def noise(seed: int, count: int) -> Callable[[int], list[int]]:
    rng = random.Random(seed)
    return lambda _: [rng.randrange(1, 200) * 512 for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_noise_gives_no_extent(seed: int) -> None:
    assert has_no_extents(of_lengths((300,) * 8, noise=noise(seed, 4)))


def test_noise_beside_tokens_follows_no_law() -> None:
    given = of_lengths(LENGTHS, noise=noise(1, 1))
    assert values(given) == [[tokens] for tokens in LENGTHS]
    plan = given.trace.plan()
    assert proofs(plan) == {"proven"}
    assert len(plan.groups) > 0, "the noise is dynamic"


def test_much_noise_beside_tokens_gives_no_extent() -> None:
    assert has_no_extents(of_lengths(LENGTHS, noise=noise(1, 4)))


def test_experts_give_no_extent() -> None:
    """Tokens are dealt to eight experts anew in each iteration, two requests for each."""
    rng = random.Random(0)

    def dealt(_: int) -> list[int]:
        cuts = [0, *sorted(rng.sample(range(1, 2048), 7)), 2048]
        counts = [b - a for a, b in itertools.pairwise(cuts)]
        return [size for count in counts for size in (1024 * count, 4096 * count)]

    assert has_no_extents(of_lengths((300,) * 8, noise=dealt))


def forwards(*iterations: list[int]) -> SnapshotWriter:
    """Iterations whose forward has a request of each size at one site."""
    writer = SnapshotWriter()
    for sizes in iterations:
        kept = [writer.alloc(size, FORWARD) for size in sizes]
        for request in reversed(kept):
            writer.free(writer.alloc(512, BACKWARD))
            writer.free(request)
        writer.free(writer.alloc(4096, STEP))
    return writer


def test_one_request_that_varies_is_no_evidence() -> None:
    writer = forwards(*([8 * n, 4096, 8192, 1024] for n in LENGTHS))
    assert has_no_extents(load(writer.document()))


def test_a_forward_with_requests_of_its_own_is_told_by_the_others() -> None:
    usual = [[8 * n, 64 * n, 256 * n, 4 * n * n] for n in LENGTHS]
    odd = [777, *usual[3]]
    given = load(forwards(*usual[:3], odd, *usual[4:]).document())
    assert values(given) == [[n] for n in LENGTHS]


def test_a_forward_that_breaks_the_laws_has_no_extent() -> None:
    usual = [[8 * n, 64 * n, 256 * n, 4 * n * n] for n in LENGTHS]
    odd = [1, 8 * 77, 1000, 1003, 512]
    given = load(forwards(*usual[:3], odd, *usual[4:]).document())
    assert values(given) == [[n] if n != 77 else [-1] for n in LENGTHS]


TERMS = st.tuples(st.integers(1, 4096), st.integers(0, 1), st.integers(0, 2))
POLYNOMIALS = st.lists(
    st.tuples(TERMS, st.sampled_from([0, 0, 512, 4000])) | st.tuples(TERMS, TERMS, st.just(0)),
    min_size=3,
    max_size=8,
)
BATCHES = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 600)),
    min_size=5,
    max_size=8,
    unique_by=lambda shape: shape[1],
)


@for_all(BATCHES, POLYNOMIALS)
@example(  # the third size equals the fourth one in the last three iterations
    [(2, 3), (2, 5), (1, 1), (1, 2), (1, 4)],
    [
        ((1, 0, 1), 0),
        ((1, 1, 0), 512),
        ((1, 0, 1), (1, 1, 2), 0),
        ((1, 0, 2), (1, 1, 1), 0),
    ],
)
@settings(max_examples=200, deadline=None)
def test_proven_laws_give_the_recorded_sizes(shapes: list[Shape], polynomials: Any) -> None:
    """The sizes are polynomials of rows and tokens, whether extents are found or not."""
    recorded = [
        [
            sum(factor * rows**i * tokens**j for factor, i, j in terms) + constant
            for *terms, constant in polynomials
        ]
        for rows, tokens in shapes
    ]
    given = load(forwards(*recorded).document())
    trace = given.trace
    plan = trace.plan(time_limit=0.1)
    if not trace.extent_names or proofs(plan) - {"proven"}:
        return
    forward = int(np.flatnonzero(plan.phases.kind == PHASE_KINDS.index("forward"))[0])
    first = np.flatnonzero(plan.decisions.phase == forward)
    if len(first) != len(polynomials):
        return
    lawful = plan.decisions.law[first] >= 0
    # A law may leave out the first iteration, which warms up.
    for row, sizes in list(zip(values(given), recorded, strict=True))[1:]:
        if min(row) < 0 or not plan.extents:
            continue
        names = {f"size.{i}": value for i, value in enumerate(row) if f"size.{i}" in plan.extents}
        resized = plan.resized(names, time_limit=0.1).decisions.size[first]
        assert resized[lawful].tolist() == np.array(sizes)[lawful].tolist()


def adversarial(*turns: dict[str, list[int]]) -> SnapshotWriter:
    """Programs that step in turn; each turn has the sizes of each program's forward."""
    writer = SnapshotWriter()
    for turn in turns:
        for program, sizes in turn.items():
            call = [*FORWARD[:2], frame("forward", f"/home/me/{program}.py", 10), *FORWARD[3:]]
            kept = [writer.alloc(size, call) for size in sizes]
            for request in reversed(kept):
                writer.free(writer.alloc(512, BACKWARD))
                writer.free(request)
            for _ in sizes:
                writer.free(writer.alloc(4096, STEP))
    return writer


def test_two_programs_that_take_turns_have_extents_each() -> None:
    def sizes(tokens: int, layers: int) -> list[int]:
        each = [size for layer in range(layers) for size in (512 * tokens, layer * 4096 + 512)]
        return [8 * tokens, *each, 12 * tokens * tokens]

    turns = [{"critic": sizes(tokens, 6), "generator": sizes(tokens, 9)} for tokens in LENGTHS]
    given = load(adversarial(*turns).document())
    assert any("every 2th step of an optimizer" in text for text in given.assumptions)
    assert values(given) == [[tokens] for tokens in LENGTHS for _ in range(2)]
    told = [text for text in given.assumptions if text.startswith(EXTENTS)]
    assert [name in text for text, name in zip(told, ("critic", "generator"), strict=True)]
    plan = given.trace.plan()
    assert proofs(plan) == {"proven"}
    assert len(plan.groups) == 0


def test_a_program_with_fewer_extents_than_another_has_ones() -> None:
    """The critic sees the tokens alone, and the generator rows and tokens."""
    turns = []
    for rows, tokens in SHAPES:
        both, square = rows * tokens, tokens * tokens
        sizes = [8 * tokens, 64 * both, 256 * both, 4 * square, 40 * rows * square]
        turns.append({"critic": [8 * tokens, 512 * tokens, 4 * square], "generator": sizes})
    given = load(adversarial(*turns).document())
    assert given.trace.extent_names == ["size.0", "size.1"]
    assert values(given)[::2] == [[tokens, 1] for tokens in LENGTHS]
    assert all(min(row) > 1 for row in values(given)[1::2])
    assert proofs(given.trace.plan()) == {"proven"}


def test_shapes_that_sizes_have_as_quotients_only() -> None:
    """No request is proportional to the tokens alone, and some sizes need them."""

    def sizes(rows: int, tokens: int) -> list[int]:
        both, square = rows * tokens, tokens * tokens
        mixed = [factor * square + 8 * both for factor in (100, 400)]
        return [8 * both, 64 * both, 4 * rows * square, 12 * rows * square, *mixed]

    given = load(forwards(*(sizes(*shape) for shape in SHAPES)).document())
    tokens = [column for column in zip(*values(given), strict=True) if column == LENGTHS]
    assert len(tokens) == 1
    assert "forward / size of" in given.trace.info["assumptions"]
    assert proofs(given.trace.plan()) == {"proven"}


def test_a_kineto_trace_has_extents_too() -> None:
    events = []
    for step, tokens in enumerate(LENGTHS):
        t = step * 1000.0
        events += [
            scope("nn.Module: Linear_0", t + 5, 20, cat="python_function"),
            scope("autograd::engine::evaluate_function: AddmmBackward0", t + 45, 30, tid=2),
            scope("Optimizer.step#SGD.step", t + 80, 10, cat="user_annotation"),
            memory_event(t + 85, 9, 4096),
            memory_event(t + 88, 9, -4096),
        ]
        for i, size in enumerate((512 * tokens, 4096 * tokens, 512 * tokens * tokens)):
            events.append(memory_event(t + 10 + i, i, size))
            events.append(memory_event(t + 50 + 2 * i, 100 + i, size, tid=2))
            events.append(memory_event(t + 51 + 2 * i, i, -size, tid=2))
            events.append(memory_event(t + 60 + i, 100 + i, -size, tid=2))
    given = importers.from_bytes(json.dumps({"traceEvents": events}).encode(), "trace.json")
    assert given.kind == importers.KINETO
    laws = given.trace.plan()
    assert proofs(laws) == {"proven"}
    (extent,) = zip(*values(given), strict=True)
    assert np.array_equal(np.array(extent) * LENGTHS[0], np.array(LENGTHS) * extent[0])


def test_a_damaged_size_is_no_extent(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = changing([[(4, tokens)] for tokens in LENGTHS])
    document = writer.document()
    sizes = [event for event in document["device_traces"][0] if event["action"] == "alloc"]
    sizes[30]["size"] = (1 << 62) + 1
    seen = []

    def find(*args: Any) -> Any:
        seen.append(find_extents(*args))
        return seen[-1]

    monkeypatch.setattr(importers, "find_extents", find)
    with pytest.raises(TraceError):
        load(document)
    assert len(seen) == 1


def test_commands_tell_and_use_the_extents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot, trace, plan = (tmp_path / name for name in ("s.pickle", "t.json", "p.json"))
    snapshot.write_bytes(dump(changing([[(4, tokens)] for tokens in LENGTHS]).document()))
    assert cli.main(["import", str(snapshot), "-o", str(trace)]) == 0
    assert EXTENTS in capsys.readouterr().out
    assert cli.main(["plan", str(trace), "-o", str(plan), "--extent", "size.0=300"]) == 0
    assert Plan.load(plan).extents == {"size.0": 300}
    capsys.readouterr()
    assert cli.main(["replay", str(snapshot), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[2]["allocator"] == "stalloc"
    assert rows[2]["peak_reserved"] < min(row["peak_reserved"] for row in rows[:2])


def test_a_report_of_an_import_has_a_slider() -> None:
    trace = of_lengths(LENGTHS).trace
    scene = scene_of_trace(trace, trace.plan(), "s.pickle")
    assert scene.sized is not None
    assert scene.sized.used == ["size.0"]
