from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stalloc import planner
from stalloc import progress as progress_bar
from stalloc.errors import PlanError
from stalloc.planner import Csv, algorithms, load_bound, load_csv, plan, save_csv, validate


@dataclass(frozen=True)
class Problem:
    lower: list[int]
    upper: list[int]
    size: list[int]
    alignment: int = 1
    period: int = 0

    def rounded(self) -> list[int]:
        return [-(-s // self.alignment) * self.alignment for s in self.size]

    def ticks(self, i: int) -> set[int]:
        ticks = range(self.lower[i], self.upper[i])
        return {t % self.period for t in ticks} if self.period else set(ticks)

    def conflicts(self) -> list[tuple[int, int]]:
        live = [self.ticks(i) for i in range(len(self.size))]
        pairs = itertools.combinations(range(len(self.size)), 2)
        return [(i, j) for i, j in pairs if live[i] & live[j]]

    def overlaps(self, offsets: list[int]) -> list[tuple[int, int]]:
        size = self.rounded()
        return [
            (i, j)
            for i, j in self.conflicts()
            if size[i]
            and size[j]
            and offsets[i] < offsets[j] + size[j]
            and offsets[j] < offsets[i] + size[i]
        ]

    def best_height(self) -> int:
        """By brute force: in some order, every buffer lies on top of those before it.

        The C++ tests have a brute force and a generator of their own. These two share no code with
        the library, so they also check the bindings.
        """
        size = self.rounded()
        meets: list[list[int]] = [[] for _ in size]
        for i, j in self.conflicts():
            meets[i].append(j)
            meets[j].append(i)
        best = sum(size)
        offsets: dict[int, int] = {}

        def place(height: int) -> None:
            nonlocal best
            if len(offsets) == len(size):
                best = min(best, height)
            if height >= best:
                return
            for i in range(len(size)):
                if i in offsets:
                    continue
                at = max((offsets[j] + size[j] for j in meets[i] if j in offsets), default=0)
                offsets[i] = at
                place(max(height, at + size[i]))
                del offsets[i]

        place(max(size, default=0))
        return best


@st.composite
def problems(draw: st.DrawFn, most: int = 25) -> Problem:
    """Tall, wide, nested, all at once; empty lifetimes, zero and huge sizes, duplicates."""
    end = draw(st.integers(1, 15))
    circular = draw(st.booleans())
    sizes = draw(
        st.sampled_from(
            [st.integers(0, 9), st.integers(0, 5000), st.sampled_from([0, 1, 2**56, 2**56 + 7])]
        )
    )
    lower, upper, size = [], [], []
    for _ in range(draw(st.integers(0, most))):
        if lower and draw(st.integers(0, 4)) == 0:
            lower.append(lower[-1])
            upper.append(upper[-1])
            size.append(size[-1])
            continue
        begin = draw(st.integers(0, end - 1))
        lower.append(begin)
        upper.append(draw(st.integers(begin, begin + end if circular else end)))
        size.append(draw(sizes))
    alignment = draw(st.sampled_from([1, 3, 512]))
    return Problem(lower, upper, size, alignment, end if circular else 0)


def solve(problem: Problem, algorithm: str | None = None) -> planner.Solution:
    return plan(
        problem.lower,
        problem.upper,
        problem.size,
        alignment=problem.alignment,
        period=problem.period,
        algorithm=algorithm,
        time_limit=0.5,
    )


@settings(deadline=None, max_examples=150)
@given(problems())
def test_any_solution_is_valid_and_between_the_bound_and_the_sum(problem: Problem) -> None:
    solution = solve(problem)
    offsets = solution.offsets.tolist()
    assert not problem.overlaps(offsets)
    assert all(offset % problem.alignment == 0 for offset in offsets)
    ends = [o + s for o, s in zip(offsets, problem.rounded(), strict=True)]
    assert max(ends, default=0) == solution.height
    assert solution.bound <= solution.height <= sum(problem.rounded())
    assert solution.pool == solution.height
    assert solution.gap >= 0


@settings(deadline=None, max_examples=60)
@given(problems(most=8))
def test_small_problems_are_solved_to_the_optimum_that_brute_force_finds(problem: Problem) -> None:
    solution = solve(problem)
    assert solution.optimal
    assert solution.height == solution.bound == problem.best_height()


@settings(deadline=None, max_examples=40)
@given(problems(), st.sampled_from(algorithms()))
def test_every_algorithm_is_valid_on_its_own(problem: Problem, algorithm: str) -> None:
    solution = solve(problem, algorithm)
    assert solution.algorithm in {algorithm, "", "stacked"}
    assert not problem.overlaps(solution.offsets.tolist())


@settings(deadline=None, max_examples=80)
@given(problems(most=10), st.data())
def test_the_validator_agrees_with_the_definition(problem: Problem, data: st.DataObject) -> None:
    offset = st.integers(0, 3).map(lambda k: k * problem.alignment)
    offsets = data.draw(st.lists(offset, min_size=len(problem.size), max_size=len(problem.size)))
    arguments = (problem.lower, problem.upper, problem.size)
    if problem.overlaps(offsets):
        with pytest.raises(PlanError, match="overlap"):
            validate(offsets, *arguments, alignment=problem.alignment, period=problem.period)
    else:
        validate(offsets, *arguments, alignment=problem.alignment, period=problem.period)


@settings(deadline=None, max_examples=40)
@given(problems())
def test_the_same_input_gives_the_same_solution(problem: Problem) -> None:
    if sum(problem.size) == 0:
        return
    arguments = (problem.lower, problem.upper, problem.size)
    one = plan(*arguments, algorithm="repaired-first-fit-size", threads=1)
    two = plan(*arguments, algorithm="repaired-first-fit-size", threads=2)
    assert one.offsets.tolist() == two.offsets.tolist()


def test_streams_never_share_an_address() -> None:
    solution = plan([0, 5], [5, 9], [64, 64], stream=[0, 1])
    assert solution.height == 128
    assert solution.optimal
    assert load_bound([0, 5], [5, 9], [64, 64], stream=[0, 1]) == 128


def test_ordered_streams_share_addresses_and_list_waits() -> None:
    lower, upper, size, stream = [0, 5, 9], [5, 9, 12], [64, 64, 64], [0, 1, 1]
    solution = plan(lower, upper, size, stream=stream, streams="ordered")
    assert solution.height == load_bound(lower, upper, size, stream=stream, streams="ordered") == 64
    assert solution.optimal
    assert solution.waits.tolist() == [[1, 0]]
    arguments = (solution.offsets, lower, upper, size)
    validate(*arguments, stream=stream, streams="ordered", waits=solution.waits)
    with pytest.raises(PlanError, match=r"a wait is missing: buffer 1 \(stream 1\) waits for"):
        validate(*arguments, stream=stream, streams="ordered")
    with pytest.raises(PlanError, match="overlap"):
        validate(*arguments, stream=stream)
    turning = plan(lower, upper, size, stream=stream, streams="ordered", period=12)
    assert turning.waits.tolist() == [[0, 2], [1, 0]]
    assert plan(lower, upper, size, stream=stream).waits.tolist() == []


@settings(deadline=None, max_examples=60)
@given(problems(), st.data())
def test_ordered_streams_take_no_more_than_one(problem: Problem, data: st.DataObject) -> None:
    count = len(problem.size)
    stream = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    arguments = (problem.lower, problem.upper, problem.size)
    alone = load_bound(*arguments, alignment=problem.alignment, period=problem.period)
    assert (
        load_bound(
            *arguments,
            stream=stream,
            streams="ordered",
            alignment=problem.alignment,
            period=problem.period,
        )
        == alone
    )
    solution = plan(
        *arguments,
        stream=stream,
        streams="ordered",
        time_limit=0.5,
        alignment=problem.alignment,
        period=problem.period,
    )
    assert not problem.overlaps(solution.offsets.tolist())
    validate(
        solution.offsets,
        *arguments,
        stream=stream,
        streams="ordered",
        waits=solution.waits,
        alignment=problem.alignment,
        period=problem.period,
    )


def test_fixed_buffers_keep_their_offsets() -> None:
    solution = plan([0, 0, 0], [9, 9, 9], [64, 64, 64], fixed=[-1, 64, -1])
    assert solution.offsets.tolist()[1] == 64
    assert solution.height == 192


@settings(deadline=None, max_examples=60)
@given(problems(), st.data())
def test_plan_that_keeps_old_offsets_is_no_higher(problem: Problem, data: st.DataObject) -> None:
    arguments = (problem.lower, problem.upper, problem.size)
    old = solve(problem)
    kept = data.draw(
        st.lists(st.booleans(), min_size=len(problem.size), max_size=len(problem.size))
    )
    fixed = np.where(np.array(kept, bool), old.offsets, -1)
    new = plan(
        *arguments,
        fixed=fixed,
        warm_start=old.offsets,
        time_limit=0.5,
        alignment=problem.alignment,
        period=problem.period,
    )
    validate(
        new.offsets,
        *arguments,
        height=new.height,
        fixed=fixed,
        alignment=problem.alignment,
        period=problem.period,
    )
    assert new.height <= old.height
    assert new.bound <= new.height


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from([1, 2**40, 2**61, 2**62 - 512, 2**62]), max_size=4))
def test_sizes_go_up_to_62_bits_and_no_sum_wraps_round(size: list[int]) -> None:
    lower, upper = [0] * len(size), [5] * len(size)
    if sum(-(-s // 512) * 512 for s in size) >= 2**63:
        with pytest.raises(PlanError, match="63 bits"):
            plan(lower, upper, size, alignment=512)
    else:
        assert plan(lower, upper, size, alignment=512).height == sum(
            -(-s // 512) * 512 for s in size
        )


def test_warm_start_never_loses_height() -> None:
    lower, upper, size = [0, 0, 4], [4, 9, 9], [100, 50, 80]
    old = plan(lower, upper, size)
    new = plan(lower, upper, size, warm_start=old.offsets, time_limit=0)
    assert new.height <= old.height
    plan(lower, upper, size, warm_start=[-1, 0, -1])


def test_arrays_of_any_integer_type_are_taken() -> None:
    for dtype in (np.int8, np.uint16, np.int32, np.uint64):
        lower = np.array([0, 0, 4, 4], dtype)[::2]  # not contiguous either
        assert plan(lower, lower + np.array(5, dtype), np.array([3, 4], dtype)).height == 7


def test_nothing_is_planned_too() -> None:
    solution = plan([], [], [])
    assert solution.offsets.tolist() == []
    assert (solution.height, solution.bound, solution.gap, solution.optimal) == (0, 0, 0.0, True)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"lower": [-1]}, "buffer 0 begins at tick -1"),
        ({"lower": [7]}, "buffer 0 ends at tick 5, before it begins"),
        ({"size": [-8]}, "negative size"),
        ({"size": [2**63 - 1], "alignment": 512}, "63 bits"),
        ({"size": [2**63]}, "63 bits"),
        ({"size": [2**70]}, "size"),
        ({"size": [1.5]}, "whole numbers"),
        ({"size": ["8"]}, "whole numbers"),
        ({"size": [8, 8]}, "size must be a one-dimensional array of 1 numbers"),
        ({"size": [[8]]}, "one-dimensional"),
        ({"alignment": 0}, "alignment"),
        ({"alignment": 0.5}, "whole numbers"),
        ({"period": -1}, "period"),
        ({"period": 3}, "more than the period"),
        ({"capacity": 7}, "at least 8"),
        ({"capacity": 0}, "capacity of 0"),
        ({"capacity": -1}, "capacity"),
        ({"algorithm": "magic"}, 'no planner "magic"'),
        ({"time_limit": float("nan")}, "time limit"),
        ({"time_limit": -1}, "time limit"),
        ({"threads": 0}, "thread"),
        ({"fixed": [3], "alignment": 2}, "multiple of 2"),
        ({"stream": [2**40]}, "32 bits"),
        ({"streams": "mixed"}, '"separate" or "ordered"'),
        ({"warm_start": [0, 0]}, "offsets must be"),
    ],
)
def test_bad_input_is_named(arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        plan(**{"lower": [0], "upper": [5], "size": [8], **arguments})  # type: ignore[arg-type]


def test_fixed_offsets_that_clash_are_named() -> None:
    with pytest.raises(PlanError, match="fixed offsets clash"):
        plan([0, 0], [5, 5], [8, 8], fixed=[0, 4])


def test_the_paper_planner_says_that_it_cannot_fix() -> None:
    with pytest.raises(PlanError, match="fixed offset"):
        plan([0], [5], [8], fixed=[0], algorithm="paper")


def hard(count: int = 120) -> tuple[list[int], list[int], list[int]]:
    """Random enough that no planner meets the bound at once."""
    random = np.random.default_rng(5)
    lower = random.integers(0, 200, count)
    return (
        lower.tolist(),
        (lower + random.integers(1, 60, count)).tolist(),
        random.integers(1, 10_000, count).tolist(),
    )


def test_progress_is_told_and_false_ends_the_search() -> None:
    fractions: list[float] = []

    def stop_at_once(fraction: float) -> bool:
        fractions.append(fraction)
        return False

    lower, upper, size = hard(4000)
    solution = plan(lower, upper, size, time_limit=3600, progress=stop_at_once)
    validate(solution.offsets, lower, upper, size, height=solution.height)
    assert fractions
    assert all(0 <= fraction <= 1 for fraction in fractions)


def test_an_exception_in_progress_is_raised() -> None:
    def fail(fraction: float) -> None:
        raise RuntimeError(f"at {fraction}")

    with pytest.raises(RuntimeError, match="at "):
        plan(*hard(4000), time_limit=3600, progress=fail)


def test_other_threads_run_meanwhile() -> None:
    """With the GIL held, the other thread could not set what the progress function waits for."""
    begun, answered = threading.Event(), threading.Event()

    def answer() -> None:
        begun.wait()
        answered.set()

    thread = threading.Thread(target=answer)
    thread.start()

    def progress(fraction: float) -> bool:
        begun.set()
        return not answered.is_set()

    plan(*hard(4000), time_limit=3600, progress=progress)
    thread.join()
    assert answered.is_set()


def test_shows_a_bar_only_for_slow_plans(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan([0], [5], [8], progress=True)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress_bar, "_PATIENCE", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")  # a dumb terminal gets no bar
    plan(*hard(2000), progress=True, time_limit=0.4)
    assert "planning" in capsys.readouterr().err


def csv_file(folder: Path, text: str) -> Path:
    path = folder / "problem.csv"
    path.write_text(text)
    return path


def test_csv_goes_in_and_out(tmp_path: Path) -> None:
    csv = load_csv(csv_file(tmp_path, "id,lower,upper,size\na,0,5,8\nb,3,9,4\n"))
    assert csv.ids == ["a", "b"]
    assert csv.offsets is None
    solution = plan(csv.lower, csv.upper, csv.size)
    save_csv(tmp_path / "plan.csv", csv, solution.offsets)
    again = load_csv(tmp_path / "plan.csv")
    assert again.offsets is not None
    assert again.offsets.tolist() == solution.offsets.tolist()
    validate(again.offsets, again.lower, again.upper, again.size, height=solution.height)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", r"problem\.csv: line 1: the file is empty"),
        ("id,lower,size\n", 'line 1: the column "upper" is missing'),
        ("id,lower,upper,size\na,0,5,8\na,0,5,8\n", "line 3: the id"),
        ("id,lower,upper,size\na,5,0,8\n", "line 2: a lifetime that ends before it begins"),
    ],
)
def test_bad_csv_is_named_by_file_and_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        load_csv(csv_file(tmp_path, text))


