"""One workload from its configuration to its rows, each step only where its input has changed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from configs import Config

from paper import recording
from paper.evaluation import Programs, evaluate
from paper.rows import Row
from stalloc import _core

_SOURCES = ("evaluation.py", "figures.py", "rows.py")


def rows_of(config: Config, build: Path, programs: Programs) -> list[Row]:
    """Records a workload and replays it; keeps both in `build`."""
    traces, kept = build / "traces", build / "rows"
    for folder in (traces, kept):
        folder.mkdir(parents=True, exist_ok=True)
    workload = recording.recorded(config, traces)
    recording.make(workload)
    file = kept / f"{workload.trace.stem}.{_key(programs)}.json"
    if file.exists():
        return [Row(**row) for row in json.loads(file.read_text())]
    rows = evaluate(workload, programs)
    file.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return rows


def _key(programs: Programs) -> str:
    """What rows come from besides the trace: our code, and torch's version."""
    version = programs.torch.version if programs.torch else "modelled"
    digest = hashlib.sha256(f"{version} {programs.planned is not None}".encode())
    core = Path(_core.__file__ or "").parent
    here = Path(__file__).parent
    for source in (core / "libstalloc.so", *(here / name for name in _SOURCES)):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]
