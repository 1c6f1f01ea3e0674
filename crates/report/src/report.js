// @ts-check
"use strict";
// Draws the step plot and the time tracks, all on one time axis with one cross-hair.
// Text from the trace goes to the page as text nodes and canvas text only.
(() => {
  /** @typedef {{from: number, to: number}} Interval */
  /** @typedef {{during: Interval, items: number[][]}} Level */
  /** @typedef {{group: string, label: string, shape: "bands" | "line", values?: string[], unit?: string,
   *             levels: Level[]}} Track */
  /** @typedef {{at: number, ms: number, slow: boolean}} Point */
  /** @typedef {{during: Interval, median_ms: number, low_ms: number, threshold_ms: number}} Baseline */
  /** @typedef {{canvas: HTMLCanvasElement, height: number, value: HTMLElement,
   *             gutter: HTMLCanvasElement | null, draw: (c: CanvasRenderingContext2D, width: number) => void,
   *             read: (t: number) => string}} Lane */

  /** @param {string} id */
  const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
  /** @type {{length_ns: number, steps: {name: string, series: {name: string, points: Point[]}[],
   *          baseline: Baseline[], anomalies: Interval[]}, tracks: Track[],
   *          gaps: {during: Interval, what: string}[]}} */
  const data = JSON.parse(byId("data").textContent || "{}");
  const length = Math.max(1, data.length_ns);
  const anomalies = data.steps.anomalies;

  // The part of the trace in view, and the cross-hair; both in ns of page time.
  let from = 0;
  let to = length;
  /** @type {number | null} */
  let hair = null;
  /** @type {{lane: Lane, start: number, move: boolean, at: number, from: number, to: number} | null} */
  let drag = null;

  /** What is invisible is shown, as in the rest of the page. @param {string} text */
  const plain = (text) =>
    text.replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, (c) => `\\u{${(c.codePointAt(0) || 0).toString(16)}}`);

  /** @param {string} tag @param {string} name @param {string} [text] */
  const make = (tag, name, text) => {
    const element = document.createElement(tag);
    element.className = name;
    if (text !== undefined) element.textContent = plain(text);
    return element;
  };

  // --- colours ---------------------------------------------------------------------------------

  /** @type {Record<string, string>} */
  let theme = {};
  const readTheme = () => {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["ink", "soft", "paper", "card", "edge", "line", "blue", "slow", "band", "anomaly"]) {
      theme[name] = style.getPropertyValue(`--${name}`).trim();
    }
    patterns.clear();
  };

  // Thread states by name: colour, and a hatch so that colour is never alone.
  /** @type {Record<string, [string, string]>} */
  const STATES = {
    running: ["#009E73", ""], runnable: ["#D55E00", "up"], throttled: ["#D55E00", "cross"],
    sleep: ["#b9bec7", ""], disk_wait: ["#E69F00", "upright"], uninterruptible: ["#F0E442", "down"],
    stopped: ["#777777", "cross"], softirq: ["#CC79A7", ""], hardirq: ["#CC79A7", "up"],
    unknown: ["#e3e5e9", "dots"], idle: ["#e3e5e9", ""], other: ["#999999", "dots"],
  };
  const OTHERS = ["#56B4E9", "#E69F00", "#CC79A7", "#F0E442", "#0072B2", "#D55E00", "#009E73"];
  const HATCHES = ["", "up", "down", "across", "cross", "dots"];
  /** Values that are no states (who occupied a CPU) get their look in the order they come up.
   *  @type {Map<string, [string, string]>} */
  const looks = new Map();
  /** @param {string} value @returns {[string, string]} */
  const look = (value) => {
    if (Object.hasOwn(STATES, value)) return STATES[value];
    let found = looks.get(value);
    if (!found) {
      const n = looks.size;
      found = [OTHERS[n % OTHERS.length], HATCHES[Math.floor(n / OTHERS.length) % HATCHES.length]];
      looks.set(value, found);
    }
    return found;
  };

  /** @type {Map<string, CanvasPattern | string>} */
  const patterns = new Map();
  /** @param {string} colour @param {string} hatch @param {string} ink */
  const fill = (colour, hatch, ink = "rgba(0,0,0,.55)") => {
    if (!hatch) return colour;
    const key = `${colour} ${hatch} ${ink}`;
    const known = patterns.get(key);
    if (known) return known;
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const c = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
    c.fillStyle = colour;
    if (colour !== "none") c.fillRect(0, 0, 8, 8);
    c.strokeStyle = c.fillStyle = ink;
    c.lineWidth = 1.2;
    c.beginPath();
    if (hatch === "up" || hatch === "cross") { c.moveTo(-2, 10); c.lineTo(10, -2); }
    if (hatch === "up") { c.moveTo(-2, 2); c.lineTo(2, -2); c.moveTo(6, 10); c.lineTo(10, 6); }
    if (hatch === "down" || hatch === "cross") { c.moveTo(-2, -2); c.lineTo(10, 10); }
    if (hatch === "down") { c.moveTo(-2, 6); c.lineTo(2, 10); c.moveTo(6, -2); c.lineTo(10, 2); }
    if (hatch === "across") { c.moveTo(0, 4); c.lineTo(8, 4); }
    if (hatch === "upright") { c.moveTo(4, 0); c.lineTo(4, 8); }
    c.stroke();
    if (hatch === "dots") c.fillRect(3, 3, 2.4, 2.4);
    const pattern = c.createPattern(tile, "repeat") || colour;
    patterns.set(key, pattern);
    return pattern;
  };

  // --- numbers ---------------------------------------------------------------------------------

  /** @param {number} v */
  const short = (v) => {
    const a = Math.abs(v);
    if (a !== 0 && (a >= 1e6 || a < 1e-3)) return v.toExponential(2);
    return a >= 100 ? v.toFixed(0) : a >= 1 ? v.toFixed(1) : a === 0 ? "0" : v.toFixed(3);
  };
  /** The distance of about `count` ticks over `span`: 1, 2 or 5 times a power of ten.
   *  @param {number} span @param {number} count */
  const step = (span, count) => {
    const raw = span / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(raw));
    return power * ([1, 2, 5].find((m) => m * power >= raw) || 10);
  };
  /** A time with the digits that `scale` ns apart asks for. @param {number} ns @param {number} scale */
  const time = (ns, scale) => {
    const digits = Math.min(9, Math.max(0, Math.ceil(9 - Math.log10(Math.max(1, scale)))));
    return `${(ns / 1e9).toFixed(digits)} s`;
  };
  /** @param {number} ns */
  const duration = (ns) => (ns >= 1e9 ? `${short(ns / 1e9)} s` : ns >= 1e6 ? `${short(ns / 1e6)} ms` : `${short(ns / 1e3)} µs`);

  // --- drawing ---------------------------------------------------------------------------------

  /** @type {Lane[]} */
  const lanes = [];
  const LEFT = 0;
  /** @param {number} t @param {number} width */
  const x = (t, width) => LEFT + ((t - from) / (to - from)) * (width - LEFT);
  /** @param {number} px @param {number} width */
  const t = (px, width) => from + ((px - LEFT) / (width - LEFT)) * (to - from);

  /** Behind everything: the anomalies; before everything: gaps and the cross-hair.
   *  @param {CanvasRenderingContext2D} c @param {Interval[]} list @param {number} width @param {number} height
   *  @param {string | CanvasPattern} style */
  const shade = (c, list, width, height, style) => {
    c.fillStyle = style;
    for (const { from: a, to: b } of list) {
      if (b < from || a > to) continue;
      const left = Math.max(0, x(a, width));
      c.fillRect(left, 0, Math.max(1, Math.min(width, x(b, width)) - left), height);
    }
  };

  /** A canvas as sharp as the screen, empty; null while it is not shown.
   *  @param {HTMLCanvasElement} canvas @param {number} height @param {number} ratio */
  const fit = (canvas, height, ratio) => {
    const width = canvas.clientWidth;
    const c = canvas.getContext("2d");
    if (width === 0 || !c) return null;
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== w || canvas.height !== h) {
      canvas.width = w;
      canvas.height = h;
      canvas.style.height = `${height}px`;
    }
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, width, height);
    return c;
  };

  let queued = false;
  const redraw = () => {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => {
      queued = false;
      const ratio = window.devicePixelRatio || 1;
      for (const lane of lanes) {
        const width = lane.canvas.clientWidth;
        const c = fit(lane.canvas, lane.height, ratio);
        if (!c) continue;
        shade(c, anomalies, width, lane.height, theme.anomaly);
        lane.draw(c, width);
        shade(c, data.gaps.map((g) => g.during), width, lane.height, fill("rgba(128,128,128,.25)", "up", theme.ink));
        if (drag && !drag.move) {
          const [a, b] = [Math.min(drag.start, drag.at), Math.max(drag.start, drag.at)];
          c.fillStyle = theme.band;
          c.fillRect(x(a, width), 0, x(b, width) - x(a, width), lane.height);
        }
        if (hair !== null) {
          c.fillStyle = theme.ink;
          c.fillRect(Math.round(x(hair, width)), 0, 1, lane.height);
        }
        if (lane.gutter) {
          const c = fit(lane.gutter, lane.height, ratio);
          if (c) drawStepScale(c, lane.gutter.clientWidth);
        }
        lane.value.textContent = plain(lane.read(hair === null ? -1 : hair));
      }
      byId("range").textContent = `${time(from, (to - from) / 100)} – ${time(to, (to - from) / 100)} (${duration(to - from)})`;
      byId("at").textContent = hair === null ? "" : `▏${time(hair, (to - from) / 1000)}`;
    });
  };

  /** The finest level that holds all of the view comes last, so that it is drawn over the others.
   *  @param {Track} track */
  const inView = (track) => track.levels.filter((l) => l.during.to > from && l.during.from < to);

  /** The item at a time, from the finest level that has it. @param {Track} track @param {number} at */
  const itemAt = (track, at) => {
    for (let i = track.levels.length - 1; i >= 0; i--) {
      const { during, items } = track.levels[i];
      if (at < during.from || at >= during.to) continue;
      let [low, high] = [0, items.length];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (items[middle][1] <= at) low = middle + 1;
        else high = middle;
      }
      return items[low] && items[low][0] <= at ? items[low] : null;
    }
    return null;
  };

  /** Bands narrower than pixels: what share of each pixel's time each value had, from below.
   *  @param {CanvasRenderingContext2D} c @param {number[][]} items @param {string[]} values
   *  @param {number} left @param {number} right @param {number} width @param {number} height */
  const drawShares = (c, items, values, left, right, width, height) => {
    const held = new Float64Array(values.length);
    const pixel = (to - from) / width;
    let at = 0;
    for (let px = left; px < right; px++) {
      const [a, b] = [from + px * pixel, from + (px + 1) * pixel];
      held.fill(0);
      while (at < items.length && items[at][1] <= a) at++;
      for (let i = at; i < items.length && items[i][0] < b; i++) {
        held[items[i][2]] += Math.min(b, items[i][1]) - Math.max(a, items[i][0]);
      }
      let y = height - 2;
      for (let v = 0; v < held.length; v++) {
        const h = (held[v] / pixel) * (height - 4);
        if (h <= 0) continue;
        c.fillStyle = look(values[v])[0];
        c.fillRect(px, y - h, 1, h);
        y -= h;
      }
    }
  };

  /** @param {CanvasRenderingContext2D} c @param {Track} track @param {number} width @param {number} height */
  const drawBands = (c, track, width, height) => {
    const values = track.values || [];
    c.font = "12px system-ui, sans-serif";
    c.textBaseline = "middle";
    for (const { during, items } of inView(track)) {
      const [left, right] = [Math.max(0, x(during.from, width)), Math.min(width, x(during.to, width))].map(Math.round);
      c.clearRect(left, 0, right - left, height);
      shade(c, anomalies.map((a) => ({ from: Math.max(a.from, during.from), to: Math.min(a.to, during.to) }))
        .filter((a) => a.to > a.from), width, height, theme.anomaly);
      const shown = items.filter(([a, b]) => b > from && a < to);
      if (shown.length > (right - left) / 3) {
        drawShares(c, shown, values, left, right, width, height);
        continue;
      }
      for (const [a, b, value] of shown) {
        const l = Math.max(0, x(a, width));
        const w = Math.max(0.6, Math.min(width, x(b, width)) - l);
        const name = plain(values[value] || "?");
        const [colour, hatch] = look(values[value] || "?");
        const low = name === "sleep" || name === "idle";
        c.fillStyle = w < 3 ? colour : fill(colour, hatch);
        c.fillRect(l, low ? height / 2 - 3 : 2, w, low ? 6 : height - 4);
        if (!low && w > 34) {
          const room = w - 8;
          let text = name;
          while (text.length > 2 && c.measureText(text).width > room) text = `${text.slice(0, -2)}…`;
          if (c.measureText(text).width <= room) {
            c.strokeStyle = "rgba(255,255,255,.9)";
            c.lineWidth = 3;
            c.strokeText(text, l + 4, height / 2 + 0.5);
            c.fillStyle = "#000";
            c.fillText(text, l + 4, height / 2 + 0.5);
          }
        }
      }
    }
  };

  /** @param {Track} track @returns {[number, number]} least and greatest in view; zero is always among them */
  const limits = (track) => {
    let [low, high] = [0, 0];
    for (const { items } of inView(track)) {
      for (const [a, b, mean, most] of items) {
        if (b > from && a < to) {
          low = Math.min(low, mean);
          high = Math.max(high, most);
        }
      }
    }
    return [low, high > low ? high : low + 1];
  };

  /** What held longest of the time in view. @param {Track} track */
  const mostly = (track) => {
    const values = track.values || [];
    const held = new Float64Array(values.length);
    for (const [a, b, value] of inView(track)[0]?.items || []) {
      held[value] += Math.max(0, Math.min(b, to) - Math.max(a, from));
    }
    const most = held.indexOf(Math.max(...held));
    return held[most] > 0 ? `${((100 * held[most]) / (to - from)).toFixed(0)} % ${values[most]}` : "not looked at";
  };

  /** @param {CanvasRenderingContext2D} c @param {Track} track @param {number} width @param {number} height */
  const drawLine = (c, track, width, height) => {
    const [low, high] = limits(track);
    /** @param {number} v */
    const y = (v) => height - 2 - ((v - low) / (high - low)) * (height - 5);
    for (const { during, items } of inView(track)) {
      const [left, right] = [Math.max(0, x(during.from, width)), Math.min(width, x(during.to, width))].map(Math.round);
      c.clearRect(left, 0, right - left, height);
      shade(c, anomalies.map((a) => ({ from: Math.max(a.from, during.from), to: Math.min(a.to, during.to) }))
        .filter((a) => a.to > a.from), width, height, theme.anomaly);
      // One path for the peaks and one for the means, so that neighbours leave no seams.
      const peaks = new Path2D();
      const means = new Path2D();
      let end = NaN;
      for (const [a, b, mean, most] of items) {
        if (b <= from || a >= to) continue;
        const l = a === during.from ? left : Math.max(left, x(a, width));
        const r = b === during.to ? right : Math.min(right, x(b, width));
        peaks.rect(l, y(most), Math.max(0.7, r - l), y(0) - y(most));
        if (a === end) means.lineTo(l, y(mean));
        else means.moveTo(l, y(mean));
        means.lineTo(r, y(mean));
        end = b;
      }
      c.fillStyle = theme.band;
      c.fill(peaks);
      c.strokeStyle = theme.blue;
      c.lineWidth = 1.4;
      c.stroke(means);
    }
    c.fillStyle = theme.edge;
    c.fillRect(0, y(0), width, 1);
  };

  // --- steps -----------------------------------------------------------------------------------

  const SERIES = ["#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];
  /** @param {CanvasRenderingContext2D} c @param {number} px @param {number} py @param {number} r @param {number} n */
  const dot = (c, px, py, r, n) => {
    c.beginPath();
    if (n % 3 === 0) c.arc(px, py, r, 0, 7);
    else if (n % 3 === 1) c.rect(px - r, py - r, 2 * r, 2 * r);
    else { c.moveTo(px, py - r * 1.3); c.lineTo(px + r * 1.2, py + r); c.lineTo(px - r * 1.2, py + r); c.closePath(); }
    c.fill();
  };

  const AXIS = 20;
  const STEPS = 240;
  /** The greatest duration that the plot has room for, in ms. */
  const mostMs = () => {
    let high = 0;
    for (const { points } of data.steps.series) {
      for (const p of points) if (p.at >= from && p.at <= to) high = Math.max(high, p.ms);
    }
    for (const b of data.steps.baseline) {
      if (b.during.to >= from && b.during.from <= to) high = Math.max(high, b.threshold_ms);
    }
    return high > 0 ? high * 1.08 : 1;
  };
  /** @param {number} v @param {number} high */
  const stepY = (v, high) => STEPS - AXIS - (v / high) * (STEPS - AXIS - 8);

  /** @param {CanvasRenderingContext2D} c @param {number} width */
  const drawStepScale = (c, width) => {
    const high = mostMs();
    const rung = step(high, 5);
    c.font = "12px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.textAlign = "right";
    c.fillStyle = theme.soft;
    for (let v = 0; v <= high; v += rung) {
      c.fillText(`${Number(v.toPrecision(6))} ms`, width - 4, stepY(v, high));
    }
  };

  /** @param {CanvasRenderingContext2D} c @param {number} width */
  const drawSteps = (c, width) => {
    const height = STEPS - AXIS;
    const high = mostMs();
    /** @param {number} v */
    const y = (v) => stepY(v, high);
    c.font = "12px system-ui, sans-serif";
    c.textBaseline = "middle";
    const rung = step(high, 5);
    for (let v = 0; v <= high; v += rung) {
      c.fillStyle = theme.edge;
      c.fillRect(0, y(v), width, 1);
    }
    for (const b of data.steps.baseline) {
      if (b.during.to < from || b.during.from > to) continue;
      const [l, r] = [Math.max(0, x(b.during.from, width)), Math.min(width, x(b.during.to, width))];
      c.fillStyle = theme.band;
      c.fillRect(l, y(b.threshold_ms), r - l, y(Math.max(0, b.low_ms)) - y(b.threshold_ms));
      c.fillStyle = theme.blue;
      c.fillRect(l, y(b.median_ms) - 0.7, r - l, 1.4);
      c.strokeStyle = theme.ink;
      c.lineWidth = 1;
      c.setLineDash([6, 4]);
      c.beginPath();
      c.moveTo(l, y(b.threshold_ms));
      c.lineTo(r, y(b.threshold_ms));
      c.stroke();
      c.setLineDash([]);
    }
    for (const slow of [false, true]) {
      data.steps.series.forEach(({ points }, n) => {
        const dense = points.length > 1500;
        for (const p of points) {
          if (p.slow !== slow || p.at < from || p.at > to) continue;
          const [px, py] = [x(p.at, width), y(p.ms)];
          if (slow) {
            c.save();
            c.translate(px, py);
            c.rotate(Math.PI / 4);
            c.fillStyle = theme.slow;
            c.strokeStyle = theme.paper;
            c.lineWidth = 0.8;
            c.fillRect(-4, -4, 8, 8);
            c.strokeRect(-4, -4, 8, 8);
            c.restore();
          } else {
            c.fillStyle = SERIES[n % SERIES.length];
            dot(c, px, py, dense ? 1.6 : 2.4, n);
          }
        }
      });
    }
    axis(c, width, height);
  };

  /** @param {CanvasRenderingContext2D} c @param {number} width @param {number} top */
  const axis = (c, width, top) => {
    const tick = step(to - from, width / 110);
    c.font = "12px system-ui, sans-serif";
    c.textBaseline = "alphabetic";
    c.textAlign = "center";
    c.fillStyle = theme.line;
    c.fillRect(0, top, width, 1);
    for (let at = Math.ceil(from / tick) * tick; at <= to; at += tick) {
      const px = x(at, width);
      c.fillStyle = theme.line;
      c.fillRect(px, top, 1, 5);
      c.fillStyle = theme.soft;
      if (px > 24 && px < width - 24) c.fillText(time(at, tick), px, top + 16);
    }
    c.textAlign = "left";
  };

  /** @param {number} at */
  const readStep = (at) => {
    if (at < 0) return "";
    /** @type {{p: Point, name: string} | null} */
    let best = null;
    for (const { name, points } of data.steps.series) {
      for (const p of points) {
        // The step that was under way: the first that ended then or later.
        if (p.at >= at && p.at - p.ms * 1e6 <= at && (!best || p.ms > best.p.ms)) best = { p, name };
      }
    }
    return best ? `${short(best.p.ms)} ms${best.p.slow ? " slow" : ""} ${best.name}` : "";
  };

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
    const row = make("div", "lane");
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
    const lane = { canvas, height, value, gutter, draw, read };
    lanes.push(lane);
    listen(lane);
  };

  const build = () => {
    addLane(byId("step-plot"), "step latency", STEPS, drawSteps, readStep, true);
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
      } else {
        addLane(parent, track.label, 42, (c, w) => drawLine(c, track, w, 42), (at) => {
          const item = itemAt(track, at);
          if (item) return `${short(item[2])}${item[3] > item[2] ? ` (peak ${short(item[3])})` : ""} ${track.unit}`;
          return at < 0 ? `up to ${short(limits(track)[1])} ${track.unit}` : "not looked at";
        });
      }
    }
    addLane(parent, "time axis", AXIS, (c, w) => axis(c, w, 0), () => "");
    const legend = byId("state-legend");
    for (const value of Object.keys(STATES).filter((v) => seen.has(v))) {
      const tile = document.createElement("canvas");
      tile.width = 22;
      tile.height = 12;
      const c = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
      c.fillStyle = fill(...STATES[value]);
      const low = value === "sleep" || value === "idle";
      c.fillRect(0, low ? 4 : 0, 22, low ? 4 : 12);
      legend.append(tile, value.replace("_", " "));
    }
  };

  readTheme();
  build();
  byId("tools").hidden = false;
  if (navigator.clipboard) for (const b of document.querySelectorAll("[data-do=copy]")) b.removeAttribute("hidden");
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readTheme(); redraw(); });
  new ResizeObserver(redraw).observe(document.body);
  redraw();
})();
