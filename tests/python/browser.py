"""A real browser for tests, headless, that has no network to fall back on."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from stalloc.report import Scene, render

Open = Callable[[Scene], "Page"]


class Page:
    """An open report."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def ask(self, expression: str, *args: Any) -> Any:
        """The value of a JavaScript expression; `app` is the report's."""
        return self.driver.execute_script(f"const app = stallocReport; return {expression};", *args)

    def text(self, element: str) -> str:
        return self.driver.find_element(By.ID, element).text

    def press(self, *keys: str) -> None:
        canvas = self.driver.find_elements(By.CSS_SELECTOR, ".drawing canvas:last-child")[0]
        self.driver.execute_script("arguments[0].focus()", canvas)
        ActionChains(self.driver).send_keys(*keys).perform()
        self.settle()

    def settle(self) -> None:
        """Waits until whatever was asked for is drawn."""
        self.driver.execute_async_script(
            "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
        )

    def point(self, panel: int, tick: float, address: float) -> None:
        """Moves the pointer to a place of the map."""
        x, y = self.ask(
            "(([p, t, a]) => { const b = app.panels[p].overlay.getBoundingClientRect();"
            " return [b.left + app.panels[p].xOf(t), b.top + app.panels[p].yOf(a)]; })(arguments)",
            panel,
            float(tick),
            float(address),
        )
        actions = ActionChains(self.driver)
        actions.w3c_actions.pointer_action.move_to_location(round(x), round(y))
        actions.perform()
        self.settle()

    def colour(self, panel: int, tick: float, address: float) -> list[int]:
        """The colour of the pixel."""
        pixel: list[int] = self.ask(
            "(([p, t, a]) => { const {base, ratio} = app.panels[p];"
            " const [x, y] = [app.panels[p].xOf(t), app.panels[p].yOf(a)];"
            " return Array.from("
            " base.getContext('2d').getImageData(x * ratio, y * ratio, 1, 1).data);"
            " })(arguments)",
            panel,
            float(tick),
            float(address),
        )
        return pixel[:3]

    def named(self, name: str) -> list[int]:
        """A colour of the style, such as `held` or a lifetime class."""
        digits = self.ask("app.colours[arguments[0]]", name)
        return [int(digits[i : i + 2], 16) for i in (1, 3, 5)]

    def tooltip(self) -> str:
        return self.text("tooltip")

    def counts(self) -> list[tuple[int, int]]:
        """Each panel's rectangles in view, and the number of them below a pixel."""
        drawn = self.driver.execute_script("return document.documentElement.dataset.drawn")
        return [(int(a), int(b)) for a, b in re.findall(r"(\d+)/(\d+)", drawn)]


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    assert chromium, "there is no chromium: make setup installs it"
    assert chromedriver, (
        "there is no chromedriver (Debian: chromium-driver): make setup installs it"
    )
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in ("--headless=new", "--window-size=1366,768", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium's sandbox refuses to run as root
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    driver.execute_cdp_cmd("Network.enable", {})
    driver.execute_cdp_cmd(
        "Network.emulateNetworkConditions",
        {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0},
    )
    yield driver
    driver.quit()


@pytest.fixture
def show(driver: webdriver.Chrome, tmp_path: Path) -> Iterator[Open]:
    """Opens a report; when the test is over, the browser must have had nothing to complain of."""

    def show(scene: Scene) -> Page:
        path = tmp_path / "report.html"
        path.write_bytes(render(scene))
        driver.get(path.as_uri())
        WebDriverWait(driver, 60).until(
            lambda d: d.execute_script("return window.stallocReport !== undefined")
        )
        return Page(driver)

    yield show
    assert complaints(driver) == []


def complaints(driver: webdriver.Chrome) -> list[str]:
    """The browser's messages about the page, without those about reading its pixels."""
    return [
        entry["message"]
        for entry in driver.get_log("browser")
        if "willReadFrequently" not in entry["message"]
    ]
