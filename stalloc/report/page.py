"""The page: one HTML file with its style, its script and its data inside, that asks for nothing.

The script draws on a canvas by itself. A charting library would be several times the size of the
data, and keeps an object for every rectangle, which 300,000 of them do not bear. A content security
policy in the page forbids it to load anything, so that it works, and stays private, offline.
"""

from __future__ import annotations

import html
import json
import string
from dataclasses import asdict
from importlib.resources import files

import numpy as np

import stalloc
from stalloc.report.drawing import Drawing
from stalloc.report.pack import Packed, pack
from stalloc.report.scene import CLASSES, Requests, Scene
from stalloc.report.sized import Sized
from stalloc.tables import PHASE_KINDS

_SCRIPTS = (
    "data.js",
    "format.js",
    "raster.js",
    "sizes.js",
    "scene.js",
    "panel.js",
    "curve.js",
    "map.js",
    "pick.js",
    "controls.js",
    "summary.js",
    "sliders.js",
    "main.js",
)
"""In this order they make up the script."""


def render(scene: Scene) -> bytes:
    """The page in UTF-8."""
    assets = files("stalloc.report") / "assets"
    packed = pack(_columns(scene))
    template = string.Template((assets / "page.html").read_text(encoding="utf-8"))
    script = "\n".join((assets / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    page = template.substitute(
        title=html.escape(scene.title),
        version=html.escape(stalloc.__version__),
        style=(assets / "style.css").read_text(encoding="utf-8"),
        script=script,
        description=_description(scene, packed),
        data=packed.text,
    )
    return page.encode(errors="backslashreplace")  # a file's name need not be text


def _columns(scene: Scene) -> dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    columns = {f"requests.{name}": getattr(scene.requests, name) for name in Requests.__slots__}
    columns |= {
        "live.request": scene.live.request,
        "live.start": scene.live.start,
        "live.end": scene.live.end,
    }
    for number, drawing in enumerate(scene.drawings):
        for table in ("rectangles", "segments", "regions"):
            rows = getattr(drawing, table)
            for name in rows.__slots__:
                columns[f"layouts.{number}.{table}.{name}"] = getattr(rows, name)
        ticks, held = drawing.held()
        columns |= {f"layouts.{number}.held.tick": ticks, f"layouts.{number}.held.bytes": held}
    if scene.sized is not None:
        columns |= {"sized.law": scene.sized.law, "sized.size": scene.sized.size}
        rows = scene.sized.rectangles
        for name in () if rows is None else rows.__slots__:
            columns[f"sized.rectangles.{name}"] = getattr(rows, name)
    return columns


def _description(scene: Scene, packed: Packed) -> str:
    """All data that is not a column, as JSON that can stand in a script element."""
    phases = scene.phases
    content = {
        "title": scene.title,
        "facts": scene.facts,
        "assumptions": scene.assumptions,
        "period": scene.period,
        "load": scene.load,
        "verdict": scene.verdict,
        "limit": scene.limit,
        "classes": CLASSES,
        "layers": scene.layers,
        "phases": [
            {
                "name": phases.name(row),
                "kind": PHASE_KINDS[int(phases.kind[row])],
                "begin": int(phases.begin[row]),
                "end": int(phases.end[row]),
            }
            for row in range(len(phases))
        ],
        "layouts": [_layout_description(drawing) for drawing in scene.drawings],
        "sized": None if scene.sized is None else _sized_description(scene.sized),
        "columns": packed.manifest,
    }
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    # Nothing in a name may end the element it stands in.
    return text.replace("<", "\\u003c")


def _layout_description(drawing: Drawing) -> dict[str, object]:
    return {"allocator": drawing.allocator, "title": drawing.title, "reserved": drawing.reserved}


def _sized_description(sized: Sized) -> dict[str, object]:
    """The laws; their numbers as text, for the script's numbers are exact up to 2^53 only."""
    return {
        "extents": [
            {"name": name, "largest": largest, "used": name in sized.used}
            for name, largest in sized.extents.items()
        ],
        "recorded": sized.rectangles is not None,
        "laws": [
            {
                "constant": str(law.constant),
                "divisor": str(law.divisor),
                "step": str(law.step),
                "terms": [
                    {"coefficient": str(coefficient), "factors": factors}
                    for coefficient, factors in law.terms
                ],
            }
            for law in sized.laws
        ],
        "summaries": [asdict(summary) for summary in sized.summaries],
    }
