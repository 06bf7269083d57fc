"""The answers of `stalloc fits` for each script, and their time."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from scripts.catalogue import SCRIPTS, Script
from scripts.figures import Row
from scripts.runs import call, commit_of, environment_of, fresh_copy

GPU = "H100"

_MIB = 1 << 20
_SOON = 60  # seconds

_HEAD = f"""# Will it fit? Public training scripts, unchanged

Written by `python benchmarks/scripts --machine fits`. Each script is that of a public repository,
as it is, and runs under `stalloc fits --gpu {GPU} SCRIPT`, those of several processes with
`--world`. There is no network: the files that a script would download have random content. The time
is that of the command on one core, with the imports and stalloc's plan; compiled scripts wait for
torch's compiler. A script whose later iterations need more than the first three, or whose
evaluation does, needs more than the answer.

"""


def ask(script: Script, sources: Path, work: Path, timeout: int) -> Row:
    """The answer for a script.

    Args:
        script: The script.
        sources: The folder of the checkouts.
        work: A folder for copies and data.
        timeout: Seconds that the answer may take.
    """
    copy = fresh_copy(script, sources, "gpu", work)
    options = ["--gpu", GPU, "--json"]
    if script.processes > 1:
        options += ["--world", str(script.processes)]
    command = [sys.executable, "-m", "stalloc", "fits", *options, str(copy / script.path)]
    command += script.arguments("fits")
    log, environment = work / f"{script.name}.fits.log", environment_of(script, copy, work)
    begun = time.monotonic()
    code = call(command, copy / script.folder, environment, log, timeout)
    row: Row = {
        "script": script.name,
        "commit": commit_of(sources / script.checkout),
        "seconds": round(time.monotonic() - begun, 1),
    }
    lines = log.read_text(errors="replace").splitlines()
    said = [line for line in lines if line.startswith("stalloc fits: no answer:")]
    answers = [line for line in lines if line.startswith('{"')]
    if code in (0, 1) and answers:
        row["answer"] = json.loads(answers[-1])
        del row["answer"]["guesses"]
    else:
        row["error"] = said[-1] if said else f"exit code {code}"
    return row


def summary(rows: Sequence[Row]) -> list[str]:
    """The number of scripts with an answer, and with a soon one."""
    answered = [row for row in rows if "answer" in row]
    late = [row["script"] for row in answered if row["seconds"] > _SOON]
    failed = [row["script"] for row in rows if "answer" not in row]
    return [
        "| target | scripts that meet it | others |",
        "|---|---|---|",
        f"| an answer | {len(answered)} of {len(rows)} | {', '.join(failed)} |",
        f"| within {_SOON} s | {len(answered) - len(late)} of {len(answered)} | "
        f"{', '.join(late)} |",
    ]


def render(rows: Sequence[Row], torch: str) -> str:
    """The page."""
    measured = ", ".join(sorted({row["measured"] for row in rows}))
    lines = [f"torch {torch}; measured at {measured}. MiB.", "", *summary(rows), ""]
    lines += [
        "| script | seconds | iterations | load | torch | expandable | stalloc | with extras |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *map(_line, rows),
        "",
        "## The scripts",
        "",
    ]
    scripts = {script.name: script for script in SCRIPTS}
    for row in rows:
        script = scripts[row["script"]]
        text = f"- **{script.name}**: {script.repository} at {row['commit']}, `{script.path}`"
        arguments = " ".join(script.arguments("fits"))
        text += f": `{arguments}`" if arguments else ""
        lines.append(text + (f". Here: {script.note}." if script.note else "."))
    return _HEAD + "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    if "answer" not in row:
        return f"| {row['script']} | {row['seconds']:.0f} | {row['error'].replace('|', '/')} |"
    answer = row["answer"]
    needs = {need["allocator"]: need for need in answer["needs"]}
    cells = [row["script"], f"{row['seconds']:.0f}", str(answer["iterations"])]
    cells.append(f"{answer['load'] / _MIB:,.1f}")
    reserved = [needs[name]["reserved"] for name in ("torch", "torch, expandable segments")]
    reserved += [needs["stalloc"]["reserved"]] if "stalloc" in needs else []
    cells += [f"{each / _MIB:,.0f}" for each in reserved] + ["-"] * (3 - len(reserved))
    low, high = needs["torch"]["low"], needs["torch"]["high"]
    cells.append(f"{low / _MIB:,.0f} to {high / _MIB:,.0f}")
    return "| " + " | ".join(cells) + " |"
