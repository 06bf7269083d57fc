"""Makes the documentation's pictures: reports of a real model, in a headless browser.

A GPT with recomputation in every other layer is profiled on the meta device, which takes seconds
and no memory, with sequence lengths that change from one microbatch to the next and from one
iteration to the next: what online allocators find hard. Needs chromium and chromedriver.

    python scripts/docs_pictures.py docs/pictures
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from selenium import webdriver
from selenium.webdriver.support.wait import WebDriverWait
from torch.nn import functional

import stalloc
from stalloc.report import Scene, render, scene_of_trace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from quickstart import Config, Gpt

CONFIG = Config(layers=12, width=1024, heads=16, vocabulary=8192, length=1024, microbatch=4)
LENGTHS = (1024, 640, 896, 768)
CHOSEN = 512
"""The length of the picture of the slider."""
SIZE = (1366, 740)


def profiled() -> stalloc.Trace:
    """Iterations of training, each with the lengths in another order."""
    with torch.device("meta"):
        model = Gpt(CONFIG)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)
    with stalloc.profile(model) as prof:
        for iteration in range(len(LENGTHS)):
            for length in (*LENGTHS[iteration:], *LENGTHS[:iteration]):
                tokens = torch.zeros((CONFIG.microbatch, length + 1), dtype=torch.long).to("meta")
                logits = model(tokens[:, :-1])
                loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                torch.autograd.backward(loss / len(LENGTHS))
                del tokens, logits, loss
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            prof.step()
    return prof.trace


def open_report(scene: Scene, folder: Path) -> webdriver.Chrome:
    """Opens a report."""
    page = folder / "report.html"
    page.write_bytes(render(scene))
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--hide-scrollbars", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    browser = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
    )
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": SIZE[0], "height": SIZE[1], "deviceScaleFactor": 1, "mobile": False},
    )
    browser.get(page.as_uri())
    WebDriverWait(browser, 60).until(
        lambda b: b.execute_script("return window.stallocReport !== undefined")
    )
    return browser


def largest_in_view(scene: Scene, view: dict[str, float]) -> tuple[int, float, float]:
    """A request worth pointing at: its row, and the middle of what is seen of it."""
    rows = scene.drawings[-1].rectangles
    left, right = np.maximum(rows.start, view["t0"]), np.minimum(rows.end, view["t1"])
    low = np.maximum(rows.address, view["a0"])
    high = np.minimum(rows.address + scene.requests.size[rows.request], view["a1"])
    best = int((np.maximum(right - left, 0) * np.maximum(high - low, 0)).argmax())
    middle = float(left[best] + right[best]) / 2, float(low[best] + high[best]) / 2
    return int(rows.request[best]), *middle


def point_at(browser: webdriver.Chrome, scene: Scene) -> None:
    """Picks a request on stalloc's side, and leaves the pointer there."""
    view = browser.execute_script("return stallocReport.scene.view")
    row, tick, address = largest_in_view(scene, view)
    x, y = browser.execute_script(
        "const p = stallocReport.panels.at(-1), b = p.overlay.getBoundingClientRect();"
        "stallocReport.choose(arguments[0]);"
        "return [b.left + p.xOf(arguments[1]), b.top + p.yOf(arguments[2])];",
        row,
        tick,
        address,
    )
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})


def main() -> int:
    """Writes the pictures into the folder that is named."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    trace = profiled()
    scene = scene_of_trace(trace, trace.plan(), "gpt.trace.json")
    with tempfile.TemporaryDirectory() as temporary:
        browser = open_report(scene, Path(temporary))
        browser.save_screenshot(str(folder / "report.png"))
        browser.execute_script(
            "const { sliders } = stallocReport; sliders.choose([arguments[0]], true);"
            "stallocReport.draw();",
            CHOSEN,
        )
        browser.save_screenshot(str(folder / "slider.png"))
        browser.execute_script("stallocReport.sliders.reset.click();")
        browser.execute_script(
            "const { scene } = stallocReport;"
            "scene.zoomTime(0.14, 0.27); scene.zoomAddresses(0.55, 0); stallocReport.draw();"
        )
        point_at(browser, scene)
        browser.save_screenshot(str(folder / "zoomed.png"))
        browser.quit()
    return 0


if __name__ == "__main__":
    sys.exit(main())
