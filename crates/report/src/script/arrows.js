  // --- arrows from lane to lane ----------------------------------------------------------------

  /** More arrows than these would hide what they join. */
  const ARROWS = 60;
  /** The place of the first time track among the lanes. */
  let firstTrack = 0;
  /** @type {HTMLCanvasElement | null} */
  let overlay = null;

  /** The arrows in view, each with its time and its two tracks; none if they are too many. */
  const arrowsInView = () => {
    /** @type {[number, number, number][]} */
    const out = [];
    for (const { track, at } of data.arrows || []) {
      let [low, high] = [0, at.length];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (at[middle][0] < from) low = middle + 1;
        else high = middle;
      }
      for (let i = low; i < at.length && at[i][0] < to; i++) {
        if (out.length === ARROWS) return [];
        out.push([at[i][0], track, at[i][1]]);
      }
    }
    return out;
  };

  /** Over the whole window, since they lead from canvas to canvas. */
  const drawArrows = () => {
    if (!data.arrows) return;
    const arrows = arrowsInView();
    if (!overlay) {
      if (!arrows.length) return;
      overlay = document.createElement("canvas");
      overlay.className = "arrows";
      overlay.setAttribute("aria-hidden", "true");
      document.body.append(overlay);
      addEventListener("scroll", () => requestAnimationFrame(drawArrows), { passive: true });
    }
    /** @type {Map<number, DOMRect>} */
    const boxes = new Map();
    /** @param {number} track */
    const box = (track) => {
      const known = boxes.get(track) || lanes[firstTrack + track].canvas.getBoundingClientRect();
      boxes.set(track, known);
      return known;
    };
    for (const [, a, b] of arrows) [a, b].forEach(box);
    const c = fit(overlay, innerWidth, innerHeight, window.devicePixelRatio || 1);
    if (!c) return;
    c.strokeStyle = c.fillStyle = theme.ink;
    c.lineWidth = 1;
    for (const [time, a, b] of arrows) {
      const [begin, end] = [box(a), box(b)];
      const px = Math.round(begin.left + x(time, begin.width)) + 0.5;
      const up = end.top < begin.top;
      const [y, tip] = up ? [begin.top + 4, end.bottom - 4] : [begin.bottom - 4, end.top + 4];
      c.globalAlpha = 0.55;
      c.beginPath();
      c.moveTo(px, y);
      c.lineTo(px, tip);
      c.stroke();
      c.globalAlpha = 0.9;
      c.beginPath();
      c.moveTo(px, tip);
      c.lineTo(px - 3.5, tip + (up ? 7 : -7));
      c.lineTo(px + 3.5, tip + (up ? 7 : -7));
      c.fill();
    }
    c.globalAlpha = 1;
  };

