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
        from bench import Bench
        from report import Report
        from training import GIB

        ENDS = {{"torch": 61, "expandable": 70, "stalloc": 75}}
        runs = []

        def train(run):
            runs.append(run)
            if run.batch > ENDS[run.allocator]:
                return {{"out_of_memory": "a message"}}
            return {{"load": (8 + run.batch) * GIB, "outside": GIB}}

        path = Path({str(tmp_path)!r}) / "gpu"
        for model in ("gpt2-345m", "llama-1.3b"):
            bench = Bench(Report(path), list(ENDS), 1, 1, memory=80, cached=False)
            bench.run = train
            assert bench.search(model, limit=1024)
        assert len(runs) < 30, runs
        before = len(runs)
        bench = Bench(Report(path), list(ENDS), 1, 1, memory=80, cached=False)
        bench.run = train
        assert bench.search("gpt2-345m", limit=1024)
        assert len(runs) == before, "what is known is not tried again"
        results = Report(path).document["results"]
        assert [r["model"] for r in results] == ["gpt2-345m", "llama-1.3b"]
        for found in results:
            for allocator, end in ENDS.items():
                assert end - 3 < found["largest_batch"][allocator] <= end, found
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
        assert check("cuda", ["sanitizer"], 1, report) == 0
        assert report.find("check", "sanitizer")["passed"] is None
    """)
