// The sliders that choose the extents of the batches, and the numbers that follow them.

class Sliders {
  constructor(app) {
    this.app = app;
    const { sized } = app.scene;
    if (sized === null) return;
    this.values = [...sized.largest];
    this.inputs = sized.extents.map((extent, i) => (extent.used ? this.pair(extent, i) : []));
    this.reset = makeElement("button", { type: "button" }, sized.recorded ? "as recorded" : "the largest");
    this.reset.addEventListener("click", () => this.choose(sized.largest, false));
    document.getElementById("sliders").append(
      ...this.inputs.filter((pair) => pair.length > 0).map(([slider, exact], i) => {
        const name = makeElement("label", { htmlFor: slider.id }, slider.title);
        return makeElement("div", { className: "extent" }, name, slider, exact);
      }),
      this.reset,
    );
    document.getElementById("extents").hidden = false;
    this.tell();
    fillLaws(sized.summaries);
  }

  // A slider and a field for the exact value, which show the same.
  pair({ name, largest }, i) {
    const range = { min: Math.min(1, largest), max: largest, step: 1 };
    const slider = makeElement("input", { type: "range", id: `extent-${i}`, title: name, ...range });
    const exact = makeElement("input", { type: "number", "aria-label": `${name}, exact value`, ...range });
    for (const input of [slider, exact]) {
      input.value = largest;
      input.addEventListener("input", () => {
        const value = input.valueAsNumber;
        if (!Number.isInteger(value) || value < range.min || value > range.max) return;
        this.choose(this.values.map((old, k) => (k === i ? value : old)), true, input);
      });
    }
    // A value that is out of range gives way to the one that is drawn.
    exact.addEventListener("change", () => (exact.value = this.values[i]));
    return [slider, exact];
  }

  // Draws the plan at these extents; `from` is the input that has them already.
  choose(values, moved, from) {
    this.values = [...values];
    this.inputs.forEach((pair, i) => {
      for (const input of pair) if (input !== from) input.value = values[i];
    });
    this.app.resize(moved ? this.values : null);
    this.tell();
  }

  tell() {
    const { scene } = this.app;
    const { load, reserved, chosen, larger } = scene.layouts.at(-1);
    this.reset.setAttribute("aria-pressed", String(chosen === null));
    const efficiency = formatShare(load, reserved);
    const misfits = larger > 0 ? ` ${formatCount(larger)} requests are larger than their place: the run serves them elsewhere.` : "";
    document.getElementById("sized").textContent = `${formatBytes(load)} live at the peak of ${formatBytes(reserved)} reserved, efficiency ${efficiency}.${misfits}`;
  }
}

// The laws in use, those that are least certain first.
function fillLaws(summaries) {
  const head = ["law", "", "requests", "largest", "law of the largest"];
  const body = summaries.map(({ kind, proof, requests, largest, formula }) =>
    makeElement(
      "tr",
      {},
      makeElement("td", {}, kind),
      makeElement("td", {}, proof === kind ? "" : proof),
      makeElement("td", { className: "number" }, formatCount(requests)),
      makeElement("td", { className: "number" }, formatBytes(largest)),
      makeElement("td", {}, formula),
    ),
  );
  document.getElementById("laws").append(
    makeElement("thead", {}, makeElement("tr", {}, ...head.map((text, i) => makeElement("th", { className: i === 2 || i === 3 ? "number" : "" }, text)))),
    makeElement("tbody", {}, ...body),
  );
  document.getElementById("lawful").hidden = false;
}
