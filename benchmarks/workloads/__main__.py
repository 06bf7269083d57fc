"""Records what one rank of the paper's training runs allocates, on any machine.

    python benchmarks/workloads --list
    python benchmarks/workloads llama2-7b-vr-first -o traces
    python benchmarks/workloads --all -o traces

Each name becomes a stalloc trace, NAME.json, with start-up, a warm-up iteration and three more.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from configs import all_configs
from rank import record


def main() -> int:
    """The command line."""
    known = all_configs()
    parser = argparse.ArgumentParser(prog="benchmarks/workloads", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ranks; see --list")
    parser.add_argument("--all", action="store_true", help="every rank")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--iterations", type=int, default=3, help="after the warm-up (default: 3)")
    parser.add_argument("--skew", type=float, help="of the routing (default: 0.5)")
    parser.add_argument("--seed", type=int, help="of the routing (default: 1)")
    parser.add_argument("-o", "--output", type=Path, default=Path("traces"), help="folder")
    args = parser.parse_args()
    if args.list:
        print(*known, sep="\n")
        return 0
    names = list(known) if args.all else args.names
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        parser.error(f"no such rank: {', '.join(unknown)}; see --list" if names else "which rank?")
    args.output.mkdir(parents=True, exist_ok=True)
    for name in names:
        config = known[name]
        if args.skew is not None:
            config = replace(config, skew=args.skew)
        if args.seed is not None:
            config = replace(config, seed=args.seed)
        begin = time.perf_counter()
        trace = record(config, args.iterations)
        trace.save(args.output / f"{name}.json")
        seconds = time.perf_counter() - begin
        profile = trace.profile()
        print(
            f"{name}: {len(profile.requests):,} requests an iteration, load "
            f"{profile.load_bytes / 2**30:.1f} GiB, {seconds:.1f} s",
            flush=True,
        )
        del trace, profile
        gc.collect()
    return 0


if __name__ == "__main__":
    sys.exit(main())
