"""Measures mixtures of experts whose router drifts.

    python benchmarks/drift [--seeds 5] [--only NAME ...] [--drift NAME ...] [--all-iterations]

Each rank is recorded once, into build/drift; its runs are derived from that. Rows that the code has
not changed since are kept there, too.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "workloads"))

from configs import Config, paper_configs
from router_drift import DRIFTS, ITERATIONS

from drift import report, template
from drift.evaluation import PROFILED, Row, evaluate
from stalloc import _core

ROOT = Path(__file__).resolve().parents[2]
LATER = (10, 30, 50)
"""Iterations of a run after the profiled ones, unless it makes all."""


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks/drift", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="how many (default: 5)")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="NAME", help="ranks")
    parser.add_argument(
        "--drift", nargs="+", default=["walk+skew"], choices=DRIFTS, help="kinds of drift"
    )
    parser.add_argument("--all-iterations", action="store_true", help=f"all {ITERATIONS}")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "drift", metavar="DIR")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "benchmarks" / "results" / "drift.md", metavar="FILE"
    )
    args = parser.parse_args()
    configs = [config for config in paper_configs() if config.model.experts]
    chosen = [c for c in configs if any(fnmatch.fnmatch(c.name, p) for p in args.only)]
    if not chosen:
        parser.error(f"no such rank; there are {', '.join(c.name for c in configs)}")
    iterations = range(1, ITERATIONS + 1) if args.all_iterations else (*PROFILED, *LATER)
    for row in _measured(chosen, args.drift, range(1, args.seeds + 1), iterations, args.build):
        print(report.line(row), flush=True)
    rows = _kept(args.build)
    args.output.write_text(report.render(rows))
    print(f"{args.output}: {len(rows)} runs")
    return 0


def _measured(
    configs: Sequence[Config],
    drifts: Sequence[str],
    seeds: Sequence[int],
    iterations: Sequence[int],
    build: Path,
) -> Iterator[Row]:
    folder = _rows(build)
    folder.mkdir(parents=True, exist_ok=True)
    for config in configs:
        recorded = None
        for drift in drifts:
            for seed in seeds:
                file = folder / f"{config.name}.{drift}.{seed}.{len(iterations)}.json"
                if not file.exists():
                    recorded = recorded or template.make(config, build)
                    row = evaluate(recorded, drift, seed, iterations)
                    file.write_text(json.dumps(asdict(row)))
                yield Row(**json.loads(file.read_text()))


def _kept(build: Path) -> list[Row]:
    """All rows that this build of stalloc has measured."""
    return [Row(**json.loads(file.read_text())) for file in _rows(build).glob("*.json")]


def _rows(build: Path) -> Path:
    library = Path(_core.__file__ or "").parent / "libstalloc.so"
    return build / f"rows.{hashlib.sha256(library.read_bytes()).hexdigest()[:12]}"


if __name__ == "__main__":
    sys.exit(main())
