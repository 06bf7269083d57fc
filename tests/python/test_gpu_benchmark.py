"""The benchmark for a machine with a GPU, as far as it runs without one."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "gpu"


def run(*options: str) -> dict[str, Any]:
    command = [sys.executable, str(BENCHMARK), "run", "--model", "tiny", "--device", "cpu"]
    done = subprocess.run(
        [*command, "--steps", "2", "--warmup", "3", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def call(body: str) -> None:
    """Runs a piece of the benchmark in a process of its own, whose modules are the benchmark's."""
    head = f"import sys; sys.path.insert(0, {str(BENCHMARK)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(body)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_run_is_served_from_its_start_by_the_plan_of_another(tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    profiled = run("--allocator", "stalloc", "--profile", plan, "--deterministic")
    assert profiled["resident"] > 0
    plain = run("--allocator", "torch", "--deterministic")
    served = run("--allocator", "stalloc", "--plan", plan, "--deterministic")
    assert served["misses"] == 0
    assert (served["pool"], served["resident"]) == (profiled["pool"], profiled["resident"])
    assert served["losses"] == plain["losses"]
    assert served["weights"] == plain["weights"]


def test_ignores_output_after_a_run_and_ends_hanging_runs() -> None:
    call("""
        from runs import start
        from training import Run
        run = Run("tiny", "torch", device="cpu", steps=1, warmup=0)
        done = start(run, 120, "sh", "-c", '"$@"; echo; echo ERROR SUMMARY: 0 errors', "sh")
        assert len(done["losses"]) == 1, done
        done = start(run, 120, "sh", "-c", "echo Device not supported; exit 3", "sh")
        assert done == {"failed": "Device not supported", "log": "Device not supported\\n"}, done
        done = start(run, 0.1, "sh", "-c", "sleep 1000", "sh")
        assert "was not done" in done["failed"], done
    """)


def test_a_search_ends_near_the_largest_batch_after_a_few_tries(tmp_path: Path) -> None:
    call(f"""
        from pathlib import Path
        from bench import Bench, Room
        from report import Report
        from training import GIB, Run

        ENDS = {{"torch": 61, "expandable": 70, "stalloc": 75}}
        runs = []

        def train(run, room):
            assert room == 80
            runs.append(run)
            if run.batch > ENDS[run.allocator]:
                return {{"out_of_memory": "a message"}}
            memory = (8 + run.batch) * GIB
            return {{"load": memory, "peak_reserved": memory, "efficiency": 1.0, "retries": 0,
                     "device_allocations": 0}}

        path = Path({str(tmp_path)!r}) / "gpu"

        def search(name):
            bench = Bench(Report(path), list(ENDS), 1, 1, 3, Room(80))
            bench.run = train
            assert bench.search(name, Run("tiny", ""), memory=80, limit=1024)

        search("one")
        search("two")
        assert len(runs) < 30, runs
        before = len(runs)
        search("one")
        assert len(runs) == before, "what is known is not tried again"
        results = Report(path).document["results"]
        assert [r["name"] for r in results] == ["one in 80 GiB", "two in 80 GiB"]
        for found in results:
            for allocator, end in ENDS.items():
                assert end - 3 < found["largest_batch"][allocator] <= end, found
    """)


def test_a_comparison_repeats_failures_alone_and_squeezes_those_that_need_more() -> None:
    call("""
        from bench import GIB, Bench, Room
        from cases import Case
        from report import Report
        from training import Run

        NEED = {"torch": 12, "expandable": 9, "stalloc": 10, "auto": 11}
        runs, broken = [], {"auto"}

        def train(run, room):
            runs.append((run.allocator, run.memory))
            assert room == (run.memory or 20)
            if run.allocator in broken:
                return {"failed": "no time was left"}
            if run.memory and NEED[run.allocator] > run.memory:
                return {"out_of_memory": "a message"}
            return {"load": 8 * GIB, "peak_reserved": NEED[run.allocator] * GIB, "retries": 0,
                    "efficiency": 8 / NEED[run.allocator], "device_allocations": 0}

        report = Report(None)
        bench = Bench(report, list(NEED), 1, 1, 2, Room(30))
        bench.run = train
        assert not bench.compare({"one": Case(Run("tiny", ""), 20)})
        squeezed = 10 + 1 / 16
        assert sorted(runs) == sorted([(a, 0) for a in NEED]
                                      + [("stalloc", squeezed), ("torch", squeezed)])
        runs.clear()
        broken.clear()
        assert bench.compare({"one": Case(Run("tiny", ""), 20)})
        assert runs == [("auto", 0), ("auto", squeezed)]
        found = report.find("name", "one")[f"runs in {squeezed:.3f} GiB"]
        assert {a for a, r in found.items() if "out_of_memory" in r} == {"torch", "auto"}
    """)


