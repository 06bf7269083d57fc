// Mouse, touch and keyboard on the panels.

const PAN_SHARE = 0.12; // of what is in view, for one press of an arrow
const ZOOM = 0.7;

class Controls {
  constructor(app) {
    this.app = app;
    for (const panel of app.panels) this.listen(panel);
    document.querySelectorAll("[data-key]").forEach((button) => {
      button.addEventListener("click", () => this.press(button.dataset.key, {}));
    });
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.target.matches("input, button, summary")) return;
      if (this.press(event.key, event)) event.preventDefault();
    });
  }

  listen(panel) {
    const { overlay } = panel;
    const { app } = this;
    const { scene } = app;
    let from = null; // where a drag began, and the view at that time
    overlay.addEventListener("pointerdown", (event) => {
      overlay.focus({ preventScroll: true });
      overlay.setPointerCapture(event.pointerId);
      from = { x: event.clientX, y: event.clientY, t0: scene.view.t0, a0: scene.view.a0, moved: false };
    });
    overlay.addEventListener("pointermove", (event) => {
      if (from === null) {
        app.hover(panel, event);
        return;
      }
      const right = event.clientX - from.x;
      const down = event.clientY - from.y;
      if (!from.moved && Math.hypot(right, down) < 4) return;
      from.moved = true;
      overlay.classList.add("dragged");
      const { t0, t1, a0, a1 } = scene.view;
      scene.moveTime(from.t0 - (right / panel.map.width) * (t1 - t0));
      scene.moveAddresses(from.a0 + (down / panel.map.height) * (a1 - a0));
      app.leave();
      app.redraw();
    });
    const release = (event) => {
      if (from !== null && !from.moved && event.type === "pointerup") app.select(panel, event);
      from = null;
      overlay.classList.remove("dragged");
    };
    overlay.addEventListener("pointerup", release);
    overlay.addEventListener("pointercancel", release);
    overlay.addEventListener("pointerleave", () => app.leave());
    overlay.addEventListener("dblclick", () => {
      if (scene.selected >= 0) scene.zoomTo(scene.selected);
      app.redraw();
    });
    overlay.addEventListener(
      "wheel",
      (event) => {
        // A reader who scrolls past on the way down the page does not want to zoom.
        if (document.activeElement !== overlay && !event.ctrlKey) return;
        event.preventDefault();
        const turned = Math.abs(event.deltaY) > Math.abs(event.deltaX) ? event.deltaY : event.deltaX;
        const factor = Math.exp(Math.max(-240, Math.min(240, turned)) / 400);
        const box = overlay.getBoundingClientRect();
        if (event.shiftKey) {
          scene.zoomAddresses(factor, 1 - (event.clientY - box.top - panel.map.y) / panel.map.height);
        } else {
          scene.zoomTime(factor, (event.clientX - box.left - panel.map.x) / panel.map.width);
        }
        app.redraw();
      },
      { passive: false },
    );
  }

  // Returns whether the key meant something.
  press(key, { altKey }) {
    const { app } = this;
    const { scene } = app;
    const { t0, t1, a0, a1 } = scene.view;
    const zoom = (factor) => (altKey ? scene.zoomAddresses(factor, 0.5) : scene.zoomTime(factor, 0.5));
    const actions = {
      "+": () => zoom(ZOOM),
      "=": () => zoom(ZOOM),
      "-": () => zoom(1 / ZOOM),
      "−": () => zoom(1 / ZOOM),
      ArrowLeft: () => scene.moveTime(t0 - PAN_SHARE * (t1 - t0)),
      ArrowRight: () => scene.moveTime(t0 + PAN_SHARE * (t1 - t0)),
      ArrowUp: () => scene.moveAddresses(a0 + PAN_SHARE * (a1 - a0)),
      ArrowDown: () => scene.moveAddresses(a0 - PAN_SHARE * (a1 - a0)),
      0: () => scene.showAll(),
      n: () => app.step(1),
      p: () => app.step(-1),
      Escape: () => app.choose(-1),
    };
    if (!Object.hasOwn(actions, key)) return false;
    // At full view the arrows scroll the page, as they do everywhere else.
    if (key.startsWith("Arrow") && scene.isAllShown()) return false;
    actions[key]();
    app.redraw();
    return true;
  }
}
