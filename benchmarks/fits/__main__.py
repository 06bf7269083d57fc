"""Estimates xMem's runs and writes the errors beside those of its rivals.

Usage: python benchmarks/fits [--only NAME] [-o FILE]

`xmem.csv` has the measured peaks and the predictions of others, from the files
`plot/data/001-Anova/*/001/*/evaluation_result.json` of Stone-ResearchLife/xMem (MIT licence, its
authors): the first and the last run of each model and optimizer, and some between, without those
that ran out of memory. `run` is the end of the folder's name.

`measured` is the most that NVML showed less the first sample, when CUDA's context was there.
So torch's reserved memory is compared. It includes the kernels that the libraries loaded later.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)

import torch  # noqa: E402
from commit import last_change  # noqa: E402

import stalloc  # noqa: E402
from fits.runs import ITERATIONS, is_language, lengths, training  # noqa: E402

RIVALS = ("xmem", "dnnmem", "schedtune")
NAMES = {"stalloc": "stalloc", "xmem": "xMem", "dnnmem": "DNNMem", "schedtune": "SchedTune"}
DRAWS = 5
"""Times that the lengths of sentences are drawn; the estimate is the median."""

MIB = 1 << 20


def main() -> None:
    """Estimates each run and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="runs of models whose name contains this")
    parser.add_argument("-o", "--output", type=Path, help="the Markdown file")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    with (HERE / "xmem.csv").open() as file:
        for row in csv.DictReader(file):
            if args.only in row["model"]:
                rows.append(estimated(row))
    text = table(rows)
    if args.output:
        args.output.write_text(text)
    print(text)


def estimated(row: dict[str, str]) -> dict[str, object]:
    """The row with stalloc's estimate."""
    begin = time.perf_counter()
    model, optimizer, batch = row["model"], row["optimizer"], int(row["batch"])
    padded: list[tuple[int, ...]] = [()]
    if is_language(model):
        padded = [lengths(model, batch, f"{row['run']} {number}") for number in range(DRAWS)]
    peaks = {each: _peaks(model, optimizer, batch, each) for each in set(padded)}
    loads, reserved = zip(*(peaks[each] for each in padded), strict=True)
    estimate = statistics.median_low(reserved)
    seconds = time.perf_counter() - begin
    measured = int(row["measured"])
    result: dict[str, object] = {**row, "measured": measured, "seconds": seconds}
    result["stalloc"] = estimate
    result["drawn"] = min(reserved), max(reserved)
    for name in RIVALS:
        result[name] = int(row[name])
    print(
        f"{model} {optimizer} {batch}: load {max(loads) / MIB:.0f}, "
        f"reserved {estimate / MIB:.0f} ({min(reserved) / MIB:.0f} to {max(reserved) / MIB:.0f}), "
        f"measured {measured / MIB:.0f} MiB, {estimate / measured - 1:+.2%}, {seconds:.1f} s",
        file=sys.stderr,
        flush=True,
    )
    return result


def _peaks(model: str, optimizer: str, batch: int, padded: tuple[int, ...]) -> tuple[int, int]:
    """The load of a run, and what torch reserves."""
    build = training(model, optimizer, batch, padded)
    estimate = stalloc.estimate(build, gpu="RTX 3060", iterations=ITERATIONS, plan=False)
    return estimate.load, estimate.reserved


def table(rows: list[dict[str, object]]) -> str:
    """The Markdown page."""
    kinds = {
        "all": rows,
        "images": [row for row in rows if not _is_language(row)],
        "language": [row for row in rows if _is_language(row)],
    }
    lines = [
        "# Will it fit? Estimates beside measured peaks",
        "",
        f"Written by `python benchmarks/fits` at {last_change('stalloc', 'csrc')}, torch "
        f"{torch.__version__}, transformers {_version('transformers')}, torchvision "
        f"{_version('torchvision')}. Measured: `xmem.csv`, an RTX 3060 with torch 2.6. Nothing was "
        "tuned on these runs.",
        "",
        "| error, median and 90th percentile | " + " | ".join(NAMES.values()) + " |",
        "|---|" + "---|" * len(NAMES),
    ]
    for kind, chosen in kinds.items():
        if chosen:
            cells = [_errors(chosen, name) for name in NAMES]
            lines.append(f"| {kind}: {len(chosen)} runs | " + " | ".join(cells) + " |")
    lines += ["", (HERE / "analysis.md").read_text().strip()]
    lines += [
        "",
        "| model | optimizer | batch | measured, MiB | stalloc | drawn lengths | xMem | DNNMem | "
        "SchedTune |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        errors = [f"{_error(row, name, signed=True):+.2%}" for name in NAMES]
        errors.insert(1, _drawn(row))
        lines.append(
            f"| {row['model']} | {row['optimizer']} | {row['batch']} | "
            f"{int(str(row['measured'])) / MIB:,.0f} | " + " | ".join(errors) + " |"
        )
    return "\n".join(lines) + "\n"


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "?"


def _is_language(row: dict[str, object]) -> bool:
    return is_language(str(row["model"]))


def _drawn(row: dict[str, Any]) -> str:
    """The errors of the lowest and the highest of the draws, if they differ."""
    low, high = (peak / row["measured"] - 1 for peak in row["drawn"])
    return "" if low == high else f"{low:+.2%} to {high:+.2%}"


def _error(row: dict[str, object], name: str, *, signed: bool = False) -> float:
    error = int(str(row[name])) / int(str(row["measured"])) - 1
    return error if signed else abs(error)


def _errors(rows: list[dict[str, object]], name: str) -> str:
    errors = sorted(_error(row, name) for row in rows)
    ninth = errors[min(len(errors) - 1, round(0.9 * (len(errors) - 1)))]
    return f"{statistics.median(errors):.2%}, {ninth:.2%}"


if __name__ == "__main__":
    main()
