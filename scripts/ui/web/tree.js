// JSON as a tree of elements that fold. It is made from the tokens of the text, not from what
// JSON.parse returns: that changes long numbers, the order of names that are numbers, and names
// that come twice. All text becomes text nodes.
"use strict";
const LEVELS = 100; // that are elements: browsers lay out nested ones recursively
const UNFOLDED = { levels: 4, entries: 40 }; // what is deeper, or has more, is folded at first
const JSON_TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s{}[\],:"]+/g;
const LITERALS = ["true", "false", "null"];

const nameOf = (text, isIndex) => text !== undefined
  && h("span", { className: isIndex ? "index" : "name" }, text);
const leaf = (name, className, text) =>
  h("div", { className: "leaf" }, name, h("span", { className }, text));
function scalar(name, token) {
  if (token[0] === '"') return leaf(name, "string", JSON.parse(token));
  return leaf(name, LITERALS.includes(token) ? "literal" : "number", token);
}
// An object or an array that is being read; name: the element of its name, parent: where it is.
class Branch {
  constructor(name, parent, isArray) {
    Object.assign(this, { name, parent, isArray, entries: [], key: undefined });
    this.level = parent ? parent.level + 1 : 0;
  }
  // The name of the next entry, as an element.
  next() { return nameOf(this.isArray ? String(this.entries.length) : this.key, this.isArray); }
  element() {
    const n = this.entries.length, noun = this.isArray ? "item" : "field";
    const count = h("span", { className: "count" }, n === 1 ? `1 ${noun}` : `${n} ${noun}s`);
    const fold = h("details", {}, h("summary", {}, this.name, count), this.entries);
    fold.open = this.level < UNFOLDED.levels && n <= UNFOLDED.entries;
    return fold;
  }
}
// The tree of a text, or undefined if it is not an object or an array of JSON.
function treeOf(text) {
  if (!/^\s*[{[]/.test(text) || parsed(text) === undefined) return undefined;
  let at, depth = 0, deepFrom = 0;
  for (const { 0: token, index } of text.matchAll(JSON_TOKEN)) {
    const opens = token === "{" || token === "[", closes = token === "}" || token === "]";
    if (opens && ++depth > LEVELS) { // the rest of it is one text
      if (depth === LEVELS + 1) deepFrom = index;
    } else if (depth > LEVELS) {
      if (closes && --depth === LEVELS) {
        at.entries.push(leaf(at.next(), "deep", text.slice(deepFrom, index + 1)));
      }
    } else if (opens) {
      at = new Branch(at?.next(), at, token === "[");
    } else if (closes) {
      depth--;
      if (!at.parent) return h("div", { className: "tree" }, at.element());
      at.parent.entries.push(at.element());
      at = at.parent;
    } else if (token === ",") {
      at.key = undefined;
    } else if (!at.isArray && at.key === undefined) {
      at.key = JSON.parse(token);
    } else if (token !== ":") {
      at.entries.push(scalar(at.next(), token));
    }
  }
}
