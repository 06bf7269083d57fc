"""The sliders of a report: the page's own arithmetic, and the drawing at a chosen length."""

from __future__ import annotations

import json
import random

import pytest
from browser import Open, Page, driver, show
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from test_report_sized import SHAPES
from trace_documents import TraceWriter, changing_document, random_laws, to_trace, training_document

from stalloc import Plan
from stalloc.report import scene_of_plan, scene_of_trace

__all__ = ["driver", "show"]


def plan_of_random_laws(seed: int) -> Plan:
    """A plan of requests one after another, with a law of its own for each."""
    writer = TraceWriter()
    for _ in range(2):
        writer.phase("forward", 0)
        for _ in range(60):
            writer.free(writer.alloc(512))
        writer.step()
    document = json.loads(to_trace(writer.document()).plan()._core.to_json())
    laws = random_laws(seed, len(document["decisions"]["size"]))
    document["decisions"]["law"] = list(range(len(laws["laws"]["step"])))
    plan = Plan.from_json(json.dumps(document | laws).encode(), "random laws")
    return plan.resized({}, time_limit=0.1)


@pytest.mark.parametrize("seed", range(6))
def test_the_page_computes_the_sizes_that_stalloc_does(show: Open, seed: int) -> None:
    plan, rng = plan_of_random_laws(seed), random.Random(seed)
    page = show(scene_of_plan(plan, "plan.json"))
    seen = set()
    for _ in range(20):
        extents = {name: rng.randint(1, largest) for name, largest in plan.extents.items()}
        expected = plan.resized(extents, time_limit=0.1).decisions.size.tolist()
        values = list(extents.values())
        assert page.ask("Array.from(app.scene.sized.at(arguments[0]))", values) == expected
        seen |= set(expected)
    assert len(seen) > 100


def test_the_slider_draws_the_plan_at_a_length(show: Open) -> None:
    plan = to_trace(changing_document([(2, n) for n in (24, 40, 64, 56)])).plan()
    scene = scene_of_plan(plan, "plan.json")
    page = show(scene)
    (slider,) = page.driver.find_elements(By.CSS_SELECTOR, "#sliders [type=range]")
    (exact,) = page.driver.find_elements(By.CSS_SELECTOR, "#sliders [type=number]")
    assert page.text("extents").startswith("stalloc's plan for batches of\nids.1")
    assert slider.get_attribute("value") == exact.get_attribute("value") == "64"
    row = int(scene.requests.size.argmax())
    rows = scene.drawings[-1].rectangles
    (i,) = (rows.request == row).nonzero()[0]
    middle = (rows.start[i] + rows.end[i]) / 2
    top = rows.address[i] + 0.9 * scene.requests.size[row]
    assert page.colour(1, middle, top) == page.named("scoped")
    before = page.text("sized")
    page.driver.execute_script("arguments[0].focus()", slider)
    ActionChains(page.driver).send_keys(*(Keys.ARROW_LEFT * 4)).perform()
    page.settle()
    assert exact.get_attribute("value") == "60"
    check_drawn(page, plan, 60)
    assert page.text("sized") != before
    page.driver.execute_script("arguments[0].select()", exact)
    exact.send_keys("25")
    page.settle()
    assert slider.get_attribute("value") == "25"
    check_drawn(page, plan, 25)
    assert page.colour(1, middle, top) == page.named("held"), "the request is smaller now"
    assert page.colour(0, middle, 1 << 10) != page.named("held"), "torch's stays"
    page.driver.execute_script("arguments[0].select()", exact)
    exact.send_keys("99", Keys.TAB)
    page.settle()
    assert exact.get_attribute("value") == slider.get_attribute("value") == "9", "99 is too large"
    page.driver.find_element(By.CSS_SELECTOR, "#sliders button").click()
    page.settle()
    assert slider.get_attribute("value") == "64"
    assert page.text("sized") == before
    assert page.colour(1, middle, top) == page.named("scoped")


def check_drawn(page: Page, plan: Plan, tokens: int) -> None:
    """The numbers beside the drawing are those of these extents."""
    resized = plan.resized({"ids.1": tokens}, time_limit=0.1)
    scene = scene_of_plan(resized, "resized")
    layout = page.ask(
        "(({load, reserved, chosen, larger}) => "
        "({load, reserved, chosen, larger}))(app.scene.layouts.at(-1))"
    )
    assert layout == {
        "load": scene.load,
        "reserved": plan.pool,
        "chosen": f"ids.1 = {tokens}",
        "larger": 0,
    }
    assert f"efficiency {100 * scene.load / plan.pool:.1f} %" in page.text("sized")
    headings = [h.text for h in page.driver.find_elements(By.CSS_SELECTOR, ".panel h2")]
    assert "the largest batches" in headings[0]
    assert f"ids.1 = {tokens}" in headings[1]


def test_two_extents_have_a_slider_each(show: Open) -> None:
    trace = to_trace(changing_document(SHAPES))
    plan = trace.plan()
    page = show(scene_of_trace(trace, plan, "trace.json"))
    sliders = page.driver.find_elements(By.CSS_SELECTOR, "#sliders [type=range]")
    labels = [e.text for e in page.driver.find_elements(By.CSS_SELECTOR, "#sliders label")]
    assert labels == ["ids.0", "ids.1"]
    sliders[0].send_keys(Keys.HOME)
    sliders[1].send_keys(Keys.HOME, Keys.ARROW_RIGHT)
    page.settle()
    small = plan.resized({"ids.0": 1, "ids.1": 2}, time_limit=0.1)
    beside = 100_000 + sum(
        json.loads(small._core.to_json())["persistent"]["size"]
    )  # the weight, and data beside the pool
    resized = scene_of_plan(small, "resized")
    assert page.ask("app.scene.layouts.at(-1).load") == resized.load + beside
    assert page.ask("app.scene.layouts[0].chosen") is None
    reset = page.driver.find_element(By.CSS_SELECTOR, "#sliders button")
    assert reset.text == "as recorded"
    reset.click()
    assert reset.get_attribute("aria-pressed") == "true"
    laws = page.text("laws")
    assert "64 * ids.0 * ids.1 * ids.1" in laws
    assert "cubic proven" in laws


def test_without_laws_there_is_no_slider(show: Open) -> None:
    page = show(scene_of_plan(to_trace(training_document()).plan(), "plan.json"))
    for name in ("extents", "lawful"):
        assert page.driver.find_element(By.ID, name).is_displayed() is False
