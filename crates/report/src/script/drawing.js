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
   *  @param {HTMLCanvasElement} canvas @param {number} width @param {number} height @param {number} ratio */
  const fit = (canvas, width, height, ratio) => {
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

  /** While the view moves, what lanes say of it is written so often, in ms: each text that changes is laid out anew. */
  const SAID_EVERY = 120;
  const said = { at: -Infinity, from: NaN, to: NaN, later: 0 };
  /** Whether what lanes say is to be written now; if not, that is made up for. @param {number} now */
  const saysNow = (now) => {
    if ((said.from !== from || said.to !== to) && now - said.at < SAID_EVERY) {
      if (!said.later) {
        said.later = setTimeout(() => {
          said.later = 0;
          redraw();
        }, SAID_EVERY);
      }
      return false;
    }
    Object.assign(said, { at: now, from, to });
    return true;
  };

  let queued = false;
  const redraw = () => {
    if (queued) return;
    queued = true;
    requestAnimationFrame((now) => {
      queued = false;
      const says = saysNow(now);
      const ratio = window.devicePixelRatio || 1;
      // A page may have a thousand lanes, of which a screen shows twenty. Their widths are read before anything is
      // written: each reading after a writing would lay out the page anew.
      const near = lanes.filter((lane) => lane.near);
      const widths = near.map((lane) => [lane.canvas.clientWidth, lane.gutter ? lane.gutter.clientWidth : 0]);
      for (const [at, lane] of near.entries()) {
        const [width, gutter] = widths[at];
        const c = fit(lane.canvas, width, lane.height, ratio);
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
          const c = fit(lane.gutter, gutter, lane.height, ratio);
          if (c) drawStepScale(c, gutter);
        }
        const value = says ? plain(lane.read(hair === null ? -1 : hair)) : lane.value.textContent;
        if (lane.value.textContent !== value) lane.value.textContent = value;
      }
      drawArrows();
      byId("range").textContent = `${time(from, (to - from) / 100)} – ${time(to, (to - from) / 100)} (${duration(to - from)})`;
      byId("at").textContent = hair === null ? "" : `▏${time(hair, (to - from) / 1000)}`;
    });
  };

  /** The finest level that holds all of the view comes last, so that it is drawn over the others.
   *  @param {Track} track */
  const inView = (track) => {
    const shown = track.levels.filter((l) => l.during.to > from && l.during.from < to);
    // Tiles that the view holds many of show no more than a coarser one below them.
    return data.tiled ? shown.filter((l, at) => at === 0 || l.during.to - l.during.from >= (to - from) / 4) : shown;
  };

  /** Those in view of items in the order of time, which do not overlap. @param {any[][]} items */
  const seen = (items) => {
    /** The place of the first item that ends, or begins, after a time. @param {number} part @param {number} at */
    const first = (part, at) => {
      let [low, high] = [0, items.length];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (items[middle][part] <= at) low = middle + 1;
        else high = middle;
      }
      return low;
    };
    const begin = first(1, from);
    return items.slice(begin, Math.max(begin, first(0, to - 1e-3)));
  };

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
    const drawn = new Float64Array(values.length);
    const colours = values.map((value) => look(value)[0]);
    const pixel = (to - from) / width;
    let at = 0;
    // Pixels that look alike are one rectangle: most of a lane is long stretches.
    let since = left;
    /** @param {number} until */
    const flush = (until) => {
      let y = height - 2;
      for (let v = 0; v < drawn.length; v++) {
        const h = (drawn[v] / pixel) * (height - 4);
        if (h <= 0) continue;
        c.fillStyle = colours[v];
        c.fillRect(since, y - h, until - since, h);
        y -= h;
      }
    };
    for (let px = left; px < right; px++) {
      const [a, b] = [from + px * pixel, from + (px + 1) * pixel];
      held.fill(0);
      while (at < items.length && items[at][1] <= a) at++;
      for (let i = at; i < items.length && items[i][0] < b; i++) {
        held[items[i][2]] += Math.min(b, items[i][1]) - Math.max(a, items[i][0]);
      }
      if (px === left || held.some((time, v) => Math.abs(time - drawn[v]) > 0.02 * pixel)) {
        if (px > left) flush(px);
        since = px;
        drawn.set(held);
      }
    }
    if (left < right) flush(right);
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
      const shown = seen(items);
      if (shown.length > (right - left) / 3) {
        drawShares(c, shown, values, left, right, width, height);
        continue;
      }
      for (const [a, b, value] of shown) {
        const l = Math.max(0, x(a, width));
        const w = Math.max(0.6, Math.min(width, x(b, width)) - l);
        const name = plain(values[value] || "?");
        const [colour, hatch] = look(values[value] || "?");
        const low = LOW.includes(name);
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

  /** Shares of values, from below. @param {CanvasRenderingContext2D} c @param {Track} track @param {number} width
   *  @param {number} height */
  const drawStack = (c, track, width, height) => {
    const values = track.values || [];
    const looks = values.map(look);
    const shares = new Float64Array(values.length);
    for (const { during, items } of inView(track)) {
      const [left, right] = [Math.max(0, x(during.from, width)), Math.min(width, x(during.to, width))].map(Math.round);
      c.clearRect(left, 0, right - left, height);
      // Columns that begin in the same pixel are one, with their mean: each is weighted by its time.
      let [l, r, time] = [left, left, 0];
      const flush = () => {
        let y = height - 1;
        for (let v = 0; v < shares.length && time > 0; v++) {
          const h = (shares[v] / time / 100) * (height - 2);
          if (h <= 0) continue;
          const [colour, hatch] = looks[v];
          c.fillStyle = r - l < 3 ? colour : fill(colour, hatch);
          c.fillRect(l, y - h, r - l, h);
          y -= h;
        }
      };
      for (const [a, b, held] of seen(items)) {
        const begin = Math.max(left, Math.floor(x(a, width)));
        if (time === 0 || begin > l) {
          flush();
          [l, time] = [begin, 0];
          shares.fill(0);
        }
        r = Math.min(right, Math.max(l + 1, Math.floor(x(b, width))));
        time += b - a;
        for (let v = 0; v < shares.length; v++) shares[v] += held[v] * (b - a);
      }
      flush();
    }
    c.fillStyle = theme.edge;
    c.fillRect(0, height - 1, width, 1);
  };

  /** The shares at a time, or of all the time in view. @param {Track} track @param {number} at */
  const readStack = (track, at) => {
    const values = track.values || [];
    const sums = new Float64Array(values.length);
    let time = 0;
    const item = at < 0 ? null : itemAt(track, at);
    for (const [a, b, shares] of item ? [item] : seen(inView(track)[0]?.items || [])) {
      const part = item ? 1 : Math.max(0, Math.min(b, to) - Math.max(a, from));
      time += part;
      for (let v = 0; v < values.length; v++) sums[v] += part * shares[v];
    }
    // The largest first: of many, only the first lines have room.
    const said = values.map((name, v) => [sums[v] / Math.max(1, time), name]).filter(([share]) => Number(share) >= 0.05)
      .sort((a, b) => Number(b[0]) - Number(a[0]));
    return said.length ? said.map(([share, name]) => `${name} ${Number(share).toFixed(1)} %`).join(", ") : "idle";
  };

  /** @param {Track} track @returns {[number, number]} least and greatest in view; zero is always among them */
  const limits = (track) => {
    let [low, high] = [0, 0];
    for (const { items } of inView(track)) {
      for (const [, , mean, most] of seen(items)) {
        low = Math.min(low, mean);
        high = Math.max(high, most);
      }
    }
    return [low, high > low ? high : low + 1];
  };

  /** What held longest of the time in view. @param {Track} track */
  const mostly = (track) => {
    const values = track.values || [];
    const held = new Float64Array(values.length);
    for (const [a, b, value] of seen(inView(track)[0]?.items || [])) {
      held[value] += Math.max(0, Math.min(b, to) - Math.max(a, from));
    }
    const most = held.indexOf(Math.max(...held));
    return held[most] > 0 ? `${((100 * held[most]) / (to - from)).toFixed(0)} % ${values[most]}` : "not looked at";
  };

  /** @param {CanvasRenderingContext2D} c @param {Track} track @param {number} width @param {number} height */
  const drawLine = (c, track, width, height) => {
    // A share that looks like the whole misleads, however small the others are.
    const [low, high] = track.unit === "%" ? [0, 100] : limits(track);
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
      for (const [a, b, mean, most] of seen(items)) {
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

