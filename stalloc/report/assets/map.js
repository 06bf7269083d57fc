// The map: a rectangle for each request over ticks and addresses, in the colour of its lifetime
// class. Memory that is held and not used is blank.

// From this size on, in device pixels, a rectangle has an edge that sets it apart from its
// neighbours.
const EDGED = 5;

function drawMap(panel, context, colours) {
  const { x, y, width, height } = panel.map;
  context.fillStyle = colours.free;
  context.fillRect(x, y, width, height);
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  drawSegments(panel, context, colours);
  drawRegions(panel, context, colours);
  const counts = rasterise(panel, colours);
  context.setTransform(1, 0, 0, 1, 0, 0);
  panel.raster.paint(context, Math.round(x * panel.ratio), Math.round(y * panel.ratio));
  context.setTransform(panel.ratio, 0, 0, panel.ratio, 0, 0);
  drawReserved(panel, context, colours);
  context.restore();
  return counts;
}

function drawSegments(panel, context, colours) {
  const { address, size, start, end } = panel.layout.segments;
  for (let i = 0; i < address.length; ++i) {
    const left = panel.xOf(start[i]);
    const right = panel.xOf(end[i]);
    const top = panel.yOf(address[i] + size[i]);
    const bottom = panel.yOf(address[i]);
    context.fillStyle = colours.held;
    context.fillRect(left, top, right - left, bottom - top);
    if (bottom - top > 8) {
      context.fillStyle = colours.line;
      context.fillRect(left, top, right - left, 1);
    }
  }
}

// The regions of dynamic requests.
function drawRegions(panel, context, colours) {
  const { address, size, start, end } = panel.layout.regions;
  context.fillStyle = colours.dynamic;
  context.globalAlpha = 0.25;
  for (let i = 0; i < address.length; ++i) {
    const left = panel.xOf(start[i]);
    const top = panel.yOf(address[i] + size[i]);
    context.fillRect(left, top, panel.xOf(end[i]) - left, panel.yOf(address[i]) - top);
  }
  context.globalAlpha = 1;
}

function drawReserved(panel, context, colours) {
  const { tick, bytes } = panel.layout.held;
  context.strokeStyle = colours.reserved;
  context.lineWidth = 1.5;
  context.beginPath();
  for (let i = 0; i + 1 < tick.length; ++i) {
    context.lineTo(panel.xOf(tick[i]), panel.yOf(bytes[i]));
    context.lineTo(panel.xOf(tick[i + 1]), panel.yOf(bytes[i]));
  }
  context.stroke();
}

function rasterise(panel, colours) {
  const { scene, raster, ratio } = panel;
  const { t0, t1, a0, a1 } = scene.view;
  const { request, address, start, end } = panel.layout.rectangles;
  const { size } = panel.layout;
  const { lifetime } = scene.requests;
  raster.clear(Math.max(1, Math.round(panel.map.width * ratio)), Math.max(1, Math.round(panel.map.height * ratio)));
  const perTick = raster.width / (t1 - t0);
  const perByte = raster.height / (a1 - a0);
  const fills = scene.classes.map((name) => strength(colours.pixels[name], 1));
  const faint = scene.classes.map((name) => strength(colours.pixels[name], 0.1));
  // Added on top of the fill, they make it darker where the edge is.
  const edges = scene.classes.map((name) => [...colours.pixels[name].map((c) => -0.28 * c), 0]);
  let seen = 0;
  let small = 0;
  for (let i = 0; i < request.length; ++i) {
    const row = request[i];
    const low = address[i];
    const high = low + size[row];
    if (start[i] >= t1 || end[i] <= t0 || low >= a1 || high <= a0) continue;
    const x0 = (start[i] - t0) * perTick;
    const x1 = (end[i] - t0) * perTick;
    const y0 = (a1 - high) * perByte;
    const y1 = (a1 - low) * perByte;
    const kind = lifetime[row];
    const stands = scene.stands(row);
    ++seen;
    if (x1 - x0 < 1 || y1 - y0 < 1) ++small;
    raster.add(x0, y0, x1, y1, (stands ? fills : faint)[kind]);
    if (stands && x1 - x0 >= EDGED && y1 - y0 >= EDGED) {
      raster.add(x1 - ratio, y0, x1, y1, edges[kind]);
      raster.add(x0, y0, x1 - ratio, y0 + ratio, edges[kind]);
    }
  }
  return { seen, small };
}

// A colour at some opacity, as the raster adds it up.
function strength(colour, opacity) {
  return [...colour.map((c) => c * opacity), opacity];
}
