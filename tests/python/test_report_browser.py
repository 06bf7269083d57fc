"""Reports as a browser shows them: a real one, headless, that has no network to fall back on."""

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
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait
from trace_documents import TraceWriter, to_trace, training_document

from stalloc.report import Scene, render, scene_of_plan, scene_of_trace

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


def training_scene() -> Scene:
    """With sizes that can be told apart in a drawing of memory that comes in pieces of 2 MiB."""
    document = training_document()
    sizes = {100_000: 3_000_000, 50_000: 9_000_000}
    document["requests"]["size"] = [
        sizes.get(size, 2000 * size) for size in document["requests"]["size"]
    ]
    trace = to_trace(document)
    return scene_of_trace(trace, trace.plan(), "training.json")


def staircase(steps: int) -> Scene:
    """Many short requests, each at its own time."""
    writer = TraceWriter()
    for _ in range(2):
        writer.phase("forward", 0)
        for step in range(steps):
            writer.free(writer.alloc((8 + step % 7) << 20))
        writer.step()
    return scene_of_plan(to_trace(writer.document()).plan(), "staircase.json")


def test_a_report_opens_offline(show: Open) -> None:
    scene = training_scene()
    page = show(scene)
    assert page.driver.title == "training.json · stalloc report"
    assert [seen for seen, _ in page.counts()] == [len(each.rectangles) for each in scene.drawings]
    assert "file training.json" in " ".join(page.text("facts").split())
    assert page.driver.find_element(By.ID, "problem").is_displayed() is False


def test_requests_have_the_colour_of_their_class_and_holes_are_blank(show: Open) -> None:
    scene = training_scene()
    page = show(scene)
    rows = scene.drawings[-1].rectangles
    for i in range(len(rows)):
        request = rows.request[i]
        if scene.requests.size[request] < 1_000_000:
            continue
        middle = (rows.start[i] + rows.end[i]) / 2
        address = rows.address[i] + scene.requests.size[request] / 2
        name = page.ask("app.scene.classes[arguments[0]]", int(scene.requests.lifetime[request]))
        assert page.colour(-1 % len(scene.drawings), middle, address) == page.named(name)
    tick, address = hole(scene)
    assert page.colour(len(scene.drawings) - 1, tick, address) == page.named("held")


def hole(scene: Scene) -> tuple[float, float]:
    """The middle of the largest stretch of the first segment that no request has at some tick."""
    drawing = scene.drawings[-1]
    rows = drawing.rectangles
    size = scene.requests.size[rows.request]
    top = int(drawing.segments.size[0])
    found = []
    for tick in range(scene.period):
        live = (rows.start <= tick) & (tick < rows.end) & (rows.address < top)
        ends = sorted((rows.address[live] + size[live]).tolist())
        begins = sorted([*rows.address[live].tolist(), top])
        found += [
            (begin - end, tick + 0.5, (begin + end) / 2)
            for end, begin in zip([0, *ends], begins, strict=True)
        ]
    _, tick_of_hole, address = max(found)
    return tick_of_hole, address


def test_the_pointer_is_told_size_lifetime_phase_and_layer(show: Open) -> None:
    scene = training_scene()
    page = show(scene)
    panel = len(scene.drawings) - 1
    rows = scene.drawings[-1].rectangles
    i = int((scene.requests.size[rows.request] == 4_000_000).argmax())
    page.point(panel, (rows.start[i] + rows.end[i]) / 2, rows.address[i] + 2_000_000)
    said = page.tooltip()
    assert "3.8 MiB scoped" in said
    assert "model[0]" in said
    assert "forward 0 → backward 0" in said
    assert f"ticks {rows.start[i]} to {rows.end[i]}" in said
    page.point(panel, *hole(scene))
    assert "idle here and then" in page.tooltip()


