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