def test_runs_share_the_gpu_no_further_than_it_has_room() -> None:
    call("""
        import threading
        from bench import OWN, Room

        room = Room(10 + 2 * OWN)
        with room.take(4), room.take(6):
            got = []

            def third():
                with room.take(1):
                    got.append(True)

            waiting = threading.Thread(target=third)
            waiting.start()
            assert not got
        waiting.join()
        assert got
        with room.take(1000):  # larger than the GPU: alone
            pass
    """)


def test_results_of_another_commit_are_not_gone_on_with(tmp_path: Path) -> None:
    call(f"""
        import json
        from pathlib import Path
        from report import Report

        path = Path({str(tmp_path)!r}) / "gpu"
        Report(path).put("check", {{"check": "graph", "passed": True}})
        assert Report(path).find("check", "graph")
        assert not Report(path, anew=True).find("check", "graph")
        file = path.with_suffix(".json")
        file.write_text(json.dumps(json.loads(file.read_text()) | {{"commit": "another"}}))
        assert not Report(path).find("check", "graph")
    """)


def test_a_check_whose_tool_is_missing_has_not_passed(tmp_path: Path) -> None:
    call(f"""
        import os
        from pathlib import Path
        from checks import check
        from report import Report

        os.environ["PATH"] = {str(tmp_path)!r}
        report = Report(None)
        assert check("cuda", ["sanitizer", "racecheck"], 1, report) == 0
        for name in ("sanitizer", "racecheck"):
            assert report.find("check", name)["passed"] is None
    """)


def test_a_snapshot_loses_paths_and_times_and_keeps_its_requests(tmp_path: Path) -> None:
    call(f"""
        import gzip, pickle
        from snapshots import FRAMES, save

        def frame(name, line):
            return {{"filename": name, "line": line, "name": "f"}}

        stack = [frame("/home/me/v/lib/python3.12/site-packages/torch/nn/functional.py", 7),
                 frame("/home/me/stalloc/benchmarks/gpu/models.py", 8)]
        event = {{"action": "alloc", "addr": 512, "size": 100, "stream": 0, "time_us": 5}}
        events = [event | {{"frames": [dict(f) for f in stack]}} for _ in range(3)]
        deep = event | {{"frames": stack * FRAMES}}
        path = {str(tmp_path / "a.pickle.gz")!r}
        save({{"segments": [], "device_traces": [[*events, deep]]}}, path)
        found = pickle.loads(gzip.open(path).read())["device_traces"][0]
        assert len(found) == 4
        assert found[0] == {{"action": "alloc", "addr": 512, "size": 100, "stream": 0, "frames": [
            frame("torch/nn/functional.py", 7), frame("benchmarks/gpu/models.py", 8)]}}
        assert found[0]["frames"] is found[2]["frames"]
        assert len(found[3]["frames"]) == FRAMES
    """)


def test_the_time_of_steps_is_compared_in_turns() -> None:
    result = run("--allocator", "torch", "--turns", "0.01")
    assert result["rounds"] >= 2
    assert result["hit_rate"] > 0.9
    assert set(result["ratio"]) == {"stalloc", "expandable", "again"}
    assert all(0 < r["low"] <= r["median"] <= r["high"] for r in result["ratio"].values())


def test_a_run_plans_itself() -> None:
    result = run("--allocator", "auto", "--deterministic", "--steps", "20", "--lengths")
    assert result["served"] > 0
    assert (
        result["losses"]
        == run("--allocator", "torch", "--deterministic", "--steps", "20", "--lengths")["losses"]
    )
