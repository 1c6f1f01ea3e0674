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
    preempted: ["#D55E00", "cross"], halted: ["#b9bec7", ""],
    host: ["#999999", "up"], nobody: ["#e3e5e9", ""], unknown: ["#e3e5e9", "dots"], idle: ["#e3e5e9", ""], other: ["#999999", "dots"],
  };
  /** States in which nothing happens are drawn low. */
  const LOW = ["sleep", "idle", "halted"];
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

