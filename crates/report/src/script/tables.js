// @ts-check
"use strict";
// Tables whose columns can be sorted. Without this script they are whole, in their first order.
(() => {
  /** What a cell is sorted by: a number if it is one, else its text. @param {Element | undefined} cell */
  const key = (cell) => {
    const text = (cell?.textContent || "").trim();
    const number = Number(text);
    return text !== "" && Number.isFinite(number) ? number : text;
  };
  /** Numbers before words, words by their letters. @param {string | number} a @param {string | number} b */
  const order = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a === "number") return -1;
    if (typeof b === "number") return 1;
    return a.localeCompare(b, undefined, { numeric: true });
  };
  for (const table of document.querySelectorAll("table[data-sort]")) {
    const heads = [...table.querySelectorAll("thead th")];
    const body = table.querySelector("tbody");
    if (!body || body.children.length < 2) continue;
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.textContent = head.textContent;
      button.title = "Sort by this column; again for the other way round";
      head.textContent = "";
      head.append(button);
      button.addEventListener("click", () => {
        const rows = [...body.children];
        const keys = new Map(rows.map((row) => [row, key(row.children[column])]));
        // Numbers are looked at from the greatest down, names from A on.
        const first = head.classList.contains("n") ? "descending" : "ascending";
        const other = first === "ascending" ? "descending" : "ascending";
        const now = head.getAttribute("aria-sort") === first ? other : first;
        for (const h of heads) h.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", now);
        const sign = now === "ascending" ? 1 : -1;
        rows.sort((a, b) => {
          const [x, y] = [keys.get(a) ?? "", keys.get(b) ?? ""];
          // What is not known comes last either way.
          if (x === "–" || y === "–") return Number(x === "–") - Number(y === "–");
          return sign * order(x, y);
        });
        body.append(...rows);
      });
    });
  }
})();
