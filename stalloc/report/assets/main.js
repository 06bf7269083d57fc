// Puts the parts together, and draws at most once a frame.

const COLOURS = ["page", "card", "held", "free", "ink", "quiet", "line", "grid", "reserved", "mark", "forward", "backward", "optimizer", "other"];

class App {
  constructor(scene) {
    this.scene = scene;
    this.panels = scene.layouts.map((layout) => new Panel(scene, layout));
    this.tick = null; // where the pointer is
    this.pending = false;
    document.getElementById("panels").append(...this.panels.map((panel) => panel.element));
    fillHeadline(scene);
    fillBars(scene);
    fillLegend(this);
    fillPeak(this);
    fillFactsOf(scene);
    this.sliders = new Sliders(this);
    this.controls = new Controls(this);
    const search = document.getElementById("search");
    search.addEventListener("input", () => {
      this.hits = scene.find(search.value);
      this.redraw();
    });
    document.getElementById("theme").addEventListener("click", () => {
      const dark = document.documentElement.dataset.theme === "dark";
      this.useTheme(dark ? "light" : "dark");
      this.redraw();
    });
  }

  useTheme(name) {
    document.documentElement.dataset.theme = name;
    const style = getComputedStyle(document.documentElement);
    const read = (variable) => style.getPropertyValue(`--${variable}`).trim();
    this.colours = { pixels: {} };
    for (const variable of [...COLOURS, ...this.scene.classes]) this.colours[variable] = read(variable);
    for (const name of this.scene.classes) {
      const hex = read(name);
      this.colours.pixels[name] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    }
  }

  // Draws the plan at these extents, or, for null, as it was first.
  resize(values) {
    this.scene.resize(values);
    this.panels.at(-1).fillHeading();
    fillBars(this.scene);
    fillPeak(this);
    this.showTooltip(null);
    this.redraw();
  }

  measure() {
    this.panels.forEach((panel) => panel.measure());
    this.draw();
  }

  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.draw();
    });
  }

  draw() {
    const counts = this.panels.map((panel) => panel.draw(this.colours));
    this.drawOverlays();
    const parts = this.panels.map((panel, i) => {
      const { seen, small } = counts[i];
      return `${panel.layout.title}: ${formatCount(seen)} rectangles in view, ${formatCount(small)} of them thinner than a pixel`;
    });
    const found = this.scene.found === null ? "" : `${formatCount(this.hits)} requests found. `;
    document.getElementById("status").textContent = `${found}${parts.join(" · ")}.`;
    document.documentElement.dataset.drawn = counts.map(({ seen, small }) => `${seen}/${small}`).join(" ");
  }

  drawOverlays() {
    this.panels.forEach((panel) => panel.drawOverlay(this.colours, this.tick));
  }

  hover(panel, event) {
    const [x, y] = placeOf(panel, event);
    const { map } = panel;
    const outside = x < map.x || x >= map.x + map.width;
    this.tick = outside ? null : panel.tickAt(x);
    let content = null;
    if (!outside && y >= map.y && y < map.y + map.height) content = describePick(panel, pickAt(panel, x, y));
    else if (!outside && y < panel.phases.y) content = this.describeTick(panel);
    else if (!outside && y < map.y) content = this.describePhase();
    this.showTooltip(content, event.clientX, event.clientY);
    this.drawOverlays();
  }

  describePhase() {
    const phase = this.scene.phases.find(({ begin, end }) => begin <= this.tick && this.tick < end);
    if (!phase) return null;
    return tooltipContent(null, phase.name, "", { ticks: `${formatCount(phase.begin)} to ${formatCount(phase.end)}` });
  }

  describeTick(panel) {
    const t = Math.min(Math.max(Math.floor(this.tick), 0), this.scene.period - 1);
    const { live: byTick } = panel.layout;
    const live = byTick.total[t];
    const reserved = reservedAt(panel.layout, t);
    const facts = { reserved: formatBytes(reserved), idle: formatBytes(reserved - live) };
    this.scene.classes.forEach((name, kind) => {
      const bytes = byTick.byClass[kind][t];
      if (bytes > 0) facts[name] = formatBytes(bytes);
    });
    return tooltipContent(null, formatBytes(live), `live at tick ${formatCount(t)}`, facts);
  }

  showTooltip(content, x, y) {
    const tooltip = document.getElementById("tooltip");
    tooltip.hidden = content === null;
    if (content === null) return;
    tooltip.replaceChildren(...content);
    const { width, height } = tooltip.getBoundingClientRect();
    const left = x + 18 + width < window.innerWidth ? x + 18 : x - width - 14;
    const top = Math.min(y + 18, window.innerHeight - height - 8);
    tooltip.style.left = `${Math.max(4, left)}px`;
    tooltip.style.top = `${Math.max(4, top)}px`;
  }

  leave() {
    this.tick = null;
    this.showTooltip(null);
    this.drawOverlays();
  }

  select(panel, event) {
    const [x, y] = placeOf(panel, event);
    this.choose(y < panel.map.y ? -1 : pickAt(panel, x, y).row);
  }

  choose(row) {
    this.scene.selected = row;
    if (row < 0) this.showTooltip(null);
    this.drawOverlays();
  }

  // Selects the next or previous request in order of allocation, and tells of it.
  step(direction) {
    const { scene } = this;
    const count = scene.requests.start.length;
    if (this.order === undefined) {
      this.order = Uint32Array.from({ length: count }, (_, row) => row);
      this.order.sort((a, b) => scene.requests.start[a] - scene.requests.start[b]);
    }
    let place = scene.selected < 0 ? -1 : this.order.indexOf(scene.selected);
    if (place < 0 && direction < 0) place = count;
    do place += direction;
    while (place >= 0 && place < count && !scene.stands(this.order[place]));
    if (place < 0 || place >= count) return;
    const row = this.order[place];
    scene.selected = row;
    const middle = (Math.max(0, scene.requests.start[row]) + Math.min(scene.period, scene.requests.end[row])) / 2;
    if (middle < scene.view.t0 || middle >= scene.view.t1) scene.moveTime(middle - (scene.view.t1 - scene.view.t0) / 2);
    const panel = this.panels.at(-1);
    const box = panel.overlay.getBoundingClientRect();
    this.showTooltip(describeRequest(scene, row, panel), box.left + panel.xOf(middle), box.top + panel.map.y + 8);
  }
}

function placeOf(panel, event) {
  const box = panel.overlay.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

async function main() {
  const description = JSON.parse(document.getElementById("description").textContent);
  const scene = new Scene(description, await readColumns(description.columns));
  const app = new App(scene);
  document.getElementById("main").hidden = false;
  app.useTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  app.measure();
  new ResizeObserver(() => app.measure()).observe(document.getElementById("panels"));
  window.stallocReport = app; // for whoever wants to ask more of it, on the console
  performance.mark("stalloc:drawn");
}

main().catch((error) => {
  const problem = document.getElementById("problem");
  problem.hidden = false;
  problem.textContent = error.message;
  console.error(error);
});
