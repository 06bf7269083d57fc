"""The report: the paper's figures and tables from rows, in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from paper import published, uses_report
from paper.figures import Figure, figures, row_name
from paper.native import UseRow
from paper.rows import (
    ALLOCATORS,
    AUTHORS,
    EXPANDABLE,
    GMLAKE,
    NO_REUSE,
    SETTINGS,
    STALLOC,
    TIMED,
    TORCH,
    Row,
    with_setting,
)
from paper.targets import Group, groups_of, outcomes

_SHORT = {TORCH: "torch", EXPANDABLE: "ES", GMLAKE: "GMLake", STALLOC: "stalloc"}
PLOTS = {
    "Figure 8": "paper.fig8.svg",
    "Figure 9": "paper.fig9.svg",
    "Figure 10": "paper.fig10.svg",
    "Figure 13 and Table 3": "paper.fig13.svg",
}
_PAPERS = {STALLOC: "STAlloc"}
_NEAR = 0.03  # of a published load
_MISSED = 8  # workloads that are named of those that miss a target


def render(
    rows: Sequence[Row],
    machine: Mapping[str, str],
    *,
    uses: Sequence[UseRow] = (),
    older: Collection[str] = (),
) -> str:
    """The whole report.

    Args:
        rows: Its figures.
        machine: The circumstances in which they were measured.
        uses: The runs in native mode.
        older: Their commits since which the code has changed.
    """
    parts = [_head(rows, machine, older), _targets(rows)]
    tables: dict[str, Callable[[list[Group]], str]] = {
        "Figure 8": _efficiencies,
        "Published runs": _runs,
        "Settings": _settings,
        "Figure 9": _efficiencies,
        "Figure 10": _efficiencies,
        "Table 1": _fits,
        "Table 2": _planning,
        "Figure 13 and Table 3": _breakdown,
    }
    for name, figure in figures().items():
        groups = in_figure(rows, figure)
        parts.append(f"## {name}: {figure.title}\n")
        missing = len(figure.configs) - len(groups)
        if missing:
            parts.append(f"{missing} of {len(figure.configs)} workloads were not run.\n")
        if not groups:
            continue
        if name in PLOTS:
            parts.append(f"![{figure.title}]({PLOTS[name]})\n\nA cross: out of memory.\n")
        parts.append(tables[name](groups))
    parts += [uses_report.render(uses), _model(rows)]
    return "\n".join(parts)


def in_figure(rows: Iterable[Row], figure: Figure) -> list[Group]:
    """The workloads of a figure that were run, in its order."""
    found = {group[STALLOC].name: group for group in groups_of(rows)}
    names = [row_name(config) for config in figure.configs]
    return [found[name] for name in names if name in found]


def _head(rows: Sequence[Row], machine: Mapping[str, str], older: Collection[str]) -> str:
    took = [float(machine.get(f"cpu_seconds_{step}", 0.0)) / 60 for step in ("record", "replay")]
    commits = Counter(group[STALLOC].commit for group in groups_of(rows))
    measured = ", ".join(f"{count} at commit {commit}" for commit, count in commits.items())
    note = ""
    if older:
        since = " and ".join(sorted(older))
        note = (
            f"\n**Older than the code** are the figures of commit {since}: it has changed since.\n"
        )
    by = sorted({row.by for row in rows if row.allocator in (TORCH, EXPANDABLE)})
    gmlake = sorted({row.by for row in rows if row.allocator == GMLAKE})
    return f"""# The paper's evaluation
{note}
Written by `make paper`: {machine["cpu"]}, {machine["cores"]} cores, {machine["system"]}. \
Workloads: {measured}. torch's rows: {" and ".join(by)}; ES is the \
same with expandable segments. GMLake's rows: {" and ".join(gmlake)}. \
[README](../README.md) says what is measured and what is modelled; `paper.json` has every row. \
The last of these measurements took {took[0]:.0f} minutes of one core \
for recording, and {took[1]:.0f} for replaying.

