"""Replays traces through torch's real CUDA allocator, beside stalloc's model of it and stalloc.

    python benchmarks/replay TRACE ... [--torch DIR] [--json FILE]
    python benchmarks/replay DIR -o FILE

`DIR` is an environment with a CUDA build of torch, as `make test-cuda` installs one; the core and
the pretended CUDA runtime are those of `make test-cpp`. No GPU is needed. Prints a table: what each
reserves over the whole run, start-up and first iteration included, and how far the model is from
the real allocator.

The second form needs neither torch nor the pretended runtime. It writes tables over a folder: for
each recording (memory snapshot, Kineto trace, trace) the peaks of both of torch's policies, by
their model, and of stalloc; for each MiniMalloc instance (CSV) the pool and its bound.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import real
import table
from events import events_of

import stalloc
from stalloc.replaying import replay_all

POLICIES = {"torch": "", "torch, expandable segments": "expandable_segments:True"}


def rows_of(path: Path, torch: real.Torch, planned: Path, memory: int) -> Iterator[dict[str, Any]]:
    """A trace's rows."""
    trace = stalloc.Trace.load(path)
    plan = trace.plan()
    with tempfile.TemporaryDirectory() as name:
        events, plan_file = Path(name) / "events", Path(name) / "plan.json"
        events_of(trace).tofile(events)
        plan.save(plan_file)
        for modelled in replay_all(trace, plan):
            row = {
                "trace": path.stem,
                "allocator": modelled.allocator,
                "load": modelled.peak_load,
                "reserved": modelled.peak_reserved,
                "efficiency": modelled.peak_load / modelled.peak_reserved,
                "native_calls": modelled.native_calls,
            }
            if (policy := POLICIES.get(modelled.allocator)) is None:
                seen = real.run(planned, events, plan_file, memory=memory)
            else:
                seen = real.run(
                    torch.program, events, policy=policy, memory=memory, cuda=torch.cuda
                )
                row["load"] = seen["load"]
                row["reserved"] = seen["reserved"]
                row["efficiency"] = seen["load"] / seen["reserved"]
                row["native_calls"] = sum(seen["native_calls"].values())
                row["model_reserved"] = modelled.peak_reserved
            row["seconds_per_request"] = sum(seen["seconds"]) / sum(seen["requests"])
            yield row


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks/replay", description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    parser.add_argument("--torch", type=Path, default=Path(".venv-cuda"), metavar="DIR")
    parser.add_argument(
        "--memory", type=int, default=real.UNLIMITED, help="of the device, in bytes"
    )
    parser.add_argument("--json", type=Path, help="write the rows here, too")
    parser.add_argument(
        "-o", "--output", type=Path, help="with a folder of recordings: write a table of models"
    )
    args = parser.parse_args()
    if args.output is not None:
        if len(args.traces) != 1 or not args.traces[0].is_dir():
            parser.error("-o takes one folder of recordings")
        table.write(args.traces[0], args.output)
        return 0
    rows = []
    with tempfile.TemporaryDirectory() as name:
        try:
            torch = real.build_torch(args.torch, Path(name))
            planned = real.build_planned(Path(name))
        except real.Unavailable as error:
            print(f"benchmarks/replay: {error}", file=sys.stderr)
            return 1
        for path in args.traces:
            for row in rows_of(path, torch, planned, args.memory):
                rows.append(row)
                off = row.get("model_reserved", row["reserved"]) - row["reserved"]
                gib = {key: row[key] / 2**30 for key in ("load", "reserved")}
                print(
                    f"{row['trace']:30s} {row['allocator']:26s} load {gib['load']:6.2f} GiB"
                    f"  reserved {gib['reserved']:6.2f}"
                    f"  efficiency {row['efficiency']:.4f}"
                    f"  {row['seconds_per_request'] * 1e9:4.0f} ns  model off by {off:,} B",
                    flush=True,
                )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
