"""Reports as a browser shows them: a real one, headless, that has no network to fall back on."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from browser import Open, complaints, driver, show
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait
from trace_documents import TraceWriter, to_trace, training_document

from stalloc.report import Scene, render, scene_of_plan, scene_of_trace

__all__ = ["driver", "show"]


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
    """The middle of the largest stretch of a segment that no request has at some tick.

    The segment is the largest that is always held: the pool without its first piece.
    """
    drawing = scene.drawings[-1]
    rows, segments = drawing.rectangles, drawing.segments
    size = scene.requests.size[rows.request]
    largest = (segments.size * (segments.start == 0)).argmax()
    bottom = int(segments.address[largest])
    top = bottom + int(segments.size[largest])
    found = []
    for tick in range(scene.period):
        live = (rows.start <= tick) & (tick < rows.end)
        live &= (rows.address < top) & (rows.address + size > bottom)
        ends = sorted((rows.address[live] + size[live]).tolist())
        begins = sorted([*rows.address[live].tolist(), top])
        found += [
            (begin - end, tick + 0.5, (begin + end) / 2)
            for end, begin in zip([bottom, *ends], begins, strict=True)
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


def test_an_estimate_shows_its_verdict_and_its_limit(show: Open) -> None:
    scene = training_scene()
    limit = 2 * max(drawing.reserved for drawing in scene.drawings)
    page = show(replace(scene, verdict="fits on 2GiB with torch", limit=limit))
    assert page.text("headline").startswith("It fits on 2GiB with torch. You would save")
    assert page.ask("app.scene.curveTop") == limit
    page = show(replace(scene, verdict="fits on 2GiB with torch", limit=100 * limit))
    assert page.ask("app.scene.curveTop") < limit


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