Efficiency is load / reserved, the most bytes live and the most held of the device over the whole \
run: start-up, a warm-up iteration and three more. The plan of a mixture of experts was made from \
these, and served two more iterations which it had not seen. Sizes are GiB; the paper's GB are as \
printed there. The paper's figures come without their data: of most bars the text gives a range \
over a model's bars, or a mean, or nothing.
"""


def _targets(rows: Sequence[Row]) -> str:
    cells = []
    for outcome in outcomes(rows):
        if not outcome.groups or outcome.worst is None:
            cells.append([outcome.target.text, "not measured", "", ""])
            continue
        met = len(outcome.groups) - len(outcome.missed)
        worst = outcome.worst
        named = [group[STALLOC].name for group in outcome.missed[:_MISSED]]
        more = len(outcome.missed) - len(named)
        cells.append(
            [
                outcome.target.text,
                f"{met} of {len(outcome.groups)}",
                f"{outcome.target.shown(worst)} ({worst[STALLOC].name})",
                ", ".join(named) + (f" and {more} more" if more > 0 else ""),
            ]
        )
    return "## Targets\n\n" + _table(["target", "reached", "least margin", "missed by"], cells)


def _efficiencies(groups: list[Group]) -> str:
    head = ["workload", "microbatch", "load"]
    head += [f"{_SHORT[a]} {what}" for a in ALLOCATORS for what in ("reserved", "efficiency")]
    head.append("ns: torch / ES / stalloc's core")
    head += [f"paper: {_PAPERS.get(a, _SHORT[a])}" for a in ALLOCATORS]
    cells = []
    for group in groups:
        ours = group[STALLOC]
        line = [_title(ours), str(ours.microbatch), _gib(ours.load)]
        for allocator in ALLOCATORS:
            row = group[allocator]
            line += [_gib(row.reserved) + ("" if row.fits else " †"), f"{row.efficiency:.4f}"]
        line.append(" / ".join(_nanoseconds(group[a]) for a in TIMED))
        for allocator in ALLOCATORS:
            known = published.of(group[allocator])
            line.append(known.text if known else "")
        cells.append(line)
    capacity = _gib(groups[0][STALLOC].capacity)
    return (
        _table(head, cells)
        + f"\n† runs out of memory on a GPU with {capacity} GiB. Nanoseconds are those of a "
        "request and its free: torch's whole path, and stalloc's core alone, without torch's "
        "interface and the hooks. `make bench-cuda` compares both through torch.\n"
        + _reductions(groups)
    )


def _runs(groups: list[Group]) -> str:
    """The authors' own runs beside ours."""
    head = ["workload", "load here", "load theirs", "difference"]
    head += [f"{_SHORT[a]} {whose}" for a in ALLOCATORS for whose in ("here", "theirs")]
    head.append("STAlloc's planner here")
    cells = []
    differences = []
    for group in groups:
        row = group[STALLOC]
        known = {a: published.of_run(group[a]) for a in ALLOCATORS}
        theirs = known[STALLOC] or known[TORCH]
        line = [_title(row), _gib(row.load)]
        if theirs is not None and theirs.load_gb is not None:
            differences.append(row.load / 2**30 / theirs.load_gb - 1)
            line += [f"{theirs.load_gb:.2f}", f"{differences[-1]:+.1%}"]
        else:
            line += ["", ""]
        for allocator in ALLOCATORS:
            ours, text = group[allocator], known[allocator]
            line.append(_reserved(ours))
            line.append(text.text if text else "")
        line.append(_reserved(group[AUTHORS]) if AUTHORS in group else "")
        cells.append(line)
    near = sum(abs(d) <= _NEAR for d in differences)
    return (
        "GPT-2 and Llama2 have Megatron-LM's legacy layers with dropout, the mixture of experts "
        "those of Transformer Engine with LayerNorm. Sizes are GiB, and so are the authors' GB: "
        "as 10^9 bytes, their loads would be 5 to 8 % below those of the same models here. The "
        f"loads of {near} of {len(differences)} published runs differ by at most {_NEAR:.0%}. "
        "Efficiencies compare allocators only where the loads agree. The paper's load of V, "
        "51.8 GB, is 86.5 % of the 59.9 GB that its text calls 80 %; those would be 47.9 GB. The "
        "implementation of "
        "offload in those runs is not public, and their torch loses up to half of its memory "
        "there. The last stage of the mixture of experts lacks as much as one more 32-bit copy of "
        "the logits takes, 9.3 GiB; Megatron-LM's loss makes none.\n\n" + _table(head, cells)
    )


