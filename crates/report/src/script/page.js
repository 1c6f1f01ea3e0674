// @ts-check
"use strict";
// Draws the step plot and the time tracks, all on one time axis with one cross-hair.
// Text from the trace goes to the page as text nodes and canvas text only.
(() => {
  /** @typedef {{from: number, to: number}} Interval */
  /** @typedef {{during: Interval, items: any[][]}} Level */
  /** @typedef {{group: string, label: string, shape: "bands" | "stack" | "line", values?: string[], unit?: string,
   *             levels: Level[]}} Track */
  /** @typedef {{at: number, ms: number, slow: boolean}} Point */
  /** @typedef {{during: Interval, median_ms: number, low_ms: number, threshold_ms: number}} Baseline */
  /** @typedef {{canvas: HTMLCanvasElement, height: number, value: HTMLElement,
   *             gutter: HTMLCanvasElement | null, draw: (c: CanvasRenderingContext2D, width: number) => void,
   *             read: (t: number) => string, near: boolean}} Lane */

  /** @param {string} id */
  const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
  /** @type {{length_ns: number, steps: {name: string, series: {name: string, points: Point[]}[],
   *          baseline: Baseline[], anomalies: Interval[]}, tracks: Track[],
   *          gaps: {during: Interval, what: string}[], legend?: string[], tiled?: boolean,
   *          arrows?: {track: number, at: [number, number][]}[]}} */
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

