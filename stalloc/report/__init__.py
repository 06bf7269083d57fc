"""Reports: one HTML file that shows an iteration's memory, address by address and tick by tick.

A *scene* (`scene.py`) holds the data to draw: the requests of an iteration, and one *drawing*
(`drawing.py`) for each allocator. `page.py` puts it into a page, whose script
in `assets/` draws it.
"""

from __future__ import annotations

from stalloc.report.drawing import Drawing
from stalloc.report.page import render
from stalloc.report.scene import Scene, scene_of_plan, scene_of_trace

__all__ = ["Drawing", "Scene", "render", "scene_of_plan", "scene_of_trace"]