def _settings(groups: list[Group]) -> str:
    """The bytes that torch reserves under each of its settings, beside stalloc."""
    cells = []
    for group in groups:
        ours = group[STALLOC]
        line = [_title(ours), _gib(ours.load), _gib(group[TORCH].reserved)]
        line += [_gib(group[EXPANDABLE].reserved), _gib(group[GMLAKE].reserved)]
        for name in map(with_setting, SETTINGS):
            row = group.get(name)
            line.append("" if row is None else _gib(row.reserved) if row.fits else "†")
        cells.append([*line, _gib(ours.reserved)])
    capacity = _gib(groups[0][STALLOC].capacity)
    return (
        f"Reserved GiB on a GPU with {capacity} GiB, all of which the process may have. "
        "† runs out of memory.\n\n"
        + _table(["workload", "load", "torch", "ES", "GMLake", *SETTINGS, "stalloc"], cells)
    )


def _reductions(groups: list[Group]) -> str:
    """The average reduction of fragmentation against the peers, as the paper counts."""
    lines = []
    for kind, chosen in (
        ("dense", [g for g in groups if g[STALLOC].workload in published.DENSE]),
        ("moe", [g for g in groups if g[STALLOC].workload == published.MOE]),
    ):
        for peer in (TORCH, EXPANDABLE):
            known = published.FRAGMENTATION_REDUCED.get((kind, peer))
            if not chosen or known is None:
                continue
            mean = sum(_reduction(g[peer], g[STALLOC]) for g in chosen) / len(chosen)
            name = "mixture of experts" if kind == "moe" else "dense"
            lines.append(
                f"- {name}: {mean:.1%} less fragmentation than {peer}, on average; "
                f"the paper: {known:.1%}"
            )
    return "\n" + "\n".join(lines) + "\n" if lines else ""


def _reduction(peer: Row, ours: Row) -> float:
    wasted = peer.reserved - peer.load
    return 1.0 - (ours.reserved - ours.load) / wasted if wasted > 0 else 0.0


def _fits(groups: list[Group]) -> str:
    head = ["configuration", "stage", "load"]
    head += [f"{_SHORT[a]} {what}" for a in TIMED for what in ("fits", "needs")]
    head += ["paper: torch / ES / STAlloc", "paper: TFLOPS"]
    cells = []
    for group in groups:
        ours = group[STALLOC]
        name, known, flops = published.FITS[ours.config]
        line = [name, ours.stage, _gib(ours.load)]
        for allocator in TIMED:
            row = group[allocator]
            line += [_yes(row.fits), _gib(row.needs or row.reserved)]
        line += [" / ".join(_yes(known[a]) for a in TIMED), f"{flops}"]
        cells.append(line)
    capacity = groups[0][STALLOC].capacity
    return (
        f"Qwen2.5-14B on 16 GPUs with {_gib(capacity)} GiB. `needs` is the "
        "smallest capacity at which the trace runs to its end, start-up included. A configuration "
        "runs when both stages fit.\n\n" + _table(head, cells)
    )


