// The live curve, stacked by lifetime class, and the reserved line above it. The area between the
// two is hatched: memory that is held and not used.

// From the bottom: what lives longest first, so that its edge is calm.
const STACK = ["persistent", "wrap-around", "scoped", "transient", "dynamic"];

function drawCurve(panel, context, colours) {
  const { scene } = panel;
  const { x, y, width, height } = panel.curve;
  const yOf = (bytes) => y + height * (1 - bytes / (scene.curveTop * 1.08));
  const columns = highestTicks(panel, Math.round(width * panel.ratio));
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.fillStyle = colours.free;
  context.fillRect(x, y, width, height);
  const line = heldLine(panel, yOf);
  context.fillStyle = colours.held;
  fillUnder(context, line, y + height);
  context.fillStyle = hatch(context, colours.reserved);
  fillUnder(context, line, y + height);
  const step = width / columns.length;
  const base = new Float64Array(columns.length);
  for (const name of STACK) {
    const bytes = panel.layout.live.byClass[scene.classes.indexOf(name)];
    context.fillStyle = colours[name];
    for (let i = 0; i < columns.length; ++i) {
      const from = yOf(base[i]);
      base[i] += bytes[columns[i]];
      const to = yOf(base[i]);
      // Behind the idle hatching nothing may show: paint the ground first.
      if (from > to) context.fillRect(x + i * step, to, step + 0.5, from - to);
    }
  }
  context.strokeStyle = colours.reserved;
  context.lineWidth = 2;
  context.stroke(line);
  if (scene.limit !== null) drawLimit(panel, context, colours, yOf(scene.limit));
  context.restore();
  drawCurveScale(panel, context, colours, yOf);
}

// The memory of the GPU that an estimate is for, unless it is far above the curve.
function drawLimit(panel, context, colours, level) {
  const { x, y, width } = panel.curve;
  if (level < y) return;
  context.strokeStyle = colours.mark;
  context.lineWidth = 1;
  context.setLineDash([6, 4]);
  context.beginPath();
  context.moveTo(x, level);
  context.lineTo(x + width, level);
  context.stroke();
  context.setLineDash([]);
  label(context, colours, `limit ${formatBytes(panel.scene.limit)}`, colours.mark, x + 104, level);
}

// For each of `count` stretches of the view the tick at which most is live.
function highestTicks({ scene, layout }, count) {
  const { t0, t1 } = scene.view;
  const { total } = layout.live;
  const last = scene.period - 1;
  const result = new Int32Array(Math.max(1, count));
  for (let i = 0; i < result.length; ++i) {
    const from = Math.min(last, Math.floor(t0 + ((t1 - t0) * i) / result.length));
    const to = Math.min(last, Math.ceil(t0 + ((t1 - t0) * (i + 1)) / result.length) - 1);
    let best = from;
    for (let t = from + 1; t <= to; ++t) if (total[t] > total[best]) best = t;
    result[i] = best;
  }
  return result;
}

function heldLine(panel, yOf) {
  const { tick, bytes } = panel.layout.held;
  const line = new Path2D();
  for (let i = 0; i + 1 < tick.length; ++i) {
    const left = Math.max(panel.xOf(tick[i]), panel.curve.x - 9);
    const right = Math.min(panel.xOf(tick[i + 1]), panel.curve.x + panel.curve.width + 9);
    if (right <= left) continue;
    line.lineTo(left, yOf(bytes[i]));
    line.lineTo(right, yOf(bytes[i]));
  }
  return line;
}

function fillUnder(context, line, bottom) {
  const area = new Path2D(line);
  area.lineTo(1e5, bottom);
  area.lineTo(-1e5, bottom);
  area.closePath();
  context.fill(area);
}

function hatch(context, colour) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 7;
  const pen = tile.getContext("2d");
  pen.strokeStyle = colour;
  pen.globalAlpha = 0.4;
  pen.beginPath();
  for (const shift of [-7, 0, 7]) {
    pen.moveTo(shift, 7);
    pen.lineTo(shift + 7, 0);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

function drawCurveScale(panel, context, colours, yOf) {
  const { scene } = panel;
  const { x, y, width, height } = panel.curve;
  context.fillStyle = colours.quiet;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const bytes of ticksBetween(0, scene.curveTop, 3, true)) {
    context.fillRect(x - 4, Math.round(yOf(bytes)), 4, 1);
    context.fillText(formatBytes(bytes), x - 7, Math.min(yOf(bytes), y + height - 5));
  }
  if (scene.isAllShown()) {
    label(context, colours, "reserved", colours.reserved, x + width - 5, yOf(panel.layout.reserved) + 10);
  }
}

function label(context, colours, text, colour, right, middle) {
  const width = context.measureText(text).width;
  context.textAlign = "right";
  context.fillStyle = colours.held;
  context.fillRect(right - width - 3, middle - 7, width + 6, 14);
  context.fillStyle = colour;
  context.fillText(text, right, middle);
}