def test_a_csv_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "problem.csv"
    path.write_bytes(b"id,lower\xff\xfe")
    with pytest.raises(PlanError, match=r"problem\.csv"):
        load_csv(path)


def test_offsets_must_match_the_csv(tmp_path: Path) -> None:
    csv = Csv(["a"], np.array([0]), np.array([5]), np.array([8]))
    with pytest.raises(PlanError, match="offsets must be"):
        save_csv(tmp_path / "plan.csv", csv, [0, 8])


@pytest.mark.parametrize("call", [lambda: load_bound([0], [5], [-1]), lambda: plan([0], [5], [-1])])
def test_bounds_are_checked_like_plans(call: Callable[[], object]) -> None:
    with pytest.raises(PlanError, match="negative size"):
        call()


def test_a_gap_is_room_for_others() -> None:
    arguments = ([0, 3, 0], [9, 6, 9], [8, 8, 4])
    assert plan(*arguments).height == 20
    gaps = [[0, 3, 6]]
    assert load_bound(*arguments, gaps=gaps) == 12
    solution = plan(*arguments, gaps=gaps)
    assert (solution.height, solution.optimal) == (12, True)
    validate(solution.offsets, *arguments, gaps=gaps, height=12)
    with pytest.raises(PlanError, match="overlap"):
        validate(solution.offsets, *arguments, height=12)
    assert plan(*arguments, gaps=np.zeros((0, 3), np.int64)).height == 20


