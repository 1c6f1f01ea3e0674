// As much of a browser's document as the scripts of pages use, read from the HTML of our own tables.
"use strict";

class Element {
  constructor(tag, attributes = {}) {
    this.tag = tag;
    this.attributes = attributes;
    this.children = [];
    this.text = "";
    this.listeners = {};
    this.classList = { contains: (name) => (attributes.class || "").split(" ").includes(name) };
  }
  get textContent() { return this.text + this.children.map((c) => c.textContent).join(""); }
  set textContent(text) { this.text = text; this.children = []; }
  append(...elements) {
    for (const e of elements) {
      this.children = this.children.filter((c) => c !== e);
      this.children.push(e);
    }
  }
  getAttribute(name) { return this.attributes[name] ?? null; }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  removeAttribute(name) { delete this.attributes[name]; }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  all() { return this.children.flatMap((c) => [c, ...c.all()]); }
  /** `tag`, `#id`, `.class`, `tag[attribute]`, or two of these with a space between. */
  querySelectorAll(selector) {
    const [first, ...rest] = selector.split(" ");
    const [, tag, id, name, attribute] = /^(\w*)(?:#([\w-]+))?(?:\.([\w-]+))?(?:\[([\w-]+)\])?$/.exec(first);
    const found = this.all().filter((e) =>
      (!tag || e.tag === tag) && (!id || e.attributes.id === id) && (!name || e.classList.contains(name)) &&
      (!attribute || attribute in e.attributes));
    return rest.length ? found.flatMap((e) => e.querySelectorAll(rest.join(" "))) : found;
  }
  querySelector(selector) { return this.querySelectorAll(selector)[0] ?? null; }
}

/** The ends of these are left out in our pages, as HTML allows. */
const CLOSED_BY = { td: ["td", "th", "tr"], th: ["th", "td", "tr"], tr: ["tr"] };
const VOID = ["meta", "br", "rect", "path", "line"];

/** A document of HTML as our pages are written. @param {string} html */
const parse = (html) => {
  const root = new Element("document");
  const open = [root];
  for (const [, end, tag, attributes, text] of html.matchAll(/<(\/?)([\w!]+)([^>]*)>([^<]*)/g)) {
    if (tag === "!doctype") continue;
    const last = () => open[open.length - 1];
    if (end) {
      while (open.length > 1 && last().tag !== tag) open.pop();
      open.pop();
    } else {
      while (CLOSED_BY[last().tag]?.includes(tag)) open.pop();
      const values = Object.fromEntries([...attributes.matchAll(/([\w-]+)(?:="([^"]*)")?/g)].map((m) => [m[1], m[2] ?? ""]));
      const element = new Element(tag, values);
      last().append(element);
      if (!VOID.includes(tag) && !attributes.endsWith("/")) open.push(element);
    }
    last().text += text;
  }
  root.getElementById = (id) => root.all().find((e) => e.attributes.id === id) ?? null;
  root.createElement = (tag) => new Element(tag);
  return root;
};

module.exports = { parse, Element };
