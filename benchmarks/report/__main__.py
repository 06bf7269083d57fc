"""Measures reports: seconds to write one, its size, and how soon and how fluently it is drawn.

    python benchmarks/report --requests 20000 300000 --output benchmarks/results/report

The trace is that of a pipeline rank with virtual stages, recomputation and varying lengths
(benchmarks/plan/generate.py), two iterations of the given size. It is written by the command line
and opened in a headless Chromium of 1366 x 768 without a GPU; a frame is one drawing of both
drawings after a step of zooming or moving. Needs chromium and chromedriver.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from selenium import webdriver
from selenium.webdriver.support.wait import WebDriverWait

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "plan"))

import generate  # noqa: E402

ITERATIONS = 2
FRAMES = """
const done = arguments[0], app = stallocReport, times = [];
const keys = ["+", "+", "+", "ArrowRight", "+", "+", "ArrowLeft", "-", "-", "ArrowUp", "-", "-"];
(function next(i) {
  if (i === keys.length) return done(times);
  const began = performance.now();
  app.controls.press(keys[i], {});
  requestAnimationFrame(() => { times.push(performance.now() - began); next(i + 1); });
})(0);
"""


@dataclass(frozen=True)
class Result:
    """One report."""

    requests: int
    write_seconds: float
    write_cpu_seconds: float
    write_seconds_with_plan: float
    bytes: int
    first_drawing_seconds: float
    frame_milliseconds_median: float
    frame_milliseconds_worst: float


def trace_document(requests: int) -> dict[str, Any]:
    """The generated iteration, twice, as a trace file has it."""
    one = generate.sized("all", requests)
    period = int(one.upper.max()) + 1
    count = len(one.lower)
    phases = int(one.phase_end.max()) + 1
    begins = np.full(phases, period)
    np.minimum.at(begins, one.phase_begin, one.lower)
    np.minimum.at(begins, one.phase_end, one.upper)
    begins[0] = 0
    turns = np.arange(ITERATIONS)
    every = {
        "size": np.tile(one.size, ITERATIONS),
        "lower": (turns[:, None] * period + one.lower).ravel(),
        "upper": (turns[:, None] * period + one.upper).ravel(),
        "phase_begin": (turns[:, None] * phases + one.phase_begin).ravel(),
        "phase_end": (turns[:, None] * phases + one.phase_end).ravel(),
    }
    begin = (turns[:, None] * period + begins).ravel()
    end = np.append(begin[1:], ITERATIONS * period)
    rows = len(begin)
    constant: dict[str, Any] = {"layer_begin": -1, "layer_end": -1, "stream": 0, "thread": 0}
    return {
        "format": "stalloc-trace",
        "version": 1,
        "info": {"device": "cuda", "model": one.name},
        "end": ITERATIONS * period,
        "iterations": [turn * period for turn in range(ITERATIONS + 1)],
        "layers": [],
        "phases": {
            "kind": [("forward", "backward")[row % phases % 2] for row in range(rows)],
            "microbatch": [row % phases for row in range(rows)],
            "chunk": [0] * rows,
            "occurrence": [0] * rows,
            "begin": begin.tolist(),
            "end": end.tolist(),
            "iteration": [row // phases for row in range(rows)],
        },
        "layer_spans": {"layer": [], "phase": [], "begin": [], "end": [], "recompute": []},
        "requests": {name: column.tolist() for name, column in every.items()}
        | {name: [value] * (ITERATIONS * count) for name, value in constant.items()}
        | {"dynamic": [False] * (ITERATIONS * count)},
    }


def stalloc(*arguments: str) -> tuple[float, dict[str, Any]]:
    """Runs the command line; returns how long it took, and its JSON."""
    began = time.perf_counter()
    run = subprocess.run(
        [sys.executable, "-m", "stalloc", *arguments, "--json", "--force"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(run.stdout)
    return time.perf_counter() - began, answer


def children_cpu_seconds() -> float:
    """CPU time of ended processes, on all cores."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def open_browser() -> webdriver.Chrome:
    """A headless one, as of a laptop without a GPU."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--window-size=1366,768", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    return webdriver.Chrome(options=options, service=service)


def measure(requests: int, folder: Path, browser: webdriver.Chrome) -> Result:
    """Writes and opens one report."""
    trace, plan, page = folder / "trace.json", folder / "plan.json", folder / "report.html"
    trace.write_text(json.dumps(trace_document(requests)))
    before = children_cpu_seconds()
    seconds, answer = stalloc("report", str(trace), "-o", str(page))
    cpu_seconds = children_cpu_seconds() - before
    stalloc("plan", str(trace), "-o", str(plan))
    with_plan, _ = stalloc("report", str(trace), "--plan", str(plan), "-o", str(page))
    browser.get(page.as_uri())
    WebDriverWait(browser, 120).until(
        lambda b: b.execute_script("return window.stallocReport !== undefined")
    )
    drawn = browser.execute_script(
        "return performance.getEntriesByName('stalloc:drawn')[0].startTime"
    )
    frames = browser.execute_async_script(FRAMES)
    return Result(
        requests=answer["requests"],
        write_seconds=seconds,
        write_cpu_seconds=cpu_seconds,
        write_seconds_with_plan=with_plan,
        bytes=answer["bytes"],
        first_drawing_seconds=drawn / 1e3,
        frame_milliseconds_median=statistics.median(frames),
        frame_milliseconds_worst=max(frames),
    )


def main() -> int:
    """Prints a table, and with `--output` writes it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, nargs="+", default=[20_000, 300_000])
    parser.add_argument("--output", type=Path, help="where to write NAME.json")
    args = parser.parse_args()
    browser = open_browser()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for requests in args.requests:
            result = measure(requests, Path(folder), browser)
            results.append(result)
            print(" ".join(f"{name}={value:,.6g}" for name, value in asdict(result).items()))
    facts = {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "browser": browser.capabilities["browserVersion"],
        "commit": subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip(),
    }
    browser.quit()
    if args.output is not None:
        content = facts | {"results": [asdict(result) for result in results]}
        args.output.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