@pytest.mark.parametrize(
    ("gaps", "message"),
    [
        ([[0, 3]], "three columns"),
        ([0, 3, 6], "three columns"),
        ([[0, 3, 10]], "outside its lifetime"),
        ([[0, 4, 4]], "empty"),
        ([[0, 3, 5], [0, 4, 6]], "overlaps"),
        ([[3, 3, 5]], "of buffer 3"),
        ([[-1, 3, 5]], "of buffer -1"),
        ([[0.5, 3, 5]], "whole numbers"),
    ],
)
def test_gaps_that_make_no_sense(gaps: list[list[int]], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan([0, 3, 0], [9, 6, 9], [8, 8, 4], gaps=gaps)


@given(problems(), st.data())
def test_gaps_anywhere(problem: Problem, data: st.DataObject) -> None:
    gaps = []
    for i, (lower, upper) in enumerate(zip(problem.lower, problem.upper, strict=True)):
        if upper > lower and data.draw(st.booleans()):
            begin = data.draw(st.integers(lower, upper - 1))
            gaps.append([i, begin, data.draw(st.integers(begin + 1, upper))])
    arguments = (problem.lower, problem.upper, problem.size)
    rest: dict[str, int] = {"alignment": problem.alignment, "period": problem.period}
    solution = plan(*arguments, gaps=gaps, **rest)
    validate(solution.offsets, *arguments, gaps=gaps, height=solution.height, **rest)
    assert (
        solution.height
        >= solution.bound
        == max(solution.bound, load_bound(*arguments, gaps=gaps, **rest))
    )


def test_gaps_go_through_a_csv(tmp_path: Path) -> None:
    csv = load_csv(csv_file(tmp_path, "id,lower,upper,size,gaps\na,0,9,8,3-6\nb,3,6,8,\n"))
    assert csv.gaps is not None
    assert csv.gaps.tolist() == [[0, 3, 6]]
    solution = plan(csv.lower, csv.upper, csv.size, gaps=csv.gaps)
    assert solution.height == 8
    save_csv(tmp_path / "plan.csv", csv, solution.offsets)
    again = load_csv(tmp_path / "plan.csv")
    assert again.gaps is not None
    assert again.gaps.tolist() == [[0, 3, 6]]
    assert again.offsets is not None
    assert again.offsets.tolist() == [0, 0]
