  // --- moving ----------------------------------------------------------------------------------

  const LEAST = 1000;
  /** @param {number} a @param {number} b */
  const show = (a, b) => {
    let span = Math.min(length, Math.max(LEAST, b - a));
    from = Math.min(Math.max(0, a), length - span);
    to = from + span;
    redraw();
  };
  /** @param {number} factor @param {number} [around] */
  const zoom = (factor, around = hair !== null && hair >= from && hair <= to ? hair : (from + to) / 2) =>
    show(around - (around - from) * factor, around + (to - around) * factor);
  /** @param {number} share */
  const move = (share) => show(from + (to - from) * share, to + (to - from) * share);
  /** @param {Interval} i @param {number} [margin] */
  const showAround = (i, margin = 0.6) => {
    const pad = Math.max(i.to - i.from, LEAST) * margin;
    show(i.from - pad, i.to + pad);
  };
  let next = 0;
  /** @type {Record<string, () => void>} */
  const actions = {
    in: () => zoom(0.6),
    out: () => zoom(1 / 0.6),
    left: () => move(-0.3),
    right: () => move(0.3),
    whole: () => show(0, length),
    anomaly: () => { if (anomalies.length) showAround(anomalies[next++ % anomalies.length]); },
    slowest: () => {
      const all = data.steps.series.flatMap((s) => s.points);
      if (!all.length) return;
      const p = all.reduce((a, b) => (b.ms > a.ms ? b : a));
      showAround({ from: p.at - p.ms * 1e6, to: p.at });
    },
  };
  /** @type {Record<string, string>} */
  const KEYS = { w: "in", s: "out", a: "left", d: "right", f: "whole", g: "anomaly", x: "slowest" };

  let hovered = false;
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const focus = document.activeElement;
    const plot = focus instanceof HTMLElement && focus.closest(".plot, #tools");
    // Letters act only where they are expected, so that nobody's reader trips over them.
    if (!plot && !hovered) return;
    const name = KEYS[e.key.toLowerCase()];
    if (name) {
      actions[name]();
    } else if (e.key === "Escape") {
      hair = null;
      redraw();
    } else if (plot && focus.matches(".plot") && (e.key === "ArrowLeft" || e.key === "ArrowRight")) {
      const by = ((to - from) / (e.shiftKey ? 20 : 200)) * (e.key === "ArrowLeft" ? -1 : 1);
      hair = Math.min(length, Math.max(0, (hair === null ? (from + to) / 2 : hair) + by));
      if (hair < from || hair > to) move(hair < from ? -0.3 : 0.3);
      redraw();
    } else {
      return;
    }
    e.preventDefault();
  });

  document.addEventListener("click", (e) => {
    const button = e.target instanceof Element ? e.target.closest("button") : null;
    if (!button) return;
    if (button.dataset.from !== undefined) {
      showAround({ from: Number(button.dataset.from), to: Number(button.dataset.to) });
      const plots = byId("track-plots") || byId("step-plot");
      plots.scrollIntoView({ block: "nearest" });
    } else if (button.dataset.do === "copy") {
      const text = button.parentElement?.querySelector("pre")?.textContent || "";
      navigator.clipboard?.writeText(text).then(() => { button.textContent = "Copied"; }, () => {});
    } else if (button.dataset.do && actions[button.dataset.do]) {
      actions[button.dataset.do]();
    }
  });

  /** @param {Lane} lane */
  const listen = (lane) => {
    const { canvas } = lane;
    /** @param {MouseEvent} e */
    const at = (e) => {
      const box = canvas.getBoundingClientRect();
      return t(Math.min(box.width, Math.max(0, e.clientX - box.left)), box.width);
    };
    canvas.addEventListener("pointerdown", (e) => {
      if (e.button !== 0) return;
      canvas.setPointerCapture(e.pointerId);
      const start = at(e);
      drag = { lane, start, move: e.shiftKey, at: start, from, to };
    });
    canvas.addEventListener("pointermove", (e) => {
      hair = at(e);
      if (drag?.move) {
        const by = drag.start - hair;
        show(from + by, to + by);
        hair = drag.start;
      } else if (drag) {
        drag.at = hair;
      }
      redraw();
    });
    canvas.addEventListener("pointerup", () => {
      const done = drag;
      drag = null;
      if (done && !done.move) {
        const [a, b] = [Math.min(done.start, done.at), Math.max(done.start, done.at)];
        // A click is not a selection.
        if ((b - a) / (to - from) > 0.004) show(a, b);
      }
      redraw();
    });
    canvas.addEventListener("pointercancel", () => { drag = null; redraw(); });
    canvas.addEventListener("pointerenter", () => { hovered = true; });
    canvas.addEventListener("pointerleave", () => { hovered = false; if (!drag) { hair = null; redraw(); } });
    canvas.addEventListener("wheel", (e) => {
      if (!e.ctrlKey) return;
      e.preventDefault();
      zoom(e.deltaY > 0 ? 1.25 : 0.8, at(e));
    }, { passive: false });
  };

  /** @param {HTMLElement} parent @param {string} name @param {number} height
   *  @param {Lane["draw"]} draw @param {Lane["read"]} read @param {boolean} [scaled] */
  const addLane = (parent, name, height, draw, read, scaled = false) => {
    const row = make("div", height > 60 ? "lane tall" : "lane");
    const gutter = scaled ? document.createElement("canvas") : null;
    const label = gutter || make("span", "name", name === "time axis" ? "" : name);
    if (gutter) gutter.setAttribute("aria-hidden", "true");
    else label.title = plain(name);
    const canvas = document.createElement("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", plain(name));
    canvas.style.height = `${height}px`;
    const value = make("span", "value");
    row.append(label, canvas, value);
    parent.append(row);
    const lane = { canvas, height, value, gutter, draw, read, near: true };
    lanes.push(lane);
    listen(lane);
  };

  const build = () => {
    // A trace without steps has no plot of them.
    for (const value of data.legend || []) look(value);
    if (byId("step-plot")) addLane(byId("step-plot"), "step latency", STEPS, drawSteps, readStep, true);
    const key = document.querySelector("#steps .legend");
    if (key && data.steps.series.length > 1) {
      data.steps.series.slice(0, SERIES.length * 3).forEach(({ name }, n) => {
        const tile = document.createElement("canvas");
        tile.width = tile.height = 12;
        const c = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
        c.fillStyle = SERIES[n % SERIES.length];
        dot(c, 6, 6, 4, n);
        key.append(tile, plain(name));
      });
    }
    const parent = byId("track-plots");
    if (!parent) return;
    /** @type {string | null} */
    let group = null;
    const seen = new Set();
    firstTrack = lanes.length;
    for (const track of data.tracks) {
      if (track.group !== group) {
        group = track.group;
        parent.append(make("div", "group", group));
      }
      if (track.shape === "bands") {
        for (const value of track.values || []) if (Object.hasOwn(STATES, value)) seen.add(value);
        addLane(parent, track.label, 22, (c, w) => drawBands(c, track, w, 22), (at) => {
          if (at < 0) return mostly(track);
          const item = itemAt(track, at);
          return item ? (track.values || [])[item[2]] || "" : "not looked at";
        });
      } else if (track.shape === "stack") {
        addLane(parent, track.label, 64, (c, w) => drawStack(c, track, w, 64), (at) => readStack(track, at));
      } else {
        addLane(parent, track.label, 42, (c, w) => drawLine(c, track, w, 42), (at) => {
          const item = itemAt(track, at);
          if (item) return `${short(item[2])}${item[3] > item[2] ? ` (peak ${short(item[3])})` : ""} ${track.unit}`;
          if (at >= 0) return "not looked at";
          // A debt is what one looks for: the least is said where it is below zero.
          const [low, high] = limits(track);
          return `${low < 0 ? `${short(low)} to ${short(high)}` : `up to ${short(high)}`} ${track.unit}`;
        });
      }
    }
    addLane(parent, "time axis", AXIS, (c, w) => axis(c, w, 0), () => "");
    const legend = byId("state-legend");
    for (const value of [...Object.keys(STATES).filter((v) => seen.has(v)), ...(data.legend || []).filter((v) => !Object.hasOwn(STATES, v))]) {
      const tile = document.createElement("canvas");
      tile.width = 22;
      tile.height = 12;
      const c = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
      c.fillStyle = fill(...look(value));
      const low = LOW.includes(value);
      c.fillRect(0, low ? 4 : 0, 22, low ? 4 : 12);
      legend.append(tile, plain(value.replace("_", " ")));
    }
  };

  /** Only lanes on the screen are drawn; all of them for paper. */
  const watchLanes = () => {
    const rows = new Map(lanes.map((lane) => [/** @type {Element} */ (lane.canvas), lane]));
    const observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        const lane = rows.get(target);
        if (lane) lane.near = isIntersecting;
      }
      redraw();
    }, { rootMargin: "40px 0px" });
    for (const lane of lanes) {
      lane.near = false;
      observer.observe(lane.canvas);
    }
    addEventListener("beforeprint", () => { for (const lane of lanes) lane.near = true; redraw(); });
  };

  readTheme();
  build();
  if (lanes.length > 50 && typeof IntersectionObserver === "function") watchLanes();
  byId("tools").hidden = false;
  if (navigator.clipboard) for (const b of document.querySelectorAll("[data-do=copy]")) b.removeAttribute("hidden");
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readTheme(); redraw(); });
  new ResizeObserver(redraw).observe(document.body);
  redraw();
})();
