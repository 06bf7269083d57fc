"""Traces of the evaluation's workloads, recorded once and kept.

A trace is recorded again when what it came from changes: the workloads' code, its configuration,
torch, or what stalloc records on the meta device. Mixtures of experts are recorded for longer than
they are profiled, so that their plans serve iterations which they have not seen.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from configs import Config
from rank import record

import stalloc

PROFILED = 3
"""Iterations that a plan is made from, after start-up with the warm-up."""
UNSEEN = 2
"""Further iterations of a mixture of experts."""

_SOURCES = Path(__file__).parents[1] / "workloads"
_RECORDER = Path(stalloc.__file__).with_name("_meta_kernels.py")


@dataclass(frozen=True)
class Recorded:
    """A workload's traces.

    Attributes:
        config: The recorded workload.
        trace: File of all iterations.
        profiled: File of those that a plan is made from; the same where they are all.
        seconds: File of the CPU time that recording took, written last.
    """

    config: Config
    trace: Path
    profiled: Path
    seconds: Path


def recorded(config: Config, folder: Path) -> Recorded:
    """The paths of a workload's traces, which need not exist yet."""
    stem = f"{config.name}.{_key(config)}"
    trace = folder / f"{stem}.json"
    profiled = folder / f"{stem}.profiled.json" if config.model.experts else trace
    return Recorded(config, trace, profiled, folder / f"{stem}.seconds")


def make(wanted: Recorded) -> float:
    """Records a workload, unless that was done before. Returns the seconds of CPU it took."""
    if not wanted.seconds.exists():
        began = time.process_time()
        if wanted.profiled == wanted.trace:
            record(wanted.config, PROFILED).save(wanted.trace, overwrite=True)
        else:
            record(wanted.config, PROFILED + UNSEEN).save(wanted.trace, overwrite=True)
            # The warm-up counts as an iteration, too.
            beginning(wanted.trace, 1 + PROFILED).save(wanted.profiled, overwrite=True)
        wanted.seconds.write_text(f"{time.process_time() - began:.1f}\n")
    return float(wanted.seconds.read_text())


def beginning(trace: Path, iterations: int) -> stalloc.Trace:
    """The first iterations of a trace's file, as if recording had ended with them."""
    document = json.loads(trace.read_bytes())
    cut = document["iterations"][iterations]
    document["iterations"] = document["iterations"][: iterations + 1]
    document["end"] = cut
    for table in ("phases", "layer_spans", "requests"):
        columns = document[table]
        begin = columns["lower" if table == "requests" else "begin"]
        rows = sum(tick < cut for tick in begin)  # in their order
        document[table] = {name: values[:rows] for name, values in columns.items()}
    for table in ("phases", "layer_spans"):
        document[table]["end"] = [min(tick, cut) for tick in document[table]["end"]]
    if "extents" in document:
        known = len(document["phases"]["begin"])
        rows = sum(phase < known for phase in document["extents"]["phase"])
        document["extents"] = {k: values[:rows] for k, values in document["extents"].items()}
    requests = document["requests"]
    for row, upper in enumerate(requests["upper"]):
        if upper is None or upper >= cut:
            requests["upper"][row] = None
            requests["phase_end"][row] = requests["layer_end"][row] = -1
    return stalloc.Trace.from_json(json.dumps(document).encode(), f"the beginning of {trace}")


def _key(config: Config) -> str:
    digest = hashlib.sha256(f"{config!r} {PROFILED} {UNSEEN} {torch.__version__}".encode())
    digest.update(_RECORDER.read_bytes())
    for source in sorted(_SOURCES.glob("*.py")):
        if source.name not in ("configs.py", "__main__.py"):  # the configuration is in the key
            digest.update(source.read_bytes())
    return digest.hexdigest()[:12]
