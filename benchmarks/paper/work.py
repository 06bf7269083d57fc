"""One workload from its configuration to its rows, each step only where its input has changed."""

from __future__ import annotations

import hashlib
import json
import resource
from dataclasses import asdict, dataclass
from pathlib import Path

from configs import Config

from paper import recording
from paper.evaluation import Programs, evaluate
from paper.rows import Row
from stalloc import _core

_SOURCES = ("authors.py", "evaluation.py", "figures.py", "rows.py")


@dataclass(frozen=True)
class Done:
    """A workload's rows, and the CPU time that its steps took."""

    rows: list[Row]
    record_seconds: float
    replay_seconds: float


def do(config: Config, build: Path, programs: Programs) -> Done:
    """Records a workload and replays it; keeps both in `build`."""
    traces, kept = build / "traces", build / "rows"
    for folder in (traces, kept):
        folder.mkdir(parents=True, exist_ok=True)
    workload = recording.recorded(config, traces)
    record_seconds = recording.make(workload)
    file = kept / f"{workload.trace.stem}.{_key(programs)}.json"
    if not file.exists():
        began = _cpu_seconds()
        rows = [asdict(row) for row in evaluate(workload, programs)]
        document = {"rows": rows, "seconds": round(_cpu_seconds() - began, 1)}
        file.write_text(json.dumps(document, indent=1))
    document = json.loads(file.read_text())
    return Done([Row(**row) for row in document["rows"]], record_seconds, document["seconds"])


def _cpu_seconds() -> float:
    """CPU time of this process and of the children that it waited for."""
    of = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in of)


def _key(programs: Programs) -> str:
    """Sources of the rows other than the trace: our code and the versions of the peers."""
    version = programs.torch.version if programs.torch else "modelled"
    gmlake = programs.gmlake.version if programs.gmlake else "modelled"
    planner = programs.synthesizer.version if programs.synthesizer else "none"
    versions = f"{version} {gmlake} {planner} {programs.planned is not None}"
    digest = hashlib.sha256(versions.encode())
    core = Path(_core.__file__ or "").parent
    here = Path(__file__).parent
    for source in (core / "libstalloc.so", *(here / name for name in _SOURCES)):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]
