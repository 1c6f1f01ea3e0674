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

