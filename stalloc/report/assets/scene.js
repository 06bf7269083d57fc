// The drawn layouts, and the part of them that is in view. Times are ticks, addresses bytes; both views
// move together, so that the same moment and the same height stand at the same place in each.

class Scene {
  constructor(description, columns) {
    Object.assign(this, description);
    this.requests = tableOf(columns, "requests");
    this.liveRows = tableOf(columns, "live");
    this.layouts = description.layouts.map((layout, i) => ({
      ...layout,
      rectangles: tableOf(columns, `layouts.${i}.rectangles`),
      segments: tableOf(columns, `layouts.${i}.segments`),
      regions: tableOf(columns, `layouts.${i}.regions`),
      held: tableOf(columns, `layouts.${i}.held`),
    }));
    this.top = Math.max(1, this.load, ...this.layouts.map((layout) => layout.reserved));
    const near = this.limit !== null && this.limit <= 3 * this.top;
    this.curveTop = near ? Math.max(this.top, this.limit) : this.top;
    const recorded = { size: this.requests.size, liveRows: this.liveRows, load: this.load, chosen: null, larger: 0 };
    recorded.live = this.addUp(recorded);
    for (const layout of this.layouts) Object.assign(layout, recorded);
    this.sized = null; // the sizes at other extents, which the last layout can have
    if (description.sized !== null) {
      const moved = tableOf(columns, "sized.rectangles");
      const { rectangles, title } = this.layouts.at(-1);
      this.sized = new Sizes(description.sized, tableOf(columns, "sized"), "address" in moved ? moved : rectangles);
      this.recorded = { ...recorded, rectangles, title };
    }
    this.shown = this.classes.map(() => true);
    this.found = null; // of each request, whether it is what was searched for
    this.selected = -1; // row of the requests
    this.showAll();
  }

  // Lays out the plan at these extents, or, for null, as it was first.
  resize(values) {
    const layout = this.layouts.at(-1);
    if (values === null) {
      Object.assign(layout, this.recorded);
      return;
    }
    const { rectangles } = this.sized;
    const size = this.sized.at(values);
    const live = this.addUp({ size, liveRows: rectangles });
    Object.assign(layout, {
      title: "stalloc's plan",
      rectangles,
      size,
      liveRows: rectangles,
      live,
      load: live.total.reduce((most, bytes) => Math.max(most, bytes), 0),
      chosen: this.sized.describe(values),
      larger: size.reduce((count, bytes, row) => count + (bytes > this.sized.places[row]), 0),
    });
  }

  // Bytes live at each tick, of each class and of all together.
  addUp({ size, liveRows }) {
    const byClass = this.classes.map(() => new Float64Array(this.period + 1));
    const { request, start, end } = liveRows;
    for (let i = 0; i < request.length; ++i) {
      const bytes = byClass[this.requests.lifetime[request[i]]];
      bytes[start[i]] += size[request[i]];
      bytes[end[i]] -= size[request[i]];
    }
    const total = new Float64Array(this.period + 1);
    for (const bytes of byClass) {
      let sum = 0;
      for (let t = 0; t <= this.period; ++t) total[t] += bytes[t] = sum += bytes[t];
    }
    return { byClass, total };
  }

  peak() {
    return this.layouts.at(-1).live.total.reduce((best, bytes, t, all) => (bytes > all[best] ? t : best), 0);
  }

  showAll() {
    this.view = { t0: 0, t1: this.period, a0: 0, a1: this.top * 1.03 };
  }

  isAllShown() {
    const { t0, t1, a0, a1 } = this.view;
    return t0 <= 0 && t1 >= this.period && a0 <= 0 && a1 >= this.top;
  }

  // Makes what is seen `factor` times smaller, with the point at the given shares staying in place.
  zoomTime(factor, share) {
    const { t0, t1 } = this.view;
    const length = Math.min(this.period, Math.max((t1 - t0) * factor, 4));
    this.moveTime(t0 + (t1 - t0 - length) * share, length);
  }

  zoomAddresses(factor, share) {
    const { a0, a1 } = this.view;
    const length = Math.min(this.top * 1.03, Math.max((a1 - a0) * factor, 64));
    this.moveAddresses(a0 + (a1 - a0 - length) * share, length);
  }

  moveTime(t0, length = this.view.t1 - this.view.t0) {
    this.view.t0 = Math.min(Math.max(t0, 0), this.period - length);
    this.view.t1 = this.view.t0 + length;
  }

  moveAddresses(a0, length = this.view.a1 - this.view.a0) {
    this.view.a0 = Math.min(Math.max(a0, 0), this.top * 1.03 - length);
    this.view.a1 = this.view.a0 + length;
  }

  // Brings a request into view, with some room around it.
  zoomTo(row) {
    const { rectangles, size: sizes } = this.layouts.at(-1);
    const i = rectangles.request.indexOf(row);
    const start = Math.max(0, this.requests.start[row]);
    const end = Math.min(this.period, this.requests.end[row]);
    const length = Math.min(this.period, Math.max(8, (end - start) * 1.6));
    this.moveTime((start + end - length) / 2, length);
    if (i < 0) return;
    const size = sizes[row];
    const height = Math.min(this.top * 1.03, Math.max(512, size * 6));
    this.moveAddresses(rectangles.address[i] + size / 2 - height / 2, height);
  }

  // True if a request is drawn at full strength.
  stands(row) {
    return this.shown[this.requests.lifetime[row]] && (this.found === null || this.found[row] === 1);
  }

  // Marks the requests whose layer or phases have the text in their names; returns how many.
  find(text) {
    const wanted = text.trim().toLowerCase();
    if (wanted === "") {
      this.found = null;
      return 0;
    }
    const layers = this.layers.map((name) => name.toLowerCase().includes(wanted));
    const phases = this.phases.map((phase) => phase.name.toLowerCase().includes(wanted));
    const { layer, phase_begin: begin, phase_end: end } = this.requests;
    this.found = new Uint8Array(layer.length);
    let count = 0;
    for (let row = 0; row < layer.length; ++row) {
      const hit = layers[layer[row]] || phases[begin[row]] || phases[end[row]];
      if (hit) count += this.found[row] = 1;
    }
    return count;
  }

  phaseName(row, otherwise) {
    return row < 0 ? otherwise : this.phases[row].name;
  }
}

// The columns `prefix.name` by their names.
function tableOf(columns, prefix) {
  const start = prefix + ".";
  return Object.fromEntries(
    Object.keys(columns)
      .filter((name) => name.startsWith(start))
      .map((name) => [name.slice(start.length), columns[name]]),
  );
}
