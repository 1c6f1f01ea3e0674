// Says the numbers of the time line under the pointer, or where the arrow keys are.
(() => {
  const place = document.getElementById("time-data");
  const plot = document.getElementById("time-plot");
  const svg = plot?.querySelector("svg.lanes");
  const hair = svg?.querySelector(".hair");
  const out = document.getElementById("at-time");
  if (!place || !plot || !svg || !hair || !out) return;
  /** @type {{from: number, to: number, column: number, left: number, width: number,
   *          rows: {name: string, top: number, bottom: number, parts: number[][]}[]}} */
  const data = JSON.parse(place.textContent || "{}");
  if (!data.rows.length) return;
  const span = data.to - data.from;
  const columns = Math.max(...data.rows.map((row) => row.parts[0].length));
  let [row, column] = [0, -1];

  /** What is invisible is shown, as in the rest of the page. @param {string} text */
  const plain = (text) =>
    text.replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, (c) => `\\u{${(c.codePointAt(0) || 0).toString(16)}}`);
  /** @param {number} seconds */
  const time = (seconds) =>
    span < 2e-3 ? `${(seconds * 1e6).toFixed(0)} µs` : span < 2 ? `${(seconds * 1e3).toFixed(2)} ms` : `${seconds.toFixed(3)} s`;

  const say = () => {
    const { name, parts } = data.rows[row];
    const from = column * data.column;
    const x = data.left + ((from + data.column / 2 - data.from) / span) * (data.width - data.left);
    hair.setAttribute("x1", `${x}`);
    hair.setAttribute("x2", `${x}`);
    const [computing, communicating, copying] = parts.map((part) => part[column] || 0);
    const idle = Math.max(0, 100 - computing - communicating - copying);
    const said = [`computes ${computing} %`];
    if (parts[1].some((share) => share > 0)) said.push(`only communicates ${communicating} %`);
    said.push(`only copies ${copying} %`, `idle ${idle} %`);
    out.textContent = plain(`${time(from)} to ${time(from + data.column)}, ${name}: ${said.join(", ")}`);
  };
  const hide = () => {
    column = -1;
    hair.setAttribute("x1", "-9");
    hair.setAttribute("x2", "-9");
    out.textContent = "";
  };
  svg.addEventListener("pointermove", (e) => {
    const box = svg.getBoundingClientRect();
    const scale = data.width / box.width;
    const { clientX, clientY } = /** @type {PointerEvent} */ (e);
    const [x, y] = [(clientX - box.left) * scale, (clientY - box.top) * scale];
    const at = data.from + ((x - data.left) / (data.width - data.left)) * span;
    const found = data.rows.findIndex((r) => y >= r.top && y < r.bottom);
    const under = Math.floor(at / data.column);
    if (found < 0 || x < data.left || under < 0 || under >= columns) return hide();
    [row, column] = [found, under];
    say();
  });
  svg.addEventListener("pointerleave", hide);
  plot.addEventListener("keydown", (e) => {
    if (e.target !== plot || e.ctrlKey || e.metaKey || e.altKey) return;
    const by = e.shiftKey ? 10 : 1;
    if (e.key === "ArrowRight") column = Math.min(columns - 1, column + by);
    else if (e.key === "ArrowLeft") column = Math.max(0, column - by);
    else if (e.key === "ArrowDown") row = Math.min(data.rows.length - 1, row + 1);
    else if (e.key === "ArrowUp") row = Math.max(0, row - 1);
    else if (e.key === "Escape") return hide();
    else return;
    column = Math.max(0, column);
    e.preventDefault();
    say();
  });
})();
