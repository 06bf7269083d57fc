// One allocator's drawing: the live curve and the reserved line above, the phases, the map of
// addresses below, all over the same ticks. A second canvas on top shows the pointer, so the first
// one is not redrawn when it moves.

const MARGIN = { left: 62, right: 10, top: 6 };
const CURVE_HEIGHT = 96;
const PHASES_HEIGHT = 19;
const AXIS_HEIGHT = 34;
const ABBREVIATED = { forward: "F", backward: "B", optimizer: "opt", other: "–", unplanned: "–" };
const FONT = "11px system-ui, sans-serif";

class Panel {
  constructor(scene, layout) {
    this.scene = scene;
    this.layout = layout;
    this.raster = new Raster();
    this.base = document.createElement("canvas");
    this.overlay = makeElement("canvas", {
      tabIndex: 0,
      role: "application",
      "aria-label": `${layout.title}: requests by time and address. Arrow keys move, plus and minus zoom, n and p step through requests.`,
    });
    this.drawing = makeElement("div", { className: "drawing" }, this.base, this.overlay);
    this.heading = makeElement("h2", {});
    this.element = makeElement("article", { className: "panel" }, this.heading, this.drawing);
    this.fillHeading();
  }

  fillHeading() {
    const { title, reserved, load, chosen } = this.layout;
    const sized = this.scene.sized;
    const extents = sized === null ? "" : ` · ${chosen ?? (sized.recorded ? "as recorded" : "the largest batches")}`;
    const facts = `${formatBytes(reserved)} reserved, efficiency ${formatShare(load, reserved)}`;
    this.heading.replaceChildren(title + extents, makeElement("span", {}, facts));
  }

  // Fits the canvases to the element. Lengths are CSS pixels; the canvases have device pixels.
  measure() {
    this.ratio = window.devicePixelRatio || 1;
    this.width = this.drawing.clientWidth;
    this.height = this.drawing.clientHeight;
    for (const canvas of [this.base, this.overlay]) {
      canvas.width = Math.round(this.width * this.ratio);
      canvas.height = Math.round(this.height * this.ratio);
    }
    const x = MARGIN.left;
    const width = Math.max(1, this.width - x - MARGIN.right);
    const phases = MARGIN.top + CURVE_HEIGHT + 4;
    const map = phases + PHASES_HEIGHT + 4;
    this.curve = { x, y: MARGIN.top, width, height: CURVE_HEIGHT };
    this.phases = { x, y: phases, width, height: PHASES_HEIGHT };
    this.map = { x, y: map, width, height: Math.max(1, this.height - map - AXIS_HEIGHT) };
  }

  context(canvas) {
    const context = canvas.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.font = FONT;
    return context;
  }

  xOf(tick) {
    const { t0, t1 } = this.scene.view;
    return this.map.x + ((tick - t0) / (t1 - t0)) * this.map.width;
  }

  yOf(address) {
    const { a0, a1 } = this.scene.view;
    return this.map.y + this.map.height * (1 - (address - a0) / (a1 - a0));
  }

  tickAt(x) {
    const { t0, t1 } = this.scene.view;
    return t0 + ((x - this.map.x) / this.map.width) * (t1 - t0);
  }

  addressAt(y) {
    const { a0, a1 } = this.scene.view;
    return a0 + (1 - (y - this.map.y) / this.map.height) * (a1 - a0);
  }

  // Returns how many requests are in view, and how many of them are smaller than a pixel.
  draw(colours) {
    const context = this.context(this.base);
    drawCurve(this, context, colours);
    drawPhases(this, context, colours);
    const counts = drawMap(this, context, colours);
    drawAxes(this, context, colours);
    return counts;
  }

  // The pointer's place in time, and the selected request, on the panel's upper canvas.
  drawOverlay(colours, tick) {
    const context = this.context(this.overlay);
    context.save();
    context.beginPath();
    context.rect(this.map.x, this.curve.y, this.map.width, this.map.y + this.map.height - this.curve.y);
    context.clip();
    if (tick !== null) {
      context.fillStyle = colours.quiet;
      context.globalAlpha = 0.6;
      context.fillRect(Math.round(this.xOf(tick)), this.curve.y, 1, this.map.y + this.map.height - this.curve.y);
      context.globalAlpha = 1;
    }
    outline(this, context, colours, this.scene.selected);
    context.restore();
  }
}

function outline(panel, context, colours, row) {
  if (row < 0) return;
  const { request, address, start, end } = panel.layout.rectangles;
  for (let i = request.indexOf(row); i >= 0; i = request.indexOf(row, i + 1)) {
    const x = panel.xOf(start[i]);
    const y = panel.yOf(address[i] + panel.layout.size[row]);
    const width = Math.max(3, panel.xOf(end[i]) - x);
    const height = Math.max(3, panel.yOf(address[i]) - y);
    context.strokeStyle = colours.held;
    context.lineWidth = 4;
    context.strokeRect(x, y, width, height);
    context.strokeStyle = colours.mark;
    context.lineWidth = 2;
    context.strokeRect(x, y, width, height);
  }
}

function drawPhases(panel, context, colours) {
  const { x, y, width, height } = panel.phases;
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.textBaseline = "middle";
  context.textAlign = "center";
  for (const phase of panel.scene.phases) {
    const left = Math.max(x, panel.xOf(phase.begin));
    const right = Math.min(x + width, panel.xOf(phase.end));
    if (right <= left) continue;
    context.fillStyle = colours[phase.kind] ?? colours.other;
    context.fillRect(left, y, right - left, height);
    if (right - left > 4) {
      context.fillStyle = colours.card;
      context.fillRect(right - 1, y, 1, height);
    }
    const name = [phase.name, phase.name.replace(phase.kind, ABBREVIATED[phase.kind])].find(
      (text) => context.measureText(text).width + 6 < right - left,
    );
    if (name === undefined) continue;
    context.fillStyle = colours.ink;
    context.fillText(name, (left + right) / 2, y + height / 2 + 0.5);
  }
  context.restore();
}

function drawAxes(panel, context, colours) {
  const { t0, t1, a0, a1 } = panel.scene.view;
  const { x, y, width, height } = panel.map;
  context.fillStyle = colours.quiet;
  context.textBaseline = "top";
  context.textAlign = "center";
  for (const tick of ticksBetween(t0, t1, Math.max(2, width / 90), false)) {
    const at = panel.xOf(tick);
    context.fillRect(Math.round(at), y + height, 1, 4);
    const half = context.measureText(formatCount(tick)).width / 2;
    const text = Math.min(Math.max(at, x + half), x + width - half);
    context.fillText(formatCount(tick), text, y + height + 6);
  }
  context.textAlign = "right";
  context.fillText("ticks", x + width, y + height + 20);
  context.textBaseline = "middle";
  for (const address of ticksBetween(a0, a1, Math.max(2, height / 44), true)) {
    context.fillRect(x - 4, Math.round(panel.yOf(address)), 4, 1);
    context.fillText(formatBytes(address), x - 7, panel.yOf(address));
  }
  context.save();
  context.textAlign = "left";
  context.textBaseline = "top";
  context.fillText("address", 2, y + height + 6);
  context.restore();
}