def test_the_keyboard_zooms_moves_and_steps(show: Open) -> None:
    page = show(training_scene())
    everything = page.ask("({...app.scene.view})")
    page.press("+", "+")
    closer = page.ask("({...app.scene.view})")
    assert closer["t1"] - closer["t0"] < everything["t1"] - everything["t0"]
    page.press(Keys.ARROW_RIGHT)
    assert page.ask("app.scene.view.t0") > closer["t0"]
    page.press("0")
    assert page.ask("({...app.scene.view})") == everything
    page.press("n", "n")
    selected = page.ask("app.scene.selected")
    assert selected >= 0
    assert page.driver.find_element(By.ID, "tooltip").is_displayed()
    page.press("p", Keys.ESCAPE)
    assert page.ask("app.scene.selected") == -1


def test_counts_requests_under_a_pixel_until_zoomed_in(show: Open) -> None:
    page = show(staircase(20_000))
    for seen, small in page.counts():
        assert seen == small == 20_000
    assert "20,000 rectangles in view, 20,000 of them thinner than a pixel" in page.text("status")
    # However many share a pixel, it is not taken for a hole.
    assert page.colour(1, 20_000, 4 << 20) != page.named("held")
    page.press(*("+" * 14))
    for seen, small in page.counts():
        assert 0 < seen < 1000
        assert small == 0


def test_classes_can_be_faded_and_layers_found(show: Open) -> None:
    scene = training_scene()
    page = show(scene)
    panel = len(scene.drawings) - 1
    rows = scene.drawings[-1].rectangles
    i = int((scene.requests.size[rows.request] == 4_000_000).argmax())
    place = (rows.start[i] + rows.end[i]) / 2, rows.address[i] + 2e6
    assert page.colour(panel, *place) == page.named("scoped")
    for button in page.driver.find_elements(By.CSS_SELECTOR, "#legend button"):
        if "scoped" in button.text:
            button.click()
            page.settle()
            assert button.get_attribute("aria-pressed") == "false"
            assert page.colour(panel, *place) != page.named("scoped")
            button.click()
    search = page.driver.find_element(By.ID, "search")
    search.send_keys("optimizer")
    page.settle()
    assert page.text("status").startswith("1 requests found")
    assert page.colour(panel, *place) != page.named("scoped")


def test_it_can_be_dark(show: Open) -> None:
    page = show(training_scene())
    light = page.named("held")
    page.driver.find_element(By.ID, "theme").click()
    page.settle()
    assert sum(page.named("held")) < 200 < sum(light)
    tick, address = hole(training_scene())
    assert page.colour(page.ask("app.panels.length") - 1, tick, address) == page.named("held")


def test_a_damaged_report_says_so(show: Open, driver: webdriver.Chrome, tmp_path: Path) -> None:
    path = tmp_path / "damaged.html"
    page = render(training_scene()).decode()
    path.write_text(re.sub(r'(id="data">)[^<]{20}', r"\1", page))
    driver.get(path.as_uri())
    problem = driver.find_element(By.ID, "problem")
    WebDriverWait(driver, 60).until(lambda _: problem.is_displayed())
    assert problem.text
    assert complaints(driver) != []


def test_names_are_shown_and_never_obeyed(show: Open) -> None:
    """Names of layers, notes and the file are never HTML or a script."""
    evil = "</script><img src=x onerror=\"document.title='obeyed'\">'\"`${1}&lt;\x1b[2J\u2028"
    document = training_document() | {"layers": [evil]}
    document["info"] = {evil: evil, "assumptions": f"{evil}\nsecond", "__proto__": "plain"}
    trace = to_trace(document)
    page = show(scene_of_trace(trace, trace.plan(), evil))
    assert page.ask("document.images.length + document.scripts.length") == 3
    assert page.driver.title.startswith("</script><img")
    assert page.text("title").startswith("</script><img")
    facts = page.text("facts")
    assert facts.count("</script><img") == 3  # the file's name, and a note's name and text
    assert "plain" in facts
    items = "Array.from(document.querySelectorAll('#assumptions li'), e => e.textContent)"
    assert page.ask(items) == [evil, "second"]
    page.press("n")
    assert "</script><img" in page.tooltip()
    assert "</script><img" in page.text("peak")


def test_shows_assumptions_only_if_there_are_any(show: Open) -> None:
    trace = to_trace(training_document())
    page = show(scene_of_trace(trace, trace.plan(), "training.json"))
    assert page.ask("document.getElementById('assumed').hidden")