def _planning(groups: list[Group]) -> str:
    head = ["workload", "requests", "seconds of planning", "optimal", "reserved"]
    head += ["STAlloc's planner: seconds", "reserved", "paper: requests", "paper: seconds"]
    cells = []
    for group in groups:
        row = group[STALLOC]
        requests, seconds = published.PLANNING[row.workload, row.config]
        ours = f"{row.plan_seconds or 0.0:.2f}"
        proven = _yes(bool(row.optimal))
        line = [_title(row), f"{row.requests:,}", ours, proven, _reserved(row)]
        theirs = group.get(AUTHORS)
        if theirs is None:
            line += ["", ""]
        else:
            line += [f"{theirs.plan_seconds or 0.0:.1f}", _reserved(theirs)]
        line += [f"{requests:,}", f"{seconds}"]
        cells.append(line)
    return (
        "CPU time on one core of `Trace.plan` with its defaults: comparing the iterations, "
        "planning, validating. The search ends with a proof that the plan is optimal, or at the "
        "default time limit. STAlloc's planner is the one that the authors published "
        "(infinigence/STAlloc), with its defaults, on the same requests: CPU time, and the GiB "
        "that it reserves for the whole run. A mixture of experts is left out: that plan has no "
        "dynamic requests.\n\n" + _table(head, cells)
    )


def _breakdown(groups: list[Group]) -> str:
    head = ["workload", "load", "static", "dynamic", "fallback", "of it, without reuse"]
    head += ["torch", "static plan alone", "stalloc", "ES"]
    head += ["paper, GB: total / static / fallback without / with reuse"]
    cells = []
    for group in groups:
        ours, alone = group[STALLOC], group[NO_REUSE]
        static = (alone.pool or 0) + (alone.resident or 0)
        whole = (ours.pool or 0) + (ours.resident or 0)
        known = published.COMPOSITION[ours.config]
        cells.append(
            [
                _title(ours),
                _gib(ours.load),
                _gib(static),
                _gib(whole - static),
                _gib(ours.reserved - whole),
                _gib(alone.reserved - static),
                *(f"{group[a].efficiency:.4f}" for a in (TORCH, NO_REUSE, STALLOC, EXPANDABLE)),
                " / ".join(str(part) for part in known),
            ]
        )
    alone_reduces = _mean(_reduction(g[TORCH], g[NO_REUSE]) for g in groups)
    further = _mean(_reduction(g[NO_REUSE], g[STALLOC]) for g in groups)
    return (
        "Static planning off is torch's allocator; the static plan alone sends dynamic requests to "
        "the fallback. `static` is what the static plan reserves, `dynamic` what regions for "
        "dynamic requests add to it, `fallback` what is reserved beside both. Efficiencies "
        "last.\n\n"
        + _table(head, cells)
        + f"\n- The static plan alone reduces torch's fragmentation by {alone_reduces:.1%} on "
        f"average; the paper: {published.STATIC_ALONE_REDUCES:.1%}\n"
        f"- Dynamic reuse reduces what is left by {further:.1%}; the paper: "
        f"{published.REUSE_REDUCES_FURTHER:.1%}\n"
    )


_MODEL = "## The models of torch's and GMLake's policies\n\n"


def _model(rows: Sequence[Row]) -> str:
    """The distance between the models and the allocators themselves."""
    real = [row for row in rows if row.model_reserved is not None]
    lines = []
    for name, of in (("torch", (TORCH, EXPANDABLE)), ("GMLake", (GMLAKE,))):
        chosen = [row for row in real if row.allocator in of]
        same = sum(row.model_reserved == row.reserved for row in chosen)
        lines.append(
            f"- {same} of {len(chosen)} replays of the model reserve what {name} itself does, to "
            "the byte.\n"
            if chosen
            else f"- The model of {name}'s policy was not compared: {name} itself did not run.\n"
        )
    listed = [
        [row.name, _SHORT[row.allocator], f"{(row.model_reserved or 0) - row.reserved:+,}"]
        for row in real
        if row.model_reserved != row.reserved
    ]
    table = "\n" + _table(["workload", "allocator", "bytes off"], listed) if listed else ""
    return _MODEL + "".join(lines) + table


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


def _title(row: Row) -> str:
    return f"{row.workload} {row.config.upper()} {row.stage}"


def _reserved(row: Row) -> str:
    return f"{_gib(row.reserved)}, {100 * row.efficiency:.1f} %"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f}"


def _nanoseconds(row: Row) -> str:
    return "?" if row.seconds_per_request is None else f"{row.seconds_per_request * 1e9:.0f}"


def _table(head: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
