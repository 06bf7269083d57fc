// The texts around the drawings: the savings, the legend, the largest requests, the facts.

const LARGEST = 12;

function fillHeadline(scene) {
  const headline = document.getElementById("headline");
  if (scene.verdict) headline.append(makeElement("strong", {}, `It ${scene.verdict}.`), " ");
  const [torch, stalloc] = ["torch", "stalloc"].map((name) => scene.layouts.find((layout) => layout.allocator.startsWith(name)));
  if (torch && stalloc) {
    const saved = torch.reserved - stalloc.reserved;
    headline.append(
      saved >= 0 ? "You would save " : "The plan would cost ",
      makeElement("strong", {}, formatBytes(Math.abs(saved))),
      saved >= 0 ? ` of the ${formatBytes(torch.reserved)} that torch's allocator reserves (${formatShare(saved, torch.reserved)}).` : " more than torch's allocator reserves.",
    );
    return;
  }
  const [only] = scene.layouts;
  headline.append(`${only.title} takes `, makeElement("strong", {}, formatBytes(only.reserved)), ` for a load of ${formatBytes(scene.load)}.`);
}

function fillBars(scene) {
  const bars = document.getElementById("bars");
  bars.replaceChildren();
  for (const layout of scene.layouts) {
    const used = makeElement("div", { className: "used" });
    const idle = makeElement("div", { className: "idle" });
    used.style.width = `${(100 * Math.min(layout.load, layout.reserved)) / scene.top}%`;
    idle.style.width = `${(100 * layout.reserved) / scene.top}%`;
    bars.append(
      makeElement("span", {}, layout.title),
      makeElement("div", { className: "bar" }, idle, used),
      makeElement(
        "span",
        { className: "figure" },
        `${formatBytes(layout.reserved)} reserved `,
        makeElement("small", {}, `· ${formatBytes(layout.load)} live at the peak · ${formatBytes(layout.reserved - layout.load)} idle`),
      ),
    );
  }
}

function fillLegend(app) {
  const { scene } = app;
  const legend = document.getElementById("legend");
  const counts = scene.classes.map(() => 0);
  for (const row of new Set(scene.liveRows.request)) ++counts[scene.requests.lifetime[row]];
  const regions = scene.layouts.some((layout) => layout.regions.address.length > 0);
  scene.classes.forEach((name, kind) => {
    if (counts[kind] === 0 && !(regions && name === "dynamic")) return;
    const button = makeElement(
      "button",
      { type: "button", title: "Show or fade these requests", "aria-pressed": "true" },
      swatch(name),
      name,
      makeElement("small", {}, formatCount(counts[kind])),
    );
    button.addEventListener("click", () => {
      scene.shown[kind] = !scene.shown[kind];
      button.setAttribute("aria-pressed", String(scene.shown[kind]));
      app.redraw();
    });
    legend.append(button);
  });
}

function fillPeak(app) {
  const { scene } = app;
  const peak = scene.peak();
  const { size, liveRows } = scene.layouts.at(-1);
  const { request, start, end } = liveRows;
  const { lifetime, layer, phase_begin: phase } = scene.requests;
  const rows = [];
  for (let i = 0; i < request.length; ++i) if (start[i] <= peak && peak < end[i]) rows.push(request[i]);
  rows.sort((a, b) => size[b] - size[a]);
  const layered = scene.layers.length > 0;
  const head = [makeElement("th", {}, "class"), makeElement("th", { className: "number" }, "size"), makeElement("th", {}, "allocated in")];
  if (layered) head.push(makeElement("th", {}, "layer"));
  const body = makeElement("tbody", {});
  for (const row of rows.slice(0, LARGEST)) {
    const line = makeElement(
      "tr",
      { tabIndex: 0, title: "Show it" },
      makeElement("td", {}, swatch(scene.classes[lifetime[row]]), scene.classes[lifetime[row]]),
      makeElement("td", { className: "number" }, formatBytes(size[row])),
      makeElement("td", {}, scene.phaseName(phase[row], "earlier")),
    );
    if (layered) line.append(makeElement("td", {}, scene.layers[layer[row]] ?? ""));
    const show = () => {
      app.choose(row);
      scene.zoomTo(row);
      app.redraw();
      document.getElementById("panels").scrollIntoView({ block: "nearest" });
    };
    line.addEventListener("click", show);
    line.addEventListener("keydown", (event) => event.key === "Enter" && show());
    body.append(line);
  }
  const table = document.getElementById("peak");
  table.replaceChildren(
    makeElement("caption", { className: "hidden" }, "Largest requests at the peak"),
    makeElement("thead", {}, makeElement("tr", {}, ...head)),
    body,
  );
}

function fillFactsOf(scene) {
  const requests = new Set(scene.liveRows.request).size;
  fillFacts(document.getElementById("facts"), {
    file: scene.title,
    requests: formatCount(requests),
    ticks: formatCount(scene.period),
    ...scene.facts,
  });
  document.getElementById("assumptions").append(...scene.assumptions.map((text) => makeElement("li", {}, text)));
  document.getElementById("assumed").hidden = scene.assumptions.length === 0;
}
