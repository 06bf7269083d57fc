// Finds and describes the request at a point of the map. Looking through all rectangles takes about a
// millisecond for 300,000, less than an index would be worth.

// The rectangle under the point or, where none is, the nearest within a pixel; how many share the
// pixel; and, where nothing is, the addresses between which it is idle.
function pickAt(panel, x, y) {
  const { scene, map } = panel;
  const { t0, t1, a0, a1 } = scene.view;
  const tick = panel.tickAt(x);
  const at = panel.addressAt(y);
  const ticks = (t1 - t0) / map.width;
  const bytes = (a1 - a0) / map.height;
  const { request, address, start, end } = panel.layout.rectangles;
  const { size } = panel.layout;
  const result = { tick, address: at, row: -1, rectangle: -1, sharing: 0, below: 0, above: reservedAt(panel.layout, tick) };
  let exact = false;
  for (let i = 0; i < request.length; ++i) {
    if (start[i] > tick + ticks || end[i] <= tick - ticks) continue;
    const low = address[i];
    const high = low + size[request[i]];
    const now = start[i] <= tick && tick < end[i];
    if (now && high <= at) result.below = Math.max(result.below, high);
    if (now && low > at) result.above = Math.min(result.above, low);
    if (low > at + bytes || high <= at - bytes) continue;
    ++result.sharing;
    const inside = now && low <= at && at < high;
    if (inside || (!exact && (result.row < 0 || size[request[i]] > size[result.row]))) {
      result.row = request[i];
      result.rectangle = i;
    }
    exact ||= inside;
  }
  return result;
}

function reservedAt(layout, tick) {
  const { tick: ticks, bytes } = layout.held;
  let i = 0;
  while (i + 1 < ticks.length && ticks[i + 1] <= tick) ++i;
  return ticks.length === 0 || tick < ticks[0] ? 0 : bytes[i];
}

// The picked request in a table of facts; null where there is nothing to say.
function describePick(panel, pick) {
  if (pick.row >= 0) return describeRequest(panel.scene, pick.row, panel, pick);
  if (pick.address < 0 || pick.address >= pick.above || pick.tick < 0 || pick.tick >= panel.scene.period) return null;
  const what = isInRegion(panel.layout.regions, pick) ? "idle, in the region of a group" : "idle here and then";
  return tooltipContent(null, formatBytes(pick.above - pick.below), what, {
    addresses: `${formatBytes(pick.below)} to ${formatBytes(pick.above)}`,
    tick: formatCount(Math.floor(pick.tick)),
  });
}

function isInRegion({ address, size, start, end }, { tick, address: at }) {
  return address.some((low, i) => low <= at && at < low + size[i] && start[i] <= tick && tick < end[i]);
}

function describeRequest(scene, row, panel, pick) {
  const { requests } = scene;
  const start = requests.start[row];
  const end = requests.end[row];
  const before = start < 0 ? "an earlier iteration" : formatCount(start);
  const name = scene.classes[requests.lifetime[row]];
  const facts = {};
  if (requests.layer[row] >= 0) facts.layer = scene.layers[requests.layer[row]];
  const born = scene.phaseName(requests.phase_begin[row], start < 0 ? "an earlier iteration" : "outside the planned phases");
  const freed = scene.phaseName(requests.phase_end[row], name === "persistent" ? "never in this iteration" : "outside the planned phases");
  facts.phase = born === freed ? born : `${born} → ${freed}`;
  facts.lifetime =
    name === "persistent"
      ? `from ${before}, past the end`
      : end > scene.period
        ? `ticks ${before} to ${formatCount(end - scene.period)} of the next iteration`
        : start < 0
          ? `from ${before} to tick ${formatCount(end)}`
          : `ticks ${before} to ${formatCount(end)} (${formatCount(end - start)})`;
  const { request, address } = panel.layout.rectangles;
  const i = pick ? pick.rectangle : request.indexOf(row);
  if (i >= 0) facts.address = `${formatBytes(address[i])} (0x${address[i].toString(16)})`;
  if (requests.stream[row] > 0) facts.stream = String(requests.stream[row]);
  if (pick && pick.sharing > 1) facts.beside = `${formatCount(pick.sharing - 1)} more within a pixel: zoom in`;
  return tooltipContent(name, formatBytes(panel.layout.size[row]), name, facts);
}

function tooltipContent(kind, strong, what, facts) {
  const head = makeElement("div", {});
  if (kind) head.append(swatch(kind));
  head.append(makeElement("strong", {}, strong), ` ${what}`);
  return [head, factList(facts)];
}

function swatch(kind) {
  const result = makeElement("i", {});
  result.style.background = `var(--${kind})`;
  return result;
}

function factList(facts) {
  const list = makeElement("dl", {});
  fillFacts(list, facts);
  return list;
}

function fillFacts(list, facts) {
  for (const [name, value] of Object.entries(facts)) {
    list.append(makeElement("dt", {}, name), makeElement("dd", {}, value));
  }
}
