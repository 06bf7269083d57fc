"""The report's plots, as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper.figures import figures
from paper.report import PLOTS, in_figure
from paper.rows import ALLOCATORS, EXPANDABLE, GMLAKE, NO_REUSE, STALLOC, TORCH, Row
from paper.targets import Group

_COLOURS = {
    TORCH: "#b8b8b8",
    EXPANDABLE: "#7aa6c2",
    GMLAKE: "#8fae7f",
    NO_REUSE: "#e0b060",
    STALLOC: "#c8553d",
}
_LABELS = {
    TORCH: "torch",
    EXPANDABLE: "expandable segments",
    GMLAKE: "GMLake",
    NO_REUSE: "static plan alone",
    STALLOC: "stalloc",
}


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Draws every figure that has rows."""
    for name, file in PLOTS.items():
        groups = in_figure(rows, figures()[name])
        if groups:
            with _style():
                _draw(name, groups).savefig(folder / file, metadata={"Date": None})


def _style() -> AbstractContextManager[None]:
    return mpl.rc_context(
        {
            "svg.hashsalt": "stalloc",  # the same figures give the same file
            "svg.fonttype": "none",
            "font.size": 8,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )


def _draw(name: str, groups: list[Group]) -> Figure:
    if name == "Figure 10":
        return _lines(groups)
    if name == "Figure 9":
        return _bars(_by(groups, lambda row: _PANELS[row.config]), lambda row: row.workload)
    if name == "Figure 8":
        return _bars(_by(groups, lambda row: row.workload), lambda row: row.config.upper())
    shown = (TORCH, NO_REUSE, STALLOC, EXPANDABLE)
    return _bars({"": groups}, lambda row: row.config.upper(), shown)


_PANELS = {"r": "with recomputation", "v": "with virtual pipeline"}


def _by(groups: list[Group], key: Callable[[Row], str]) -> dict[str, list[Group]]:
    panels: dict[str, list[Group]] = {}
    for group in groups:
        panels.setdefault(key(group[STALLOC]), []).append(group)
    return panels


def _bars(
    panels: dict[str, list[Group]],
    label: Callable[[Row], str],
    shown: Sequence[str] = ALLOCATORS,
) -> Figure:
    """A panel each, of bars by workload and stage; a cross where memory runs out."""
    figure = Figure(figsize=(9, 2.4 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False)
    width = 0.8 / len(shown)
    for (title, groups), axis in zip(panels.items(), axes[:, 0], strict=True):
        for number, allocator in enumerate(shown):
            at = [place + (number - (len(shown) - 1) / 2) * width for place in range(len(groups))]
            rows = [group[allocator] for group in groups]
            heights = [row.efficiency for row in rows]
            axis.bar(at, heights, width, color=_COLOURS[allocator], label=_LABELS[allocator])
            out = [(x, row.efficiency) for x, row in zip(at, rows, strict=True) if not row.fits]
            axis.plot([x for x, _ in out], [y + 0.01 for _, y in out], "x", color="black", ms=3)
        names = [f"{label(g[STALLOC])}\n{g[STALLOC].stage}" for g in groups]
        axis.set_xticks(range(len(groups)), names)
        axis.set_title(title, loc="left")
        _efficiency_axis(axis, groups)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=4)
    return figure


def _lines(groups: list[Group]) -> Figure:
    """Efficiency over the microbatch, a panel each stage."""
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for stage, axis in zip(("first", "last"), axes, strict=True):
        of_stage = [group for group in groups if group[STALLOC].stage == stage]
        for allocator in ALLOCATORS:
            rows = [group[allocator] for group in of_stage]
            axis.plot(
                [row.microbatch for row in rows],
                [row.efficiency for row in rows],
                marker="o",
                color=_COLOURS[allocator],
                label=_LABELS[allocator],
            )
        axis.set_xscale("log", base=2)
        microbatches = [group[STALLOC].microbatch for group in of_stage]
        axis.set_xticks(microbatches, [str(size) for size in microbatches])
        axis.set_xlabel(f"microbatch, {stage} stage")
        _efficiency_axis(axis, groups)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=4)
    return figure


def _efficiency_axis(axis: Axes, groups: list[Group]) -> None:
    """Begins where there is something to tell apart, and says so."""
    least = min(row.efficiency for group in groups for row in group.values())
    begin = max(0.0, math.floor(10 * least - 0.5) / 10)
    axis.set_ylabel(f"efficiency, from {begin:.1f}")
    axis.set_ylim(begin, 1.02)
    axis.axhline(1.0, color="black", linewidth=0.4)
