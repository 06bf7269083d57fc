"""Replays traces through torch's real CUDA allocator, beside stalloc's model of it and stalloc.

    python benchmarks/replay TRACE ... --torch SITE_PACKAGES --standin DIR [--json FILE]

`SITE_PACKAGES` holds a CUDA build of torch, as `make test-cuda` installs one; `DIR` the pretended
CUDA runtime and NVML, `build/cpp/standin/13` after `make test-cpp`. No GPU is needed: the allocator
never touches the memory that it hands out. Prints a table: what each reserves, and how far the
model is from the real allocator. stalloc's `reserved` is that of the last iteration; `peak` also
counts the first one, which departs from the plan and which the fallback serves, on a device with
room for it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from events import events_of

import stalloc

SOURCE = Path(__file__).with_name("torch_replay.cpp")
POLICIES = {"torch": "", "torch, expandable segments": "expandable_segments:True"}


def build(torch: Path, folder: Path) -> Path:
    """Compiles the program against the CUDA build of torch."""
    toolkit = Path(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc").resolve().parents[1]
    include = toolkit / "include"
    if not (include / "cuda_runtime_api.h").exists():
        include = Path("/usr/local/cuda/include")
    program = folder / "torch_replay"
    libraries = torch / "torch" / "lib"
    runtime = next(torch.glob("nvidia/*/lib/libcudart.so.*"))
    subprocess.run(
        [
            *("c++", "-std=c++20", "-O2", str(SOURCE), "-o", str(program)),
            *(f"-I{torch / 'torch' / 'include'}", f"-I{include}"),
            *(f"-L{libraries}", "-lc10", "-lc10_cuda", str(runtime), "-ldl"),
            f"-Wl,-rpath,{libraries}",
        ],
        check=True,
    )
    return program


def replay(program: Path, events: Path, policy: str, standin: Path, memory: int) -> dict[str, Any]:
    """What the real allocator did."""
    environment = {
        **os.environ,
        "PYTORCH_ALLOC_CONF": policy,
        "STANDIN_MEMORY": str(memory),
        "LD_PRELOAD": str(next(standin.glob("libcudart.so.1?"))),
        "LD_LIBRARY_PATH": str(standin),
    }
    done = subprocess.run(
        [program, events], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks/replay", description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    parser.add_argument("--torch", type=Path, required=True, metavar="SITE_PACKAGES")
    parser.add_argument("--standin", type=Path, default=Path("build/cpp/standin/13"))
    parser.add_argument("--memory", type=int, default=200 << 30, help="of the device, in bytes")
    parser.add_argument("--json", type=Path, help="write the rows here, too")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        program = build(args.torch.resolve(), Path(name))
        events = Path(name) / "events"
        for path in args.traces:
            events_of(stalloc.Trace.load(path)).tofile(events)
            done = subprocess.run(
                [sys.executable, "-m", "stalloc", "replay", str(path), "--json"],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            modelled = {row["allocator"]: row for row in json.loads(done.stdout)["rows"]}
            for allocator, policy in POLICIES.items():
                real = replay(program, events, policy, args.standin.resolve(), args.memory)
                rows.append(
                    {
                        "trace": path.stem,
                        "allocator": allocator,
                        "load": real["requested"],
                        "reserved": real["reserved"],
                        "peak": real["reserved"],
                        "efficiency": real["requested"] / real["reserved"],
                        "model_reserved": modelled[allocator]["peak_reserved"],
                        "native_calls": sum(real["native_calls"].values()),
                        "seconds_per_event": real["seconds"] / real["events"],
                    }
                )
            ours = modelled["stalloc"]
            rows.append(
                {
                    "trace": path.stem,
                    "allocator": "stalloc",
                    "load": ours["load"],
                    "reserved": ours["reserved"],
                    "peak": ours["peak_reserved"],
                    "efficiency": ours["efficiency"],
                    "native_calls": ours["native_calls"],
                }
            )
            for row in rows[-3:]:
                off = row.get("model_reserved", row["reserved"]) - row["reserved"]
                gib = {key: row[key] / 2**30 for key in ("load", "reserved", "peak")}
                print(
                    f"{row['trace']:30s} {row['allocator']:26s} load {gib['load']:6.2f} GiB"
                    f"  reserved {gib['reserved']:6.2f}  peak {gib['peak']:6.2f}"
                    f"  efficiency {row['efficiency']:.4f}  model off by {off:,} B",
                    flush=True,
                )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
